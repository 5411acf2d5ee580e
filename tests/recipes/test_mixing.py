"""Noise levels, random pieces and joined recordings: known answers and bookkeeping."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import ConfigError
from asr.units import SAMPLE_RATE
from recipes.data import Clip
from recipes.mixing import at_level, cut_pieces, join_clips, looped, pink_noise, rms_db, white_noise


def sine(amplitude: float, count: int = SAMPLE_RATE) -> np.ndarray:
    return (amplitude * np.sin(2 * np.pi * 100 * np.arange(count) / SAMPLE_RATE)).astype(np.float32)


def clips(folder: Path, lengths: list[int]) -> list[Clip]:
    """Clips of constant value (number + 1) / 100."""
    found = []
    for number, length in enumerate(lengths):
        path = folder / f"{number}.wav"
        soundfile.write(path, np.full(length, (number + 1) / 100), SAMPLE_RATE, subtype="FLOAT")
        found.append(
            Clip(
                audio=path.name,
                path=path,
                duration_ms=length // 16,
                text=f"word{number}",
                speaker=None,
                source="made",
                licence="CC0",
            )
        )
    return found


# -- levels ----------------------------------------------------------------------------------------------------------


def test_the_level_of_a_sine_is_3_db_below_its_peak() -> None:
    assert rms_db(sine(1.0)) == pytest.approx(-10 * math.log10(2), abs=1e-4)
    assert rms_db(sine(0.1)) == pytest.approx(-20 - 10 * math.log10(2), abs=1e-4)
    assert rms_db(np.zeros(10, dtype=np.float32)) == -math.inf
    assert rms_db(np.zeros(0, dtype=np.float32)) == -math.inf


@pytest.mark.parametrize("level_db", [-60, -40.5, -20])
def test_noise_is_brought_to_its_level(level_db: float) -> None:
    for made in (white_noise, pink_noise):
        samples = at_level(made(SAMPLE_RATE, np.random.default_rng(1)), level_db)
        assert rms_db(samples) == pytest.approx(level_db, abs=0.01)
        assert samples.dtype == np.float32


def test_what_passes_full_scale_is_cut_off() -> None:
    clicks = np.zeros(10_000, dtype=np.float32)
    clicks[::1000] = 0.001
    assert at_level(clicks, -20).max() == 1.0  # a peak of √10 is wanted
    assert rms_db(at_level(clicks, -20)) == pytest.approx(-30, abs=1e-3)
    with pytest.raises(ConfigError, match="digital silence"):
        at_level(np.zeros(10, dtype=np.float32), -20)


def octave_powers(samples: np.ndarray) -> list[float]:
    """Power of the octaves from 125 Hz on."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    frequency = np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE)
    return [float(power[(frequency >= low) & (frequency < 2 * low)].sum()) for low in (125, 250, 500, 1000, 2000)]


def test_white_noise_doubles_from_octave_to_octave_and_pink_noise_stays() -> None:
    white = octave_powers(white_noise(10 * SAMPLE_RATE, np.random.default_rng(2)))
    pink = octave_powers(pink_noise(10 * SAMPLE_RATE, np.random.default_rng(2)))
    for i in range(4):
        assert white[i + 1] / white[i] == pytest.approx(2, rel=0.2)
        assert pink[i + 1] / pink[i] == pytest.approx(1, rel=0.2)


def test_pink_noise_has_no_direct_current() -> None:
    assert abs(float(pink_noise(SAMPLE_RATE, np.random.default_rng(3)).mean())) < 1e-6


def test_a_recording_is_repeated_up_to_its_length() -> None:
    samples = np.array([1, 2, 3], dtype=np.float32)
    assert looped(samples, 7).tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert looped(samples, 2).tolist() == [1, 2]
    with pytest.raises(ConfigError, match="empty"):
        looped(samples[:0], 4)


# -- pieces ----------------------------------------------------------------------------------------------------------


