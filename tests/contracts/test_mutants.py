"""The laws bite: each of these one-line mistakes breaks one.

A mutant is a fragment of a function's source replaced by another. If the source has changed so that the fragment is
gone, the test says so: choose a new fragment for the same mistake.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from asr import frontend
from asr.adapter import Adapter
from asr.additive import AdditiveDecoder, DelayCondition
from asr.additive_recogniser import AdditiveRecogniser
from asr.answers import Answers
from asr.blocks import Attention, Rotary
from asr.cross import CrossDecoder, CrossMemory
from asr.cross_recogniser import CrossRecogniser
from asr.encoder import Encoder
from asr.frontend import Frontend
from asr.state import KVRing
from tests.contracts import parts
from tests.contracts.mutants import (
    Law,
    Patch,
    additive,
    additive_drafts,
    additive_offline,
    budget,
    causal,
    causality,
    chunking,
    cross,
    cross_drafts,
    cross_offline,
    cross_re_anchored,
    discard,
    far,
    idle,
    isolation,
    memory,
    mutate,
    offline,
    reset,
    whisper,
)
from tests.contracts.parts import (
    AdapterPart,
    AdditiveDecoderPart,
    CollapsePart,
    CrossDecoderPart,
    FrontendPart,
    RightContextPart,
    RingPart,
)

Mutant = tuple[Law, Any, str, str, str]
MUTANTS: dict[str, Mutant] = {
    "front end: the overlap is not carried": (
        chunking(FrontendPart),
        Frontend,
        "step",
        "torch.cat([state.tail, samples], 1)",
        "torch.cat([torch.zeros_like(state.tail), samples], 1)",
    ),
    "front end: the conv tail is one frame early": (
        chunking(FrontendPart),
        Frontend,
        "step",
        "conv2=_tail(first, lens // MEL_SAMPLES, 1)",
        "conv2=_tail(first, lens // MEL_SAMPLES - 1, 1)",
    ),
    "front end: tails from the padded end": (
        isolation(FrontendPart),
        frontend,
        "_tail",
        "start[:, None]",
        "(0 * start + x.shape[-1] - size)[:, None]",
    ),
    "front end: tails move while idle": (
        idle(FrontendPart),
        frontend,
        "_tail",
        "start[:, None]",
        "start.clamp(min=1)[:, None]",
    ),
    "front end: a stream begins with nothing instead of silence": (
        offline(FrontendPart),
        Frontend,
        "init_state",
        "self.silent_conv1()[None, :, None].expand(batch, -1, 1).contiguous()",
        "weight.new_zeros(batch, self.dim, 1)",
    ),
    "ring: too small by one": (
        budget(RingPart),
        KVRing,
        "zeros",
        "capacity = left_context + slack",
        "capacity = left_context + slack - 1",
    ),
    "ring: a draft one too long is taken": (
        budget(RingPart),
        KVRing,
        "write",
        "and self.left_context + count > self.capacity",
        "and self.left_context + count > self.capacity + 1",
    ),
    "ring: length written in place": (
        discard(RingPart),
        KVRing,
        "advance",
        "replace(self, length=self.length + count)",
        "replace(self, length=self.length.add_(count))",
    ),
    "ring: a reset row keeps a position": (
        reset(RingPart),
        KVRing,
        "reset",
        "index_fill(0, rows, 0)",
        "index_fill(0, rows, 1)",
    ),
    "ring: reset empties the neighbours too": (
        reset(RingPart),
        KVRing,
        "reset",
        "self.length.index_fill(0, rows, 0)",
        "0 * self.length",
    ),
    "ring: written where the longest row is": (
        isolation(RingPart),
        KVRing,
        "write",
        "slots = (self.lengths(rows)[:, None]",
        "slots = (self.lengths(rows).max()",
    ),
    "mask: slots' ages counted from the block's start": (
        chunking(RingPart),
        parts,
        "ring_mask",
        "last = end[:, None] - 1",
        "last = length[:, None]",
    ),
    "mask: window one too wide": (offline(RingPart), parts, "ring_mask", "> query - window", ">= query - window"),
    "rotary: angles in float32": (
        far(RingPart),
        Rotary,
        "forward",
        "positions[:, None, :, None].to(torch.float64) * inverse_frequency",
        "positions[:, None, :, None].to(torch.float32) * inverse_frequency.float()",
    ),
    "encoder: positions begin anew with each chunk": (
        chunking(causal),
        Encoder,
        "step",
        "positions = length[:, None] +",
        "positions = 0 * length[:, None] +",
    ),
    "encoder: every row moves by the longest": (
        idle(causal),
        Encoder,
        "step",
        "state.advance(final, rows)",
        "state.advance(0 * final + x.shape[1], rows)",
    ),
    "encoder: provisional frames become final": (
        offline(RightContextPart),
        Encoder,
        "step",
        "state.advance(final, rows)",
        "state.advance(lens, rows)",
    ),
    "encoder: causal frames see their chunk": (
        causality(causal),
        Encoder,
        "step",
        "window=self.window_frames",
        "window=None",
    ),
    "encoder: the training mask sees one chunk less": (
        offline(whisper, even=True),
        Encoder,
        "chunk_mask",
        "(start - self.left_context_frames)",
        "(start - self.left_context_frames + chunk_frames)",
    ),
    "encoder: rows take the first rows' memory": (
        idle(RightContextPart),
        Attention,
        "step",
        "keys, values, mask, rows)",
        "keys, values, mask, torch.arange(len(rows)) if rows is not None else None)",
    ),
    "cross decoder: positions begin anew": (
        offline(CrossDecoderPart),
        CrossDecoder,
        "rows",
        "positions = length[:, None] +",
        "positions = 0 * length[:, None] +",
    ),
    "cross decoder: sees the longest row's frames": (
        isolation(cross),
        CrossDecoder,
        "rows",
        "frame_mask = (torch.arange(seen, device=tokens.device) < frames[:, None])",
        "frame_mask = (torch.arange(seen, device=tokens.device) < 0 * frames[:, None] + seen)",
    ),
    "cross memory: nothing hidden after a reset": (
        reset(cross),
        CrossMemory,
        "reset",
        "return replace(self, final=self.final.index_fill(0, rows, 0), frames=self.frames.index_fill(0, rows, 0))",
        "return self",
    ),
    "cross memory: provisional frames are kept": (
        cross_offline,
        CrossMemory,
        "write",
        "final=self.final.index_copy(0, index, start + final)",
        "final=self.final.index_copy(0, index, start + lens)",
    ),
    "cross recogniser: a row's answer outlives its block": (
        cross_offline,
        CrossRecogniser,
        "listen",
        "state.row.forget(active)",
        "state.row",
    ),
    "cross recogniser: a row's answer outlives its token": (
        cross_offline,
        CrossRecogniser,
        "accept",
        "row=state.row.give(spoke, tokens)",
        "row=state.row",
    ),
    "cross recogniser: text memory survives a reset": (
        reset(cross),
        CrossRecogniser,
        "_without_text",
        "decoder=state.decoder.reset(rows)",
        "decoder=state.decoder",
    ),
    "cross recogniser: re-anchored one frame off": (
        cross_re_anchored,
        CrossRecogniser,
        "_re_anchor",
        "state.anchor.index_fill(0, one, anchor + cut)",
        "state.anchor.index_fill(0, one, anchor + cut + 1)",
    ),
    "cross recogniser: text positions go on across a re-anchoring": (
        cross_re_anchored,
        CrossRecogniser,
        "_without_text",
        "decoder=state.decoder.reset(rows)",
        "decoder=state.decoder",
    ),
    "additive: previous output survives a reset": (
        reset(additive),
        AdditiveRecogniser,
        "reset",
        "previous=state.previous.index_fill(0, rows, self.wait)",
        "previous=state.previous",
    ),
    "additive: one delay for the whole batch": (
        isolation(additive),
        DelayCondition,
        "forward",
        "self.embed(delay)",
        "self.embed(delay[:1])",
    ),
    "additive: waits are not remembered": (
        additive_offline,
        AdditiveRecogniser,
        "accept",
        "state.decoder.advance(active.long())",
        "state.decoder.advance((active & (tokens != WAIT)).long())",
    ),
    "additive: idle rows forget what they said": (
        idle(additive),
        AdditiveRecogniser,
        "accept",
        "torch.where(active, said, state.previous)",
        "said",
    ),
    "additive: every step hears the block's first": (
        chunking(additive),
        AdditiveRecogniser,
        "_call",
        "(used[:, None] + offset)",
        "(0 * used[:, None] + offset)",
    ),
    "additive decoder: training window one too wide": (
        offline(AdditiveDecoderPart),
        AdditiveDecoder,
        "forward",
        "key > query - self.window_steps",
        "key >= query - self.window_steps",
    ),
    "additive decoder: rows see later rows": (
        causality(AdditiveDecoderPart),
        AdditiveDecoder,
        "rows",
        "window=self.window_steps",
        "window=None",
    ),
    "answers: a draft is right whatever is said": (
        cross_drafts,
        Answers,
        "give",
        "(outputs == self.expected().output)",
        "(outputs == outputs)",
    ),
    "cross recogniser: a draft's answers are one row early": (
        cross_drafts,
        CrossRecogniser,
        "_call",
        "pending[:, None] - 1 + torch.arange",
        "pending[:, None] - 2 + torch.arange",
    ),
    "additive: more answers than rows that ran": (
        additive_drafts,
        AdditiveRecogniser,
        "_call",
        ", lens, draft)",
        ", (draft.lens + 1).clamp(max=count), draft)",
    ),
    "additive: a draft's rows all hear the present step": (
        additive_drafts,
        AdditiveRecogniser,
        "_call",
        "(used[:, None] + offset)",
        "(used[:, None] + 0 * offset)",
    ),
    "additive: a draft's waits are pieces": (
        additive_drafts,
        AdditiveRecogniser,
        "_call",
        "torch.where(draft.outputs == WAIT, self.wait, draft.outputs)",
        "draft.outputs",
    ),
    "adapter: frames interleaved": (
        offline(AdapterPart),
        Adapter,
        "forward",
        "frames.reshape(frames.shape[0], -1, FRAMES_PER_STEP * frames.shape[2])",
        "frames.unflatten(1, (-1, FRAMES_PER_STEP)).transpose(2, 3).flatten(2)",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_breaks_its_law(name: str, monkeypatch: Patch) -> None:
    law, owner, function, old, new = MUTANTS[name]
    mutate(monkeypatch, owner, function, old, new)
    with pytest.raises(AssertionError):
        law(monkeypatch)


def test_padding_in_a_bidirectional_block_would_be_noticed(monkeypatch: Patch) -> None:
    mutate(
        monkeypatch, sys.modules["asr.encoder"], "ring_mask", "end = length + lens.clamp(min=1)", "end = length + count"
    )
    with pytest.raises(AssertionError):
        isolation(RightContextPart)(monkeypatch)


def test_a_ring_too_small_that_nobody_checks_would_be_noticed(monkeypatch: Patch) -> None:
    mutate(monkeypatch, KVRing, "zeros", "capacity = left_context + slack", "capacity = left_context + slack - 1")
    mutate(monkeypatch, KVRing, "write", "if longest_unwrapped > self.capacity", "if False")
    with pytest.raises(AssertionError):
        chunking(RingPart)(monkeypatch)


def test_a_draft_that_overwrites_what_a_rejected_one_still_needs_would_be_noticed(monkeypatch: Patch) -> None:
    mutate(monkeypatch, AdditiveRecogniser, "init_state", "max_rows=max_chunk_steps", "max_rows=1")
    mutate(monkeypatch, KVRing, "write", "if longest_unwrapped > self.capacity", "if False")
    with pytest.raises(AssertionError):
        additive_drafts(monkeypatch)


def test_a_state_that_grows_at_re_anchors_would_be_noticed(monkeypatch: Patch) -> None:
    from torch.nn import functional as F

    right = CrossRecogniser._re_anchor

    def growing(self: CrossRecogniser, *arguments: Any) -> Any:
        state = right(self, *arguments)
        return replace(state, pending=F.pad(state.pending, (0, 1)))

    memory(cross)(monkeypatch)
    monkeypatch.setattr(CrossRecogniser, "_re_anchor", growing)
    with pytest.raises(AssertionError):
        memory(cross)(monkeypatch)


@pytest.mark.parametrize("backend", ["reference", "numba"])
@pytest.mark.parametrize("mistake", ["forgets the open label", "counts padding"])
def test_mistakes_of_the_collapse_would_be_noticed(backend: str, mistake: str) -> None:
    part = CollapsePart(backend)
    right = part.collapse

    def wrong(x: Any, lens: Any, state: Any, *, blank: int) -> Any:
        if mistake == "forgets the open label":
            return right(x, lens, replace(state, label=0 * state.label + blank), blank=blank)
        found, after = right(x, lens, state, blank=blank)
        return found, replace(after, frames=state.frames + x.shape[1])

    law = chunking if mistake == "forgets the open label" else isolation
    law(lambda: part)(pytest.MonkeyPatch())
    part.collapse = wrong
    with pytest.raises(AssertionError):
        law(lambda: part)(pytest.MonkeyPatch())


@pytest.mark.parametrize("law", {law: None for law, *_ in MUTANTS.values()})
def test_the_laws_hold_without_the_mutant(law: Law, monkeypatch: Patch) -> None:
    law(monkeypatch)
