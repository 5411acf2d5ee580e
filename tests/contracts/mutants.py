"""How a mutant is made, and the laws that it has to break, each on inputs of its own."""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from asr.units import STEP_SAMPLES
from tests import tiny
from tests.contracts import streaming as laws
from tests.contracts.draft_laws import by_chance, check_exact, right, wrong
from tests.contracts.parts import (
    EncoderPart,
)
from tests.contracts.recogniser_laws import (
    STILL,
    check_additive_offline,
    check_cross_offline,
    check_re_anchored,
)
from tests.contracts.recogniser_parts import AdditivePart, RecogniserPart

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


def cross_drafts(_: Patch) -> None:
    chosen = (tiny.settings(1, 4, 8, 4), tiny.settings(2, 3))
    check_exact(tiny.tiny_cross(gate=tiny.EverySecondStep()), _sounds(2), chosen, (right, wrong, by_chance))


def additive_drafts(_: Patch) -> None:
    chosen = (tiny.settings(2, 4), tiny.settings(5, 3), tiny.settings(2, 1))
    check_exact(tiny.tiny_additive(), _sounds(3), chosen, (right, wrong, by_chance))


def _sounds(count: int) -> list[Tensor]:
    return [tiny.sound(STEP_SAMPLES * 25, 81 + seed) for seed in range(count)]