@given(count=st.integers(0, 300), largest=st.integers(1, 40), seed=st.integers(0, 9))
def test_pieces_joined_are_the_whole(count: int, largest: int, seed: int) -> None:
    whole = bytes(i % 256 for i in range(count))
    pieces = cut_pieces(whole, largest=largest, rng=random.Random(seed))
    assert b"".join(pieces) == whole
    assert all(1 <= len(piece) <= largest for piece in pieces)


def test_pieces_vary_and_are_reproducible() -> None:
    samples = np.arange(2000, dtype=np.float32)
    sizes = [len(piece) for piece in cut_pieces(samples, largest=50, rng=random.Random(1))]
    assert sizes == [len(piece) for piece in cut_pieces(samples, largest=50, rng=random.Random(1))]
    assert len(set(sizes)) > 10
    assert sizes.count(1) >= 2
    with pytest.raises(ConfigError, match="at least 1"):
        cut_pieces(samples, largest=0, rng=random.Random(1))


# -- joined recordings -----------------------------------------------------------------------------------------------


def test_every_clip_lies_where_it_is_said_to_and_pauses_lie_between(tmp_path: Path) -> None:
    joined = join_clips(clips(tmp_path, [3000, 5000, 8000]), seconds=4, seed=5, pause_ms=(300, 500))
    end = 0
    for placed in joined.placed:
        value = (int(placed.clip.audio.split(".")[0]) + 1) / 100
        assert np.allclose(joined.samples[placed.start : placed.end], value)
        pause = joined.samples[end : placed.start]
        assert 300 * 16 <= len(pause) <= 500 * 16
        assert rms_db(pause) == pytest.approx(-65, abs=0.01)
        assert placed.start_ms == placed.start // 16
        end = placed.end
    assert end == len(joined.samples) >= 4 * SAMPLE_RATE
    assert len(joined.samples) - (joined.placed[-1].end - joined.placed[-1].start) < 4.5 * SAMPLE_RATE
    assert joined.text == " ".join(placed.clip.text or "" for placed in joined.placed)


def test_a_clip_comes_again_only_after_all_others(tmp_path: Path) -> None:
    joined = join_clips(clips(tmp_path, [1600] * 4), seconds=7, seed=1)
    names = [placed.clip.audio for placed in joined.placed]
    assert len(names) >= 8
    assert sorted(names[:4]) == sorted(names[4:8]) == ["0.wav", "1.wav", "2.wav", "3.wav"]


def test_the_seed_sets_order_and_pauses(tmp_path: Path) -> None:
    made = clips(tmp_path, [1600] * 5)
    first, again, other = (join_clips(made, seconds=3, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.samples, again.samples)
    assert [p.start for p in first.placed] != [p.start for p in other.placed]


def test_one_clip_is_joined_with_itself(tmp_path: Path) -> None:
    joined = join_clips(clips(tmp_path, [1600]), seconds=1.5, seed=1, pause_ms=(400, 400), noise_db=-80)
    assert [(placed.start, placed.end) for placed in joined.placed] == [
        (6400, 8000),
        (14_400, 16_000),
        (22_400, 24_000),
    ]
    assert joined.text == "word0 word0 word0"
    assert rms_db(joined.samples[8000:14_400]) == pytest.approx(-80, abs=0.01)


def test_pauses_differ_in_length_and_noise(tmp_path: Path) -> None:
    joined = join_clips(clips(tmp_path, [1600] * 3), seconds=5, seed=4)
    ends = [0, *(placed.end for placed in joined.placed)]
    pauses = [joined.samples[end : placed.start] for end, placed in zip(ends, joined.placed, strict=False)]
    assert len({len(pause) for pause in pauses}) > 2
    assert not np.array_equal(pauses[0][:100], pauses[1][:100])


def test_a_joined_recording_needs_clips_and_time(tmp_path: Path) -> None:
    made = clips(tmp_path, [1600])
    for chosen, seconds, pause_ms in (([], 1.0, (300, 1000)), (made, 0.0, (300, 1000)), (made, 1.0, (500, 300))):
        with pytest.raises(ConfigError, match="need clips"):
            join_clips(chosen, seconds=seconds, seed=1, pause_ms=pause_ms)
