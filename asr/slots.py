"""A fixed pool of slots: many streams through one recogniser, a block of each at a time.

A stream owns a row of the state for as long as it lives. Rows that have no block ready idle; nothing is stacked, copied
or padded per stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypedDict, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from asr.answers import SOURCES
from asr.config import ChunkSetting, RowSettings, SessionSettings
from asr.cross_recogniser import CrossRecogniser
from asr.decode import StepOutput, TokenScorer, decode_block
from asr.drafting import Drafting, drafter_of
from asr.errors import AudioFormatError, ConfigError, InvalidSamples, Overloaded
from asr.model import Model
from asr.recogniser import Recogniser
from asr.resample import Samples
from asr.shortcut import shortcut_of
from asr.state import nbytes
from asr.text import WordAssembler
from asr.units import FRAMES_PER_STEP, STEP_SAMPLES
from asr.words import DraftCount

__all__ = ["HEARING_STEPS", "Hearing", "RowResult", "RowStep", "Steerable", "StreamEngine"]


@runtime_checkable
class Steerable(Protocol):
    """A scorer that may give each stream other scores; what it is steered by is its own matter."""

    def steer(self, row: int, steering: Any) -> None:
        """Steer a row by something else, from its next step on; None: by what the scorer has for everybody."""
        ...


@runtime_checkable
class Hearing(Protocol):
    """A scorer whose scores depend on what the CTC head hears; where there is no head it is told nothing."""

    def hear(self, row: int, log_probs: Tensor) -> None:
        """What holds for a row's steps until the next call.

        Args:
            row: a slot.
            log_probs: [W, V'+1] of the newest steps heard, newest last.
        """
        ...


HEARING_STEPS = 40
"""Steps before a block that a scorer hears of: the longest delay, and a phrase that was being said then."""


@dataclass(frozen=True, slots=True)
class RowStep:
    """One step of one row: see `asr.decode.StepOutput`."""

    token: int
    probability: float
    frame: int
    closes: bool
    decoder_rows: int


@dataclass(frozen=True, kw_only=True)
class RowResult:
    """What a block of one row gave.

    Attributes:
        steps: the block's, in order.
        re_anchors: of this row since its stream began.
        drafts: what this row's drafts came to, by drafter.
        labels: the CTC head's best label of each of the newest steps heard, newest last; empty without a head.
        log_probs: [W, V'+1] all it says of them; None without a head.
    """

    steps: tuple[RowStep, ...]
    re_anchors: int
    drafts: Mapping[str, DraftCount] = field(default_factory=dict)
    labels: tuple[int, ...] = ()
    log_probs: Tensor | None = None


class _Heard(TypedDict, total=False):
    labels: tuple[int, ...]
    log_probs: Tensor


class StreamEngine:
    """One recogniser and the state of up to `slots` streams.

    Args:
        model: what `asr.load` gave.
        slots: streams that may live at once.
        chunks: the chunk settings that streams may have; memory is laid out for the largest. None: all of the model's.
        scorer: fused scores, of all its streams; None: none.
        drafting: how the decoder is spared.

    Raises:
        ConfigError: if `slots` is below 1 or `chunks` is empty.
    """

    def __init__(
        self,
        model: Model,
        *,
        slots: int,
        chunks: Sequence[ChunkSetting] | None = None,
        scorer: TokenScorer | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        limits = model.config.limits
        chunks = limits.chunks if chunks is None else tuple(chunks)
        if slots < 1 or not chunks:
            raise ConfigError(f"an engine needs at least 1 slot and 1 chunk setting; got {slots} and {len(chunks)}")
        self.model, self.slots = model, slots
        self.chunks = chunks
        self.drafting = drafting or Drafting()
        self.drafter = drafter_of(model, self.drafting)
        self._shortcut = shortcut_of(model, self.drafting)
        self._least_probability = None if self.drafting.mode == "exact" else self.drafting.least_probability
        self._scorer = scorer
        self._scorer_states = None if scorer is None else scorer.init_states(slots)
        self.assembler = WordAssembler(model.vocabulary, model.config.vocabulary)
        self._recogniser = cast(Recogniser[Any], model.recogniser)
        self._device = model.device
        self._rows: list[SessionSettings | None] = [None] * slots
        self._idle = SessionSettings(chunk=chunks[0], delay_steps=limits.delays[0])
        with torch.inference_mode():
            self._state = self._recogniser.init_state(
                slots,
                max_chunk_steps=max(chunk.chunk_steps for chunk in chunks),
                max_right=max(chunk.right_frames for chunk in chunks),
                max_silence=max(chunk.silence_frames for chunk in chunks),
            )
        self._settings = self._stacked()

    @property
    def free(self) -> int:
        """Slots without a stream."""
        return self._rows.count(None)

    @property
    def state_bytes(self) -> int:
        """Bytes of all streams' state; it never changes."""
        return nbytes(self._state)

    def _stacked(self) -> RowSettings:
        return RowSettings.stack([row or self._idle for row in self._rows], self._device)

    def acquire(self, settings: SessionSettings, steering: object = None) -> int:
        """A slot for a new stream: its row, fresh.

        Args:
            settings: delay and chunk.
            steering: see `steer`.

        Raises:
            Overloaded: if every slot is taken.
            ConfigError: if the engine was not laid out for the chunk, or its scorer cannot be steered.
        """
        if settings.chunk not in self.chunks:
            raise ConfigError(f"this engine was laid out for {self.chunks}; {settings.chunk} was asked for")
        if not self.free:
            raise Overloaded(f"all {self.slots} slots are taken; close a stream, or make an engine with more")
        row = self._rows.index(None)
        self._steer(row, steering)
        with torch.inference_mode():
            self._state = self._recogniser.reset(self._state, torch.tensor([row], device=self._device))
        if self._scorer is not None and self._scorer_states is not None:
            self._scorer_states = self._scorer_states.clone()
            self._scorer_states[row] = self._scorer.init_states(1)[0]
        self._rows[row] = settings
        self._settings = self._stacked()
        return row

    def change_delay(self, row: int, delay_steps: int) -> None:
        """Another delay τ for a row, from its next block on.

        Raises:
            ConfigError: if no stream has it.
        """
        self._rows[row] = replace(self._owner(row), delay_steps=delay_steps)
        self._settings = self._stacked()

    def steer(self, row: int, steering: object) -> None:
        """Let the scorer steer a row by something else, from its next step on.

        Args:
            row: of a stream.
            steering: what the engine's scorer takes; None: what it has for everybody.

        Raises:
            ConfigError: if no stream has the row, or the scorer cannot be steered so.
        """
        self._owner(row)
        self._steer(row, steering)

    def _steer(self, row: int, steering: object) -> None:
        if isinstance(self._scorer, Steerable):
            self._scorer.steer(row, steering)
        elif steering is not None:
            raise ConfigError("this engine's streams cannot be steered; make it with a scorer such as lm_fusion's")

    @property
    def scorer(self) -> TokenScorer | None:
        """As given."""
        return self._scorer

    def release(self, row: int) -> None:
        """Give a slot back.

        Raises:
            ConfigError: if no stream has it.
        """
        self._owner(row)
        self._rows[row] = None

    def _owner(self, row: int) -> SessionSettings:
        settings = self._rows[row] if 0 <= row < self.slots else None
        if settings is None:
            raise ConfigError(f"row {row} belongs to no stream; acquire one of the {self.slots} slots")
        return settings

    def ask_re_anchor(self, row: int) -> None:
        """Let the row start from a new anchor at its next block.

        Raises:
            ConfigError: if no stream has it.
        """
        self._owner(row)
        with torch.inference_mode():
            self._state = self._recogniser.ask_re_anchor(self._state, torch.tensor([row], device=self._device))

    def step(self, blocks: Mapping[int, Samples]) -> dict[int, RowResult]:
        """One block of every row that has one, decoded in one batch; the other rows idle.

        Args:
            blocks: row to [N] samples at 16 kHz, N whole steps, at most the row's chunk.
        Returns:
            row to what its steps said.
        Raises:
            ConfigError: if a row belongs to no stream.
            AudioFormatError: if a block is no whole number of steps, or longer than its row's chunk.
            InvalidSamples: if one holds NaN or infinity. No row has moved then.
        """
        for row, samples in blocks.items():
            self._check(row, samples)
        if not blocks:
            return {}
        longest = max(len(samples) for samples in blocks.values())
        batch = np.zeros((self.slots, longest), dtype=np.float32)
        lens = np.zeros(self.slots, dtype=np.int64)
        for row, samples in blocks.items():
            batch[row, : len(samples)] = samples
            lens[row] = len(samples)
        with torch.inference_mode():
            outputs, self._state, self._scorer_states = decode_block(
                self._recogniser,
                torch.from_numpy(batch).to(self._device),
                torch.from_numpy(lens).to(self._device),
                self._settings,
                self._state,
                self._scorer,
                self._scorer_states,
                self.drafter,
                self._least_probability,
                self._shortcut,
                lambda state: self._tell(state, {row: len(samples) // STEP_SAMPLES for row, samples in blocks.items()}),
            )
            re_anchors: list[int] = self._state.re_anchors.tolist()
            heard = self._heard()
        columns, drafts = _columns(outputs), _drafts(outputs, self.slots)
        return {
            row: RowResult(
                steps=columns[row][: len(samples) // STEP_SAMPLES],
                re_anchors=re_anchors[row],
                drafts=drafts[row],
                **heard[row],
            )
            for row, samples in blocks.items()
        }

    def _tell(self, state: Any, steps: Mapping[int, int]) -> None:
        """Lets the scorer hear what the CTC head said of a block and of what came before, `steps` of each row's."""
        recogniser = self.model.recogniser
        if (
            not isinstance(self._scorer, Hearing)
            or not isinstance(recogniser, CrossRecogniser)
            or recogniser.ctc is None
        ):
            return
        # Of what is remembered, as much as an engine of any layout remembers: a stream must not hear its neighbours'.
        before = min(HEARING_STEPS, recogniser.anchors.keep_frames // FRAMES_PER_STEP)
        known, said = state.preview.window.tolist(), state.preview.log_probs
        for row, count in steps.items():
            self._scorer.hear(row, said[row, said.shape[1] - min(known[row], before + count) :])

    def _heard(self) -> list[_Heard]:
        """What the CTC head said of each row's newest steps."""
        recogniser = self.model.recogniser
        if not isinstance(recogniser, CrossRecogniser) or recogniser.ctc is None:
            return [_Heard() for _ in range(self.slots)]
        preview = self._state.preview
        labels = preview.labels.tolist()
        return [_Heard(labels=tuple(row), log_probs=preview.log_probs[at]) for at, row in enumerate(labels)]

    def _check(self, row: int, samples: Samples) -> None:
        most = self._owner(row).chunk.chunk_steps * STEP_SAMPLES
        if samples.ndim != 1 or not len(samples) or len(samples) % STEP_SAMPLES or len(samples) > most:
            raise AudioFormatError(
                f"row {row} has a block of shape {samples.shape}; [N] with N a multiple of {STEP_SAMPLES}, "
                f"{STEP_SAMPLES} to {most}, is needed"
            )
        if not np.isfinite(samples).all():
            raise InvalidSamples(f"row {row} has a block with NaN or infinity; samples must be finite")


def _columns(outputs: list[StepOutput]) -> list[tuple[RowStep, ...]]:
    """Each row's steps of a block."""
    fields = (
        torch.stack([output.tokens for output in outputs], 1).tolist(),
        torch.stack([output.probability for output in outputs], 1).tolist(),
        torch.stack([output.frame for output in outputs], 1).tolist(),
        torch.stack([output.closes for output in outputs], 1).tolist(),
        torch.stack([output.decoder_rows for output in outputs], 1).tolist(),
    )
    return [tuple(RowStep(*step) for step in zip(*row, strict=True)) for row in zip(*fields, strict=True)]


def _drafts(outputs: list[StepOutput], slots: int) -> list[dict[str, DraftCount]]:
    """What each row's drafts of a block came to."""
    found: list[dict[str, DraftCount]] = [{} for _ in range(slots)]

    def count(row: int, source: int, place: int, *, accepted: bool) -> None:
        name = SOURCES[source]
        found[row][name] = found[row].get(name, DraftCount()) + DraftCount.at(place, accepted=accepted)

    for output in outputs:
        if output.draft is not None:
            sources = output.draft.source.tolist()
            for row, length in enumerate(output.draft.lens.tolist()):
                for place in range(length):
                    count(row, sources[row][place], place, accepted=False)
        if output.expected is not None:
            for row in output.agreed.nonzero()[:, 0].tolist():
                count(row, int(output.expected.source[row]), int(output.expected.place[row]), accepted=True)
    return found
