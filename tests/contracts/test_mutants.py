"""The laws bite: each of these one-line mistakes breaks one.

A mutant is a fragment of a function's source replaced by another. If the source has changed so that the fragment is
gone, the test says so: choose a new fragment for the same mistake.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from asr import frontend
from asr.adapter import Adapter
from asr.additive import AdditiveDecoder, DelayCondition
from asr.additive_recogniser import AdditiveRecogniser
from asr.blocks import Rotary
from asr.cross import CrossDecoder, CrossMemory
from asr.cross_recogniser import CrossRecogniser
from asr.encoder import Encoder
from asr.frontend import Frontend
from asr.state import KVRing
from asr.units import STEP_SAMPLES
from tests import tiny
from tests.contracts import parts
from tests.contracts import streaming as laws
from tests.contracts.parts import (
    AdapterPart,
    AdditiveDecoderPart,
    AdditivePart,
    CollapsePart,
    CrossDecoderPart,
    EncoderPart,
    FrontendPart,
    RecogniserPart,
    RightContextPart,
    RingPart,
)
from tests.contracts.recogniser_laws import (
    STILL,
    check_additive_offline,
    check_cross_offline,
    check_re_anchored,
)

Patch = pytest.MonkeyPatch
Law = Callable[[Patch], None]
Part = Callable[[], Any]


def mutate(monkeypatch: Patch, owner: Any, name: str, old: str, new: str) -> None:
    """Replaces a fragment in the source of `owner.name`."""
    member = inspect.getattr_static(owner, name)
    function = getattr(member, "__func__", member)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{name} has {source.count(old)} times {old!r}: this mutant needs a new fragment"
    module = owner if inspect.ismodule(owner) else sys.modules[owner.__module__]
    code = compile(source.replace(old, new), f"mutant of {name}", "exec", flags=__future__.annotations.compiler_flag)
    found: dict[str, Any] = {}
    exec(code, vars(module), found)
    monkeypatch.setattr(owner, name, found[name])


# -- the laws, each on inputs of its own -------------------------------------------------------------------------------


def sizes_of(part: Any) -> list[int]:
    """Chunks of every size up to the largest, 36 units of the grain or more."""
    grain, most = part.grain, part.largest // part.grain
    return [grain * size for size in [1, most, min(2, most), 1, most, min(3, most), most, most, 1, most, most, most]]


def chunking(make: Part) -> Law:
    def law(_: Patch) -> None:
        part = make()
        laws.check_chunking(part, part.input(sum(sizes_of(part)), 1), sizes_of(part))

    return law


def offline(make: Part, *, even: bool = False) -> Law:
    def law(_: Patch) -> None:
        part = make()
        sizes = [part.largest] * 9 if even else sizes_of(part)
        laws.check_offline(part, part.input(sum(sizes), 2), sizes)

    return law


def idle(make: Part) -> Law:
    def law(_: Patch) -> None:
        part = make()
        sizes = [sizes_of(part), sizes_of(part)[::-1]]
        turns = [(True, False), (False, True), (True, True), (True, False), (True, True), (False, True)] * 3
        laws.check_idle(part, [part.input(sum(size), 3 + b) for b, size in enumerate(sizes)], sizes, turns)

    return law


def isolation(make: Part) -> Law:
    def law(_: Patch) -> None:
        part = make()
        sizes = [sizes_of(part), sizes_of(part)[:-3][::-1]]
        laws.check_isolation(part, [part.input(sum(size), 5 + b) for b, size in enumerate(sizes)], sizes)

    return law


def reset(make: Part) -> Law:
    def law(_: Patch) -> None:
        part = make()
        sizes = [sizes_of(part), sizes_of(part), sizes_of(part)[:3], sizes_of(part)[3:6]]
        xs = [part.input(sum(size), 7 + i) for i, size in enumerate((sizes[0], sizes[1], sizes[2] + sizes[3]))]
        laws.check_reset(part, xs[0], xs[1], xs[2], sizes)

    return law


def discard(make: Part) -> Law:
    def law(_: Patch) -> None:
        part = make()
        sizes, draft = sizes_of(part), part.input(part.largest, 11)
        for at in (0, 4, 9):
            laws.check_discard(part, part.input(sum(sizes), 10), sizes, draft, [len(draft)], at)

    return law


def budget(make: Part) -> Law:
    def law(_: Patch) -> None:
        part = make()
        sizes = [part.grain] * 12
        laws.check_budget(part, part.input(sum(sizes), 12), sizes, part.largest)

    return law


def causality(make: Part) -> Law:
    def law(_: Patch) -> None:
        part = make()
        sizes = [part.largest] * 6
        for change_from in (part.grain, 2 * part.largest, 2 * part.largest + part.grain):
            laws.check_causality(part, part.input(sum(sizes), 13), sizes, change_from)

    return law


def far(make: Part) -> Law:
    def law(_: Patch) -> None:
        part = make()
        laws.check_far(part, part.input(sum(sizes_of(part)), 14), sizes_of(part))

    return law


def memory(make: Part) -> Law:
    def law(_: Patch) -> None:
        part = make()
        laws.check_memory(part, part.input(part.largest * 60, 15), [part.largest] * 60)

    return law


def causal() -> EncoderPart:
    return EncoderPart(tiny.tiny_causal_encoder(), chunk=4)


def whisper() -> EncoderPart:
    return EncoderPart(tiny.tiny_whisper_encoder(left_context_frames=8), chunk=4)


class Blocks(RecogniserPart):
    """The cross recogniser, fed whole blocks of one step so that any list of sizes is one of blocks."""

    grain = STEP_SAMPLES

    def alone(self, row: int) -> RecogniserPart:
        return Blocks(self.model, self.settings[row], causal=False)


def cross() -> Blocks:
    model = tiny.tiny_cross(gate=tiny.EverySecondStep())
    return Blocks(model, tiny.settings(1, 1, 8, 4), tiny.settings(2, 1), causal=False)


def additive() -> AdditivePart:
    return AdditivePart(tiny.settings(2, 4), tiny.settings(9, 4))


def cross_offline(_: Patch) -> None:
    model = tiny.tiny_cross(anchors=STILL, gate=tiny.EverySecondStep())
    check_cross_offline(model, tiny.settings(1, 3, 8, 4), 18)


def cross_re_anchored(monkeypatch: Patch) -> None:
    model = tiny.tiny_cross(anchors=STILL, gate=tiny.EverySecondStep())
    check_re_anchored(model, tiny.settings(1, 2, 8, 4), monkeypatch)


def additive_offline(_: Patch) -> None:
    check_additive_offline(tiny.tiny_additive(), tiny.rows_of(tiny.settings(2, 1), tiny.settings(9, 1)), 3)


# -- mutants -----------------------------------------------------------------------------------------------------------

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
        "left_context + slack + 1, head_dim",
        "left_context + slack, head_dim",
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
        KVRing,
        "readable",
        "(keys[rows], values[rows])",
        "(keys[: len(rows)], values[: len(rows)])",
    ),
    "cross decoder: positions begin anew": (
        offline(CrossDecoderPart),
        CrossDecoder,
        "rows",
        "positions = state.length[:, None] +",
        "positions = 0 * state.length[:, None] +",
    ),
    "cross decoder: sees the longest row's frames": (
        isolation(cross),
        CrossDecoder,
        "rows",
        "frames = memory.frames.clamp(min=1)",
        "frames = 0 * memory.frames + seen",
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
        "replace(state.row, valid=state.row.valid & ~active)",
        "state.row",
    ),
    "cross recogniser: a row's answer outlives its token": (
        cross_offline,
        CrossRecogniser,
        "accept",
        "valid=state.row.valid & ~spoke",
        "valid=state.row.valid",
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
        "row",
        "at = state.used.clamp",
        "at = (0 * state.used).clamp",
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
    mutate(monkeypatch, KVRing, "zeros", "left_context + slack + 1, head_dim", "left_context + slack, head_dim")
    mutate(monkeypatch, KVRing, "write", "if longest_unwrapped > self.capacity", "if False")
    with pytest.raises(AssertionError):
        chunking(RingPart)(monkeypatch)


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
