import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import ConfigError, StreamClosed
from asr.resample import Resampler

RATES = (8_000, 11_025, 16_000, 22_050, 44_100, 48_000)


def noise(samples: int) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(samples) * 0.1).astype(np.float32)


def in_chunks(x: np.ndarray, rate: int, sizes: list[int]) -> np.ndarray:
    resampler, position, parts = Resampler(rate), 0, []
    for size in [*sizes, len(x)]:
        parts.append(resampler.step(x[position : position + size]))
        position = min(len(x), position + size)
    return np.concatenate([*parts, resampler.finish()])


@pytest.mark.parametrize("rate", RATES)
@given(sizes=st.lists(st.integers(0, 4_000), max_size=12))
def test_any_chunking_gives_the_samples_of_the_whole(rate: int, sizes: list[int]) -> None:
    x = noise(12_345)
    np.testing.assert_array_equal(in_chunks(x, rate, sizes), soxr.resample(x, rate, 16_000, quality="HQ"))


@pytest.mark.parametrize("rate", RATES)
def test_one_sample_at_a_time(rate: int) -> None:
    x = noise(500)
    np.testing.assert_array_equal(in_chunks(x, rate, [1] * 500), in_chunks(x, rate, []))


@pytest.mark.parametrize("rate", RATES)
def test_a_tone_keeps_its_length_level_and_frequency(rate: int) -> None:
    seconds = 0.5
    tone = np.sin(2 * np.pi * 1_000 * np.arange(int(rate * seconds)) / rate).astype(np.float32)
    y = in_chunks(tone, rate, [777])
    assert abs(len(y) - 16_000 * seconds) <= 1
    wanted = np.sin(2 * np.pi * 1_000 * np.arange(len(y)) / 16_000)
    np.testing.assert_allclose(y[400:-400], wanted[400:-400], atol=1e-3)


def test_what_16_khz_cannot_hold_is_filtered_not_folded() -> None:
    tone = np.sin(2 * np.pi * 12_000 * np.arange(48_000) / 48_000).astype(np.float32)
    assert np.abs(in_chunks(tone, 48_000, [])[400:-400]).max() < 1e-3


@pytest.mark.parametrize("rate", [0, -16_000, 7_999, 48_001, 16_000.5])
def test_other_rates_are_refused(rate: int) -> None:
    with pytest.raises(ConfigError, match=rf"sample rate is {rate} Hz; .* 8000 to 48000"):
        Resampler(rate)


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_nothing_goes_in_after_the_end(rate: int) -> None:
    resampler = Resampler(rate)
    resampler.finish()
    with pytest.raises(StreamClosed):
        resampler.step(noise(10))
    with pytest.raises(StreamClosed):
        resampler.finish()
