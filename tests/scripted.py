"""A recogniser whose speech is known: the loudness of a step says which piece is spoken in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from asr.config import RowSettings
from asr.model import Model
from asr.recogniser import WAIT, RowOutput
from asr.resample import Samples
from asr.units import FRAMES_PER_STEP, STEP_SAMPLES
from asr.vocabulary import Vocabulary
from tests.tiny_model import cross_config, write_tokenizer

LATCH, LOOP = 998, 999
"""Codes after which nothing is written any more, or the newest piece again and again, until a new anchor."""
KEPT = 64


@dataclass(frozen=True)
class ScriptedState:
    """Attributes: codes: [B, KEPT] of the newest steps, newest last; fault: [B] 0, LATCH or LOOP; the rest: [B]."""

    codes: Tensor
    heard: Tensor
    clock: Tensor
    fault: Tensor
    newest: Tensor
    asked: Tensor
    re_anchors: Tensor


class ScriptedRecogniser(nn.Module):
    """Writes the piece of step t at step t + τ; it calls no decoder, so that there is nothing to draft."""

    waits_take_rows = True

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.nothing = nn.Parameter(torch.zeros(1))
        self.register_buffer("banned", torch.zeros(vocabulary, dtype=torch.bool))

    def init_state(self, batch: int, *, max_chunk_steps: int, max_right: int, max_silence: int) -> ScriptedState:
        zero = torch.zeros(batch, dtype=torch.int64)
        return ScriptedState(torch.zeros(batch, KEPT, dtype=torch.int64), zero, zero, zero, zero, zero.bool(), zero)

    def reset(self, state: ScriptedState, rows: Tensor) -> ScriptedState:
        return ScriptedState(*(getattr(state, name).index_fill(0, rows, 0) for name in state.__dataclass_fields__))

    def listen(self, samples: Tensor, lens: Tensor, settings: RowSettings, state: ScriptedState) -> ScriptedState:
        new = (samples.unflatten(1, (-1, STEP_SAMPLES)).abs().amax(2) * 1000).round().long()
        steps = lens // STEP_SAMPLES
        both = torch.cat([state.codes, new], 1)
        at = steps[:, None] + torch.arange(KEPT)
        anchor = state.asked & (steps > 0)
        return replace(
            state,
            codes=both.gather(1, at),
            heard=state.heard + steps,
            fault=state.fault.masked_fill(anchor, 0),
            asked=state.asked & ~anchor,
            re_anchors=state.re_anchors + anchor.long(),
        )

    def needs_call(self, active: Tensor, state: ScriptedState) -> Tensor:
        return torch.zeros_like(active)

    def row(self, active: Tensor, settings: RowSettings, state: ScriptedState) -> tuple[RowOutput, ScriptedState]:
        spoken = state.clock - settings.delay
        at = KEPT - (state.heard - spoken)
        codes = state.codes.gather(1, at.clamp(min=0)[:, None])[:, 0]
        codes = torch.where((spoken >= 0) & (at >= 0), codes, 0)
        fault = torch.where((codes >= LATCH) & active, codes, state.fault)
        token = torch.where(codes >= LATCH, 0, codes) - 1
        token = torch.where(fault == LOOP, state.newest, token.masked_fill(fault == LATCH, WAIT))
        logits = torch.zeros(len(token), self.vocabulary)
        logits.scatter_(1, token.clamp(min=0)[:, None], 10.0)
        waits = token == WAIT
        output = RowOutput(~waits & active, logits, spoken.clamp(min=0) * FRAMES_PER_STEP + 3, waits, active.long())
        return output, replace(state, fault=fault)

    def accept(self, active: Tensor, tokens: Tensor, output: RowOutput, state: ScriptedState) -> ScriptedState:
        newest = torch.where(active & (tokens != WAIT), tokens, state.newest)
        return replace(state, clock=state.clock + active.long(), newest=newest)

    def rest(self, state: ScriptedState) -> ScriptedState:
        return state

    def ask_re_anchor(self, state: ScriptedState, rows: Tensor) -> ScriptedState:
        return replace(state, asked=state.asked.index_fill(0, rows, True))


def scripted_model(folder: Path) -> Model:
    vocabulary = Vocabulary(write_tokenizer(folder / "tokenizer.json"))
    config = cross_config(vocabulary)
    return Model(name="scripted", config=config, recogniser=ScriptedRecogniser(vocabulary.size), vocabulary=vocabulary)


def codes(*steps: int) -> Samples:
    """[1280 · steps] sound that says these codes; 0 is silence."""
    return np.repeat(np.array(steps, dtype=np.float32) / 1000, STEP_SAMPLES)


def say(model: Model, text: str, *, lead: int = 4, gap: int = 2) -> Samples:
    """The sound of a text: `lead` silent steps, then a step a piece, `gap` silent steps between words."""
    steps = [0] * lead
    for number, word in enumerate(text.split()):
        steps += [0] * gap if number else []
        steps += [piece + 1 for piece in model.vocabulary.encode(" " + word)]
    return codes(*steps)
