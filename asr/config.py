"""Configurations: frozen, complete, checked where they are defined, stored as JSON in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from asr.errors import ConfigError
from asr.units import FRAMES_PER_STEP, STEP_MS, ms_to_steps


@dataclass(frozen=True, kw_only=True)
class ChunkSetting:
    """One chunk size with the right context and silence that the checkpoint uses with it (docs/design.md §2).

    Attributes:
        chunk_steps: c, steps a block takes at once.
        right_frames: R, newest frames that the next block computes anew.
        silence_frames: S, silence frames behind the newest one.
    """

    chunk_steps: int
    right_frames: int
    silence_frames: int

    def __post_init__(self) -> None:
        if self.right_frames % FRAMES_PER_STEP:
            raise ConfigError(
                f"right_frames is {self.right_frames}; it must be whole steps of {FRAMES_PER_STEP} frames"
            )
        if self.chunk_steps < 1 or self.right_frames < 0 or self.silence_frames < 0:
            raise ConfigError(
                f"chunk_steps must be >= 1, right_frames and silence_frames >= 0; got {self.chunk_steps}, "
                f"{self.right_frames}, {self.silence_frames}"
            )

    @property
    def block_frames(self) -> int:
        """Frames of the largest ordinary block."""
        return self.chunk_steps * FRAMES_PER_STEP + self.right_frames + self.silence_frames


@dataclass(frozen=True, kw_only=True)
class SessionLimits:
    """What a checkpoint was made for: the settings that a session may choose from."""

    chunks: tuple[ChunkSetting, ...]
    delays: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.chunks or not self.delays or min(self.delays) < 1:
            raise ConfigError(
                f"a checkpoint needs chunk settings and delays >= 1 step; got {self.chunks}, {self.delays}"
            )

    def choose(self, *, delay_ms: int, chunk_ms: int) -> SessionSettings:
        """The settings for a session.

        Raises:
            ConfigError: if the checkpoint does not list the delay or the chunk; the message lists what it does.
        """
        delay = ms_to_steps(delay_ms, name="delay_ms")
        chunk = ms_to_steps(chunk_ms, name="chunk_ms")
        found = [setting for setting in self.chunks if setting.chunk_steps == chunk]
        if not found or delay not in self.delays:
            raise ConfigError(
                f"delay_ms={delay_ms} with chunk_ms={chunk_ms} is not among what this checkpoint was made for: "
                f"chunk_ms {[c.chunk_steps * STEP_MS for c in self.chunks]}, "
                f"delay_ms {[d * STEP_MS for d in self.delays]}"
            )
        return SessionSettings(chunk=found[0], delay_steps=delay)


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """A session's choice: the chunk with its R and S, and the delay τ in steps."""

    chunk: ChunkSetting
    delay_steps: int

    def to_json(self) -> dict[str, object]:
        """As the JSON result states it."""
        return {
            "delay_ms": self.delay_steps * STEP_MS,
            "chunk_ms": self.chunk.chunk_steps * STEP_MS,
            "right_context_ms": self.chunk.right_frames * 20,
            "silence_ms": self.chunk.silence_frames * 20,
        }


@dataclass(frozen=True)
class RowSettings:
    """The settings of all slots as tensors [B], so that sessions that chose differently share a batch."""

    delay: Tensor
    chunk_steps: Tensor
    right: Tensor
    silence: Tensor

    @classmethod
    def stack(cls, rows: list[SessionSettings], device: torch.device | None = None) -> RowSettings:
        """One row a session."""

        def column(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(
            column([row.delay_steps for row in rows]),
            column([row.chunk.chunk_steps for row in rows]),
            column([row.chunk.right_frames for row in rows]),
            column([row.chunk.silence_frames for row in rows]),
        )


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """The gates' numbers, in encoder frames of 20 ms unless a name says otherwise.

    Attributes:
        offset_frames: added to 4 τ: how old what a token reads must be, measured so that the median word delay is τ.
        chunk_frames: at most so much is taken off again for the wait for the chunk's end.
        least_frames: at least so old it must be.
        old_mass: share of the attention that must lie on frames older than that.
        hold_frames: how much longer an unsure token may be held back, at the most.
        sure_probability: a token below this is unsure.
        careful_tokens: so many tokens after a pause are unsure whatever their probability.
        least_evidence: the first token after a pause is not written below this many CTC labels around it times its
            probability: noises resemble a word a little, and then the decoder guesses.
        evidence_frames: how far ahead of the token those labels count: soon after it, they are of the same speech.
        same_place_frames: a word read within so many frames of the same word lately is a repeat.
        stuck_frames: a text so far behind the edge lets go of the guards against repeats.
        threshold: log-odds from which on a gate that learns opens.
        closing_frames: so long after the newest text, the delay not counted, a mark that is sure is written.
        pause_frames: so long a gap between two tokens' frames is a pause.
        loud_behind_frames, loud_ahead_frames, loud_frames: from so far before to so far behind where a word is read
            there must be so many frames that may belong to a word.
        sink_frames: the first frames draw attention for no reason; they are not looked at.
    """

    offset_frames: int = -5
    chunk_frames: int = 6
    least_frames: int = 3
    old_mass: float = 0.5
    hold_frames: int = 24
    sure_probability: float = 0.5
    careful_tokens: int = 3
    least_evidence: float = 0.0
    evidence_frames: int = 200
    closing_frames: int = 40
    pause_frames: int = 50
    same_place_frames: int = 13
    stuck_frames: int = 60
    threshold: float = 0.0
    loud_behind_frames: int = 10
    loud_ahead_frames: int = 30
    loud_frames: int = 3
    sink_frames: int = 3


@dataclass(frozen=True, kw_only=True)
class AnchorConfig:
    """When a stream of bounded positions starts anew, in encoder frames since its anchor.

    Attributes:
        limit_frames: re-anchor before a block would pass this.
        pause_after_frames, pause_frames: from so far on, a pause this long is a good place.
        keep_frames: how much of the past is encoded again.
        text_limit: tokens since the anchor that also force it.
        tail_frames, voiced_frames: when the decoder says that the text has ended, so many loud frames, later than so
            many frames behind the last token, say otherwise.
    """

    limit_frames: int = 1300
    pause_after_frames: int = 900
    pause_frames: int = 40
    keep_frames: int = 200
    text_limit: int = 200
    tail_frames: int = 25
    voiced_frames: int = 20

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ConfigError(f"{field.name} is {getattr(self, field.name)}; it must be at least 1")
        if self.keep_frames >= self.pause_after_frames or self.pause_after_frames > self.limit_frames:
            raise ConfigError(
                f"keep_frames ({self.keep_frames}) < pause_after_frames ({self.pause_after_frames}) <= limit_frames "
                f"({self.limit_frames}) must hold"
            )
