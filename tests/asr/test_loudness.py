import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.loudness import FLOOR_DB, Quiet, levels_db


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
