"""Audio that comes faster or slower than its declared rate."""

import random

import pytest

from server.rate_check import RATES, RateCheck


def told(declared: int, actual: float, *, seconds: int = 30, piece_ms: int = 100, jitter_ms: int = 0) -> list[str]:
    """The warnings of a sender that records at `actual`, 16-bit stereo."""
    rng = random.Random(1)
    check = RateCheck(bytes_per_sample=4, sample_rate=declared)
    size = round(actual * piece_ms / 1000) * 4
    pieces = range(0, seconds * 1000, piece_ms)
    return [said for at in pieces if (said := check.step(size, at + rng.randint(0, jitter_ms))) is not None]


@pytest.mark.parametrize("declared", RATES)
@pytest.mark.parametrize("actual", RATES)
def test_the_rate_at_which_samples_come_is_told_once_where_it_is_another(declared: int, actual: int) -> None:
    warnings = told(declared, actual, jitter_ms=20)
    assert len(warnings) == (declared != actual)
    assert all(f"recorded at {actual} Hz" in said and f"{declared} were declared" in said for said in warnings)


def test_it_takes_three_windows_that_agree() -> None:
    assert told(16_000, 48_000, seconds=12) == []
    assert len(told(16_000, 48_000, seconds=13)) == 1
    check = RateCheck(bytes_per_sample=2, sample_rate=16_000)
    sizes = [96_000] * 9 + [32_000] * 4 + [96_000] * 9  # a burst, real time, a burst again
    assert not any(check.step(size, 1000 * at) for at, size in enumerate(sizes))


def test_unusual_speeds_pauses_and_clocks_that_drift_are_no_wrong_rate() -> None:
    assert told(16_000, 40_000) == []  # a recording at 2.5 times its speed
    assert told(16_000, 16_100) == []
    assert told(12_000, 12_000) == []  # no common rate, but the declared one
    check = RateCheck(bytes_per_sample=2, sample_rate=16_000)
    rng = random.Random(1)
    at_ms = 0
    for _ in range(2000):
        at_ms += 100 if rng.random() < 0.9 else rng.randint(200, 3000)  # a client that leaves out silence
        assert check.step(3200, at_ms) is None


def test_a_sender_that_had_to_wait_is_judged_anew() -> None:
    check = RateCheck(bytes_per_sample=2, sample_rate=16_000)
    for second in range(60):
        assert check.step(96_000, 1000 * second) is None
        if second % 10 == 9:
            check.restart()


def test_large_pieces_are_counted_as_exactly_as_small_ones() -> None:
    assert len(told(16_000, 8000, piece_ms=1500, seconds=40)) == 1
    assert told(8000, 8000, piece_ms=1500, seconds=40) == []
