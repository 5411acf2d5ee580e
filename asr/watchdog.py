"""Notices a decoder that waits over speech or writes in circles. Pure, and on the block clock: file and stream agree.

Decoders on the step clock are seen to latch: nothing is written for minutes over clear speech, or a phrase is written
again and again. The cure is a new anchor; here is only the notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from asr.errors import ConfigError
from asr.recogniser import WAIT
from asr.units import FRAMES_PER_STEP

Alarm = Literal["wait", "loop"]


@dataclass(frozen=True, kw_only=True)
class WatchdogConfig:
    """What is alarming.

    Attributes:
        wait_steps: so long a wait, with so many `loud_frames` in it, is a wait over speech.
        loud_frames: frames of 20 ms that are `loud_db` over the background.
        loud_db: over the level that a tenth of the wait's frames stay below. Steady noise is so never loud.
        longest_wait_steps: the wait that alarms doubles with each alarm that no text followed, up to this.
        repeats: as many times the same sequence of up to `longest_loop` tokens at the end of the text are a loop.
    """

    wait_steps: int = 50
    loud_frames: int = 75
    loud_db: float = 10.0
    longest_wait_steps: int = 800
    repeats: int = 4
    longest_loop: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.loud_frames <= self.wait_steps * FRAMES_PER_STEP or self.longest_wait_steps < self.wait_steps:
            raise ConfigError(
                f"loud_frames ({self.loud_frames}) must be 1..{self.wait_steps * FRAMES_PER_STEP} (wait_steps "
                f"{self.wait_steps}), longest_wait_steps ({self.longest_wait_steps}) at least wait_steps"
            )
        if self.repeats < 2 or self.longest_loop < 1:
            raise ConfigError(f"repeats must be >= 2 and longest_loop >= 1; got {self.repeats} and {self.longest_loop}")


@dataclass(frozen=True, kw_only=True)
class WatchdogState:
    """What it remembers.

    Attributes:
        waited: steps since the last token or alarm. alarms: how many there were without text since.
        levels: of the wait's newest frames. tokens: the newest of the text.
    """

    waited: int = 0
    alarms: int = 0
    levels: tuple[float, ...] = ()
    tokens: tuple[int, ...] = ()


class Watchdog:
    """Watches one stream.

    Args:
        grace_steps: how late text may rightly be: speech so new says nothing about the decoder.
        config: what is alarming.
    """

    def __init__(self, *, grace_steps: int, config: WatchdogConfig | None = None) -> None:
        self.config = config or WatchdogConfig()
        self.grace_frames = grace_steps * FRAMES_PER_STEP

    def step(
        self, tokens: Sequence[int], levels: Sequence[float], state: WatchdogState
    ) -> tuple[Alarm | None, WatchdogState]:
        """Looks at one block of audio.

        Args:
            tokens: its steps' outputs, waits included.
            levels: of its frames, see `asr.loudness`.
            state: what the block before left.
        Returns:
            what is wrong, or None, and the new state.
        """
        state = self._after(tokens, levels, state)
        if self._loops(state.tokens):
            return "loop", replace(state, tokens=())
        patience = min(self.config.wait_steps * 2**state.alarms, self.config.longest_wait_steps)
        if state.waited >= patience and self._speech(state.levels):
            return "wait", replace(state, waited=0, levels=(), alarms=min(state.alarms + 1, 16))
        return None, state

    def _after(self, tokens: Sequence[int], levels: Sequence[float], state: WatchdogState) -> WatchdogState:
        spoken = [at for at, token in enumerate(tokens) if token != WAIT]
        new = list(levels)
        if spoken:
            since = len(tokens) - 1 - spoken[-1]
            keep = len(new) - min(len(new), since * FRAMES_PER_STEP)
            written = (*state.tokens, *(tokens[at] for at in spoken))[-self.config.repeats * self.config.longest_loop :]
            state = WatchdogState(waited=since, levels=tuple(new[keep:]), tokens=written)
        else:
            state = replace(state, waited=state.waited + len(tokens), levels=(*state.levels, *new))
        kept = self.config.wait_steps * FRAMES_PER_STEP + self.grace_frames
        return replace(state, levels=state.levels[-kept:])

    def _speech(self, levels: tuple[float, ...]) -> bool:
        old = levels[: max(0, len(levels) - self.grace_frames)]
        if len(old) < self.config.loud_frames:
            return False
        background = sorted(levels)[len(levels) // 10]
        return sum(level >= background + self.config.loud_db for level in old) >= self.config.loud_frames

    def _loops(self, tokens: tuple[int, ...]) -> bool:
        repeats = self.config.repeats
        for size in range(1, self.config.longest_loop + 1):
            end = tokens[-repeats * size :]
            if len(end) == repeats * size and end == end[:size] * repeats:
                return True
        return False
