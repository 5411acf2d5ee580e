import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.words import Word
from streaming.emission_delay import HIGHEST_MS, LOWEST_MS, DelayHistogram, EmissionDelayMeter


def word(end_ms: int, emitted_ms: int) -> Word:
    return Word(text="a", start_ms=end_ms - 100, end_ms=end_ms, emitted_ms=emitted_ms, confidence=1.0)


def test_nothing_measured_is_none() -> None:
    meter = EmissionDelayMeter()
    assert meter.audio() is None
    assert meter.wall() is None


@given(st.lists(st.integers(-1000, 3000), min_size=1, max_size=200))
def test_quantiles_are_those_of_the_delays_to_ten_milliseconds(delays: list[int]) -> None:
    histogram = DelayHistogram()
    for delay in delays:
        histogram.add(delay)
    summary = histogram.summary()
    assert summary is not None
    assert summary.count == len(delays)
    assert summary.max_ms == max(delays)
    for percent, got in ((50, summary.p50_ms), (90, summary.p90_ms), (95, summary.p95_ms)):
        exact = np.percentile(delays, percent, method="inverted_cdf")
        assert 0 <= got - exact < 10


def test_memory_is_bounded_and_the_largest_exact() -> None:
    histogram = DelayHistogram()
    for delay in range(-10_000_000, 10_000_000, 997):
        histogram.add(delay)
    assert len(histogram._bins) <= (HIGHEST_MS - LOWEST_MS) // 10 + 1
    summary = histogram.summary()
    assert summary is not None
    assert summary.max_ms == max(range(-10_000_000, 10_000_000, 997))
    assert summary.p90_ms == HIGHEST_MS


def test_the_audio_clock_needs_no_clock() -> None:
    meter = EmissionDelayMeter()
    meter.committed(word(1000, 1480), now_ms=None)
    meter.committed(word(2000, 1980), now_ms=None)
    summary = meter.audio()
    assert summary is not None
    assert (summary.count, summary.p50_ms, summary.max_ms) == (2, -20, 480)
    assert meter.wall() is None


def test_the_callers_clock_counts_from_when_the_word_had_been_spoken() -> None:
    meter = EmissionDelayMeter()
    meter.arrived(received_ms=320, now_ms=50_420)  # 100 ms on its way
    meter.arrived(received_ms=640, now_ms=50_690)  # 50 ms: the quickest
    meter.arrived(received_ms=960, now_ms=51_500)  # a jam
    meter.committed(word(500, 960), now_ms=51_600)
    summary = meter.wall()
    assert summary is not None
    assert summary.max_ms == 51_600 - 50_050 - 500


def test_without_arrivals_there_is_no_wall_clock() -> None:
    meter = EmissionDelayMeter()
    meter.committed(word(500, 960), now_ms=1)
    assert meter.wall() is None
    assert meter.audio() is not None


@pytest.mark.parametrize("delay", [0, 1, 9, 10, 11, -1, -10])
def test_bins_round_up(delay: int) -> None:
    histogram = DelayHistogram()
    histogram.add(delay)
    summary = histogram.summary()
    assert summary is not None
    assert summary.p50_ms == -(-delay // 10) * 10
