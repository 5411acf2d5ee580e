"""How many sessions this machine can hold: measured at start, for it depends on the machine and what else it does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from asr.model import Model
from asr.resample import Samples
from asr.slots import StreamEngine
from asr.units import STEP_MS, STEP_SAMPLES
from server.settings import ServeSettings

HEADROOM = 0.7
"""Share of a chunk's time that its step may take: the rest is for audio, sockets, and steps that take longer."""
WARM_BLOCKS = 6
TIMED_BLOCKS = 5
BATCH = 4
MOST = 512


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What a step takes.

    Attributes:
        chunk_ms: audio of a session in a step.
        one_ms, many_ms: time of a step with 1 and with `many` sessions.
    """

    chunk_ms: int
    one_ms: float
    many_ms: float
    many: int = BATCH

    @property
    def each_ms(self) -> float:
        """What one more session adds."""
        return max(0.01, (self.many_ms - self.one_ms) / (self.many - 1))

    @property
    def sessions(self) -> int:
        """How many fit into a chunk's time with headroom; at least 1.

        >>> StepCost(chunk_ms=320, one_ms=80.0, many_ms=260.0).sessions
        3
        """
        room_ms = HEADROOM * self.chunk_ms - self.one_ms
        return max(1, min(MOST, 1 + int(room_ms // self.each_ms)))

    @property
    def keeps_up(self) -> bool:
        """Whether even one session can be decoded as fast as it is spoken."""
        return self.one_ms < self.chunk_ms

    def __str__(self) -> str:
        return (
            f"a step of {self.chunk_ms} ms takes {self.one_ms:.0f} ms with 1 session and {self.many_ms:.0f} ms with "
            f"{self.many}: {self.one_ms * STEP_MS / self.chunk_ms:.0f} ms for every 80 ms of one session"
        )


def measure(model: Model, *, delay_ms: int, chunk_ms: int, clock: Callable[[], float] = time.perf_counter) -> StepCost:
    """Times a few steps on bursts of noise; some seconds for a small model on a CPU.

    Args:
        model: what `asr.load` gave.
        delay_ms, chunk_ms: of the sessions.
        clock: in seconds.
    """
    return StepCost(
        chunk_ms=chunk_ms,
        one_ms=1000 * _step_seconds(model, 1, delay_ms, chunk_ms, clock),
        many_ms=1000 * _step_seconds(model, BATCH, delay_ms, chunk_ms, clock),
    )


def with_measured_sessions(model: Model, settings: ServeSettings, *, log: Callable[[str], None]) -> ServeSettings:
    """The settings with as many sessions as this machine holds; what was measured is logged, and a warning if none."""
    cost = measure(model, delay_ms=settings.delay_ms, chunk_ms=settings.chunk_ms)
    log(str(cost))
    if not cost.keeps_up:
        log("warning: this machine is too slow, or too busy, for a single session: words will come later and later")
    return replace(settings, max_sessions=cost.sessions)


def _step_seconds(model: Model, sessions: int, delay_ms: int, chunk_ms: int, clock: Callable[[], float]) -> float:
    settings = model.settings(delay_ms=delay_ms, chunk_ms=chunk_ms)
    engine = StreamEngine(model, slots=sessions, chunks=[settings.chunk])
    rows = [engine.acquire(settings) for _ in range(sessions)]
    rng = np.random.default_rng(0)
    seconds = []
    for block in range(WARM_BLOCKS + TIMED_BLOCKS):
        blocks = {row: _noise(rng, settings.chunk.chunk_steps) for row in rows}
        started = clock()
        engine.step(blocks)
        if block >= WARM_BLOCKS:
            seconds.append(clock() - started)
    return median(seconds)


def _noise(rng: np.random.Generator, steps: int) -> Samples:
    """[N] noise whose loudness changes from step to step, so that it is taken for somebody who speaks."""
    loudness = np.repeat(rng.choice([0.003, 0.3], size=steps), STEP_SAMPLES)
    samples: Samples = (rng.standard_normal(steps * STEP_SAMPLES) * loudness).astype(np.float32)
    return samples
