import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.loudness import FLOOR_DB, MOST_GAIN_DB, SPEECH_DB, Leveller, Quiet, levels_db


def test_levels() -> None:
    loud = np.full(320, 0.5, dtype=np.float32)
    assert levels_db(np.concatenate([loud, 0 * loud, loud[:100]])) == [pytest.approx(-6.02, abs=0.01), FLOOR_DB]
    assert levels_db(np.zeros(0, dtype=np.float32)) == []


def test_quiet_is_counted_from_the_last_loud_frame() -> None:
    quiet = Quiet().step([-60.0] * 50)
    assert quiet.ms == 1000
    assert quiet.step([-20.0]).ms == 0
    assert quiet.step([-20.0, -55.0, -58.0]).ms == 40


def test_steady_noise_is_background_and_so_becomes_noise_that_sets_in() -> None:
    assert Quiet().step([-20.0] * 100).ms == 2000
    onset = Quiet().step([-60.0] * 10).step([-30.0] * 1000)
    assert onset.ms == 0
    assert onset.step([-30.0] * 1100).ms > 0


@given(levels=st.lists(st.floats(FLOOR_DB, 0), max_size=60), cut=st.integers(0, 60))
def test_it_does_not_matter_how_frames_are_grouped(levels: list[float], cut: int) -> None:
    assert Quiet().step(levels[:cut]).step(levels[cut:]) == Quiet().step(levels)


def tone(level_db: float, frames: int) -> np.ndarray:
    """[320 frames] a square wave of that level."""
    return np.tile(np.array([1.0, -1.0], np.float32), 160 * frames) * np.float32(10 ** (level_db / 20))


def spoken(level_db: float, *, noise_db: float = -65.0, words: int = 8) -> np.ndarray:
    """Bursts of 200 ms over a background."""
    return np.concatenate([part for _ in range(words) for part in (tone(noise_db, 10), tone(level_db, 10))])


def test_faint_speech_is_brought_to_the_level_that_is_wanted() -> None:
    for level in (-30.0, -45.0):
        heard, state = Leveller().step(spoken(level))
        assert state.gain_db == pytest.approx(SPEECH_DB - level, abs=1)
        last_word = levels_db(heard[-320 * 8 :])
        assert last_word == pytest.approx([SPEECH_DB] * 8, abs=1)


def test_speech_that_is_loud_enough_is_left_alone() -> None:
    samples = spoken(SPEECH_DB + 1)
    heard, _ = Leveller().step(samples)
    assert heard is samples


@pytest.mark.parametrize("level", [FLOOR_DB - 20, -50.0, -30.0])
def test_a_background_alone_gets_no_gain(level: float) -> None:
    samples = tone(level, 3000)
    heard, state = Leveller().step(samples)
    assert state.gain_db == 0
    assert np.array_equal(heard, samples)


def test_even_the_faintest_speech_is_made_louder() -> None:
    _, state = Leveller().step(spoken(-65.0, noise_db=-85.0))
    assert state.gain_db == MOST_GAIN_DB


def test_the_gain_is_bounded_and_falls_at_once_when_somebody_speaks_up() -> None:
    _, state = Leveller().step(spoken(-54.0))
    assert state.gain_db == MOST_GAIN_DB
    heard, loud = state.step(tone(-15.0, 4))
    assert loud.gain_db == 0
    assert levels_db(heard)[1:] == pytest.approx([-15.0] * 3, abs=0.1)


def test_a_fainter_speaker_is_followed_while_speaking_not_in_pauses() -> None:
    _, state = Leveller().step(spoken(-20.0))
    _, paused = state.step(tone(-65.0, 500))
    assert paused.gain_db == state.gain_db == 0
    _, later = paused.step(spoken(-30.0, words=40))
    assert later.gain_db == pytest.approx(10.0, abs=1)


def test_one_click_is_no_speech() -> None:
    _, state = Leveller().step(np.concatenate([tone(-65.0, 20), tone(-40.0, 2), tone(-65.0, 20)]))
    assert state.gain_db == 0


@given(
    levels=st.lists(st.sampled_from([-70.0, -55.0, -40.0, -30.0, -15.0]), min_size=1, max_size=60),
    cut=st.integers(0, 60),
)
def test_levelling_does_not_depend_on_the_grouping(levels: list[float], cut: int) -> None:
    samples = np.concatenate([tone(level, 1) for level in levels])
    whole, end = Leveller().step(samples)
    first, middle = Leveller().step(samples[: 320 * cut])
    second, other = middle.step(samples[320 * cut :])
    assert end == other
    np.testing.assert_allclose(np.concatenate([first, second]), whole, rtol=1e-5)
