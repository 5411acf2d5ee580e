"""How loud a stream is, for how long it has been quiet, and how much louder faint speech is made: energy, no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from asr.resample import Samples
from asr.units import FRAME_MS, FRAME_SAMPLES

FLOOR_DB = -70.0
"""Level of digital silence: nothing counts as quieter, so that the faintest hiss after it is not loud."""
LOUD_DB = 10.0
"""So far over the background is loud."""
RISE_DB = 0.01
"""The background falls to any quieter frame at once and rises by this much a frame: 10 dB in 20 s."""


def levels_db(samples: Samples, *, floor_db: float = FLOOR_DB) -> list[float]:
    """Root mean square of each whole 20 ms of [N] samples, in dB of full scale, at least `floor_db`.

    >>> levels_db(np.full(700, 0.1, dtype=np.float32))
    [-20.0, -20.0]
    """
    whole = samples[: len(samples) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    power = np.square(whole, dtype=np.float64).mean(axis=1)
    levels = 10 * np.log10(np.maximum(power, 10 ** (floor_db / 10)))
    return [round(level, 3) for level in levels.tolist()]


def _background(before: float | None, level: float) -> float:
    return level if before is None else min(before + RISE_DB, level)


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
            background = _background(background, level)
            frames = 0 if level >= background + LOUD_DB else frames + 1
        return Quiet(background_db=background, frames=frames)


SPEECH_DB = -20.0
"""Speech whose loudest 20 ms are below this is made louder: recognisers hear little of speech that is fainter."""
MOST_GAIN_DB = 30.0
FAINTEST_DB = -90.0
"""What is fainter is digital silence to the leveller. It may take hiss for speech: that stays faint all the same."""
FIRST_FRAMES = 10
"""After so many loud frames it is known how loud somebody speaks."""
FALL_DB = 0.06
"""Loud frames let the loudest one be forgotten by so much each: 3 dB a second of speech."""


@dataclass(frozen=True, kw_only=True)
class Leveller:
    """Makes faint speech louder, on what was heard so far alone; a background that nothing rises above stays as it is.

    Attributes:
        background_db: see `Quiet`; None before the first frame.
        loudest_db: of the loud frames lately; None before the first.
        frames: loud ones so far, at most `FIRST_FRAMES`.
        gain_db: of the newest frame.
    """

    background_db: float | None = None
    loudest_db: float | None = None
    frames: int = 0
    gain_db: float = 0.0

    def step(self, samples: Samples) -> tuple[Samples, Leveller]:
        """[N] samples with the gain of each 20 ms, which is reached from that of the last one in a straight line.

        Args:
            samples: [N], N whole 20 ms.
        """
        now, gains = self, [self.gain_db]
        for level in levels_db(samples, floor_db=FAINTEST_DB):
            now = now._hear(level)
            gains.append(now.gain_db)
        if not any(gains):
            return samples, now
        factors = 10 ** (np.array(gains) / 20)
        at = np.arange(1, len(samples) + 1) / FRAME_SAMPLES
        return (samples * np.interp(at, np.arange(len(factors)), factors)).astype(samples.dtype), now

    def _hear(self, level: float) -> Leveller:
        background = _background(self.background_db, level)
        if level < background + LOUD_DB:
            return replace(self, background_db=background)
        loudest = level if self.loudest_db is None else max(level, self.loudest_db - FALL_DB)
        frames = min(self.frames + 1, FIRST_FRAMES)
        gain = min(max(SPEECH_DB - loudest, 0.0), MOST_GAIN_DB) if frames == FIRST_FRAMES else 0.0
        return Leveller(background_db=background, loudest_db=loudest, frames=frames, gain_db=gain)
