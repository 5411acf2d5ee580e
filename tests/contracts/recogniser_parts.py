"""Adapters through which the laws see whole recognisers, through the decode loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from asr.additive_recogniser import AdditiveState
from asr.config import RowSettings, SessionSettings
from asr.decode import StepOutput, decode_block
from asr.recogniser import Recogniser
from asr.units import STEP_SAMPLES
from tests import tiny
from tests.contracts.parts import _Part, moved_rings


class RecogniserPart(_Part):
    """A whole recogniser of either family through the decode loop, one settings entry a row.

    An output is a step's (token, frame, closes a word, probability).
    """

    grain = ratio = STEP_SAMPLES

    def __init__(self, model: Recogniser[Any], *settings: SessionSettings, causal: bool) -> None:
        self.model, self.settings, self.causal = model, settings, causal
        self.largest = STEP_SAMPLES * max(s.chunk.chunk_steps for s in settings)

    def alone(self, row: int) -> RecogniserPart:
        return RecogniserPart(self.model, self.settings[row], causal=self.causal)

    def input(self, time: int, seed: int) -> Tensor:
        return tiny.sound(time, seed)

    def init_state(self, batch: int, *, largest: int | None = None) -> Any:
        chunks = [s.chunk for s in self.settings]
        return self.model.init_state(
            batch,
            max_chunk_steps=(largest or self.largest) // STEP_SAMPLES,
            max_right=max(c.right_frames for c in chunks),
            max_silence=max(c.silence_frames for c in chunks),
        )

    def _rows(self, batch: int) -> RowSettings:
        return tiny.rows_of(*(self.settings[b % len(self.settings)] for b in range(batch)))

    def step(self, x: Tensor, lens: Tensor, state: Any) -> tuple[list[Tensor], Any]:
        outputs, state, _ = decode_block(self.model, x, lens, self._rows(len(x)), state)
        return [self._row(outputs, b) for b in range(len(x))], state

    @staticmethod
    def _row(outputs: list[StepOutput], b: int) -> Tensor:
        said = [
            torch.stack([o.tokens[b].double(), o.frame[b] * spoke, (o.closes[b] & ~spoke).double(), o.probability[b]])
            for o in outputs
            if o.active[b]
            for spoke in (o.tokens[b] >= 0,)
        ]
        return torch.stack(said) if said else torch.zeros(0, 4, dtype=torch.float64)

    def reset(self, state: Any, rows: Tensor) -> Any:
        return self.model.reset(state, rows)


class PreviewPart(RecogniserPart):
    """The cross recogniser's CTC preview: an output is what it shows after a block."""

    def alone(self, row: int) -> PreviewPart:
        return PreviewPart(self.model, self.settings[row], causal=False)

    def step(self, x: Tensor, lens: Tensor, state: Any) -> tuple[list[Tensor], Any]:
        _, state, _ = decode_block(self.model, x, lens, self._rows(len(x)), state)
        shown = torch.cat([state.preview.labels, state.preview.probability], 1)
        return [row[None] for row in shown], state


class AdditivePart(RecogniserPart):
    """The additive recogniser, of which the blocks may be any size."""

    def __init__(self, *settings: SessionSettings) -> None:
        self.recogniser = tiny.tiny_additive()
        super().__init__(self.recogniser, *settings, causal=True)
        self.memory = STEP_SAMPLES * self.recogniser.decoder.window_steps

    def alone(self, row: int) -> AdditivePart:
        return AdditivePart(self.settings[row])

    def moved(self, state: AdditiveState) -> AdditiveState:
        encoder, decoder = self.recogniser.encoder, self.recogniser.decoder
        return replace(
            state,
            encoder=replace(state.encoder, rings=moved_rings(state.encoder.rings, encoder.layers)),
            decoder=replace(state.decoder, rings=moved_rings(state.decoder.rings, decoder.layers)),
        )
