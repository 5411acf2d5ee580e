"""How loud a stream is, and for how long it has been quiet: plain energy, no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asr.resample import Samples
from asr.units import FRAME_MS, FRAME_SAMPLES

FLOOR_DB = -70.0
"""Level of digital silence: nothing counts as quieter, so that the faintest hiss after it is not loud."""
LOUD_DB = 10.0
"""So far over the background is loud."""
RISE_DB = 0.01
"""The background falls to any quieter frame at once and rises by this much a frame: 10 dB in 20 s."""


def levels_db(samples: Samples) -> list[float]:
    """Root mean square of each whole 20 ms of [N] samples, in dB of full scale, at least `FLOOR_DB`.

    >>> levels_db(np.full(700, 0.1, dtype=np.float32))
    [-20.0, -20.0]
    """
    whole = samples[: len(samples) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    power = np.square(whole, dtype=np.float64).mean(axis=1)
    levels = 10 * np.log10(np.maximum(power, 10 ** (FLOOR_DB / 10)))
    return [round(level, 3) for level in levels.tolist()]


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """Attributes: background_db: the level of the background, None before the first frame. frames: since a loud one."""

    background_db: float | None = None
    frames: int = 0

    @property
    def ms(self) -> int:
        """For how long it has been quiet."""
        return self.frames * FRAME_MS

    def step(self, levels: Sequence[float]) -> Quiet:
        """The state after frames of these levels."""
        background, frames = self.background_db, self.frames
        for level in levels:
            background = level if background is None else min(background + RISE_DB, level)
            frames = 0 if level >= background + LOUD_DB else frames + 1
        return Quiet(background_db=background, frames=frames)
