"""The laws that every streaming part must pass (docs/design.md §5), written once, over an adapter of the part.

Time is counted in the part's input unit: samples, frames, rows or steps. A law raises AssertionError when it is broken;
`test_mutants.py` shows that it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from hypothesis import strategies as st
from torch import Tensor

from asr.errors import SpeculationBudgetExceeded
from asr.state import nbytes

State = Any
FAR = 10**7


class Part(Protocol):
    """A streaming part as the laws see it.

    Attributes:
        grain: chunks are multiples of this many inputs.
        ratio: inputs per output.
        largest: the longest chunk that `init_state` makes room for, unless told otherwise.
        padding: what fills a ragged batch up.
        tolerance: largest difference between equal outputs; ids and counts among them differ by 1 or more.
        causal: whether output j reads inputs up to (j + 1) * ratio only; if not, up to the end of its chunk.
    """

    grain: int
    ratio: int
    largest: int
    padding: float
    tolerance: float
    causal: bool

    def input(self, time: int, seed: int) -> Tensor:
        """[time, ...]."""
        ...

    def alone(self, row: int) -> Part:
        """The part as a batch of `row` alone sees it."""
        ...

    def init_state(self, batch: int, *, largest: int | None = None) -> State: ...

    def step(self, x: Tensor, lens: Tensor, state: State) -> tuple[list[Tensor], State]:
        """Inputs [B, T, ...] of which lens [B] are valid; each row's valid outputs [n, ...]."""
        ...

    def join(self, outputs: list[Tensor]) -> Tensor:
        """One row's outputs of successive steps as one."""
        ...

    def reset(self, state: State, rows: Tensor) -> State: ...


class Trained(Part, Protocol):
    """A part that has a training forward."""

    def whole(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """What the training forward says of x [time, ...], under the mask of chunks of `sizes`."""
        ...


class Relative(Part, Protocol):
    """A part whose positions have no end.

    Attributes:
        memory: inputs after which its memory is full.
    """

    memory: int

    def moved(self, state: State) -> State:
        """The same state as if the stream had begun `FAR` positions, or some more, earlier."""
        ...


# -- running -----------------------------------------------------------------------------------------------------------


@st.composite
def partitions(draw: st.DrawFn, *, total: int, largest: int, grain: int = 1) -> list[int]:
    """Chunk sizes that sum to `total`; the shortest possible and the largest are likely."""
    sizes: list[int] = []
    while (left := (total - sum(sizes)) // grain) > 0:
        most = min(left, largest // grain)
        sizes.append(grain * draw(st.one_of(st.just(1), st.just(most), st.integers(1, most))))
    return sizes


def chunks(x: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    assert sum(sizes) == x.shape[0]
    return iter(x.split(list(sizes)))


def ragged(part: Part, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one batch, the rest filled with the part's padding."""
    lens = torch.tensor([row.shape[0] for row in rows])
    x = torch.full((len(rows), int(lens.max()), *rows[0].shape[1:]), part.padding).to(rows[0].dtype)
    for b, row in enumerate(rows):
        x[b, : row.shape[0]] = row
    return x, lens


def run(part: Part, x: Tensor, sizes: Sequence[int], state: State) -> tuple[Tensor, State]:
    """One stream's outputs, chunk after chunk, in a batch of one."""
    outputs = []
    for chunk in chunks(x, sizes):
        y, state = part.step(*ragged(part, [chunk]), state)
        outputs += y
    return part.join(outputs), state


def fresh(part: Part, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Outputs of a new stream."""
    return run(part, x, sizes, part.init_state(1))[0]


def interleave(
    part: Part, xs: Sequence[Tensor], sizes: Sequence[Sequence[int]], turns: Sequence[Sequence[bool]], state: State
) -> tuple[list[Tensor], State]:
    """Several streams in one batch: turns[i][b] says whether row b takes part in call i; after them, all do."""
    waiting = [list(chunks(x, size)) for x, size in zip(xs, sizes, strict=True)]
    outputs: list[list[Tensor]] = [[] for _ in xs]
    call = 0
    while any(waiting):
        takes_part = turns[call] if call < len(turns) else [True] * len(xs)
        now = [rest.pop(0) if rest and there else x[:0] for rest, there, x in zip(waiting, takes_part, xs, strict=True)]
        call += 1
        if not any(len(chunk) for chunk in now):
            continue
        y, state = part.step(*ragged(part, now), state)
        for b, chunk in enumerate(now):
            if len(chunk):
                outputs[b].append(y[b])
    return [part.join(row) for row in outputs], state


def assert_same(part: Part, got: Tensor, expected: Tensor, law: str) -> None:
    assert got.shape == expected.shape, f"{law}: shape {tuple(got.shape)}, not {tuple(expected.shape)}"
    if got.numel():
        difference = (got.double() - expected.double()).abs().nan_to_num(torch.inf).flatten(1).amax(1)
        worst = int(difference.argmax())
        assert float(difference[worst]) <= part.tolerance, f"{law}: output {worst} differs by {difference[worst]}"


# -- laws --------------------------------------------------------------------------------------------------------------


def check_chunking(part: Part, x: Tensor, sizes: Sequence[int]) -> None:
    """1. Any chunking equals the whole."""
    whole, _ = run(part, x, [len(x)], part.init_state(1, largest=len(x)))
    assert_same(part, fresh(part, x, sizes), whole, "chunking")


def check_offline(part: Trained, x: Tensor, sizes: Sequence[int]) -> None:
    """2. Streaming equals the training forward with the chunk mask."""
    assert_same(part, fresh(part, x, sizes), part.whole(x, sizes), "offline")


def check_idle(
    part: Part, xs: Sequence[Tensor], sizes: Sequence[Sequence[int]], turns: Sequence[Sequence[bool]]
) -> None:
    """3. A row that idles in some calls says in the others what it says alone."""
    outputs, _ = interleave(part, xs, sizes, turns, part.init_state(len(xs)))
    for b, output in enumerate(outputs):
        assert_same(part, output, fresh(part.alone(b), xs[b], sizes[b]), f"idle, row {b}")


def check_isolation(part: Part, xs: Sequence[Tensor], sizes: Sequence[Sequence[int]]) -> None:
    """4. A row in a ragged batch, its padding far from zero, equals the row alone."""
    outputs, _ = interleave(part, xs, sizes, [], part.init_state(len(xs)))
    for b, output in enumerate(outputs):
        assert_same(part, output, fresh(part.alone(b), xs[b], sizes[b]), f"isolation, row {b}")


def check_reset(part: Part, old: Tensor, x: Tensor, neighbour: Tensor, sizes: Sequence[Sequence[int]]) -> None:
    """5. A reused row equals a fresh one, its neighbour notices nothing; sizes of old, x, neighbour's halves."""
    old_sizes, x_sizes, first, second = sizes
    begin = sum(first)
    state = part.init_state(2)
    (_, before), state = interleave(part, [old, neighbour[:begin]], [old_sizes, first], [], state)
    state = part.reset(state, torch.tensor([0]))
    (reused, after), state = interleave(part, [x, neighbour[begin:]], [x_sizes, second], [], state)
    assert_same(part, reused, fresh(part.alone(0), x, x_sizes), "reset")
    undisturbed = fresh(part.alone(1), neighbour, [*first, *second])
    assert_same(part, part.alone(1).join([before, after]), undisturbed, "reset, neighbour")


def check_discard(
    part: Part, x: Tensor, sizes: Sequence[int], draft: Tensor, draft_sizes: Sequence[int], at: int
) -> None:
    """6. What was tried from a kept state, within the budget, leaves no trace in it; tried before chunk `at` of x."""
    done = sum(sizes[:at])
    before, kept = run(part, x[:done], sizes[:at], part.init_state(1)) if at else (None, part.init_state(1))
    run(part, draft, draft_sizes, kept)
    after, _ = run(part, x[done:], sizes[at:], kept)
    together = after if before is None else part.join([before, after])
    assert_same(part, together, fresh(part, x, sizes), "discard")


def check_budget(part: Part, x: Tensor, sizes: Sequence[int], budget: int) -> None:
    """6. After x, a draft of `budget` inputs can be taken back and one more is refused before anything is written."""
    more = part.input(budget + part.grain, seed=99)
    kept = run(part, x, sizes, part.init_state(1))[1] if sizes else part.init_state(1)
    expected, _ = run(part, more[: part.grain], [part.grain], kept)
    try:
        part.step(*ragged(part, [more[:budget]]), kept)
    except SpeculationBudgetExceeded as error:
        raise AssertionError(f"budget: a draft of {budget}, which can be taken back, was refused") from error
    try:
        part.step(*ragged(part, [more]), kept)
    except SpeculationBudgetExceeded:
        pass
    else:
        raise AssertionError(f"budget: a draft of {len(more)} was taken, {budget} is what can be taken back")
    got, _ = run(part, more[: part.grain], [part.grain], kept)
    assert_same(part, got, expected, "budget")
    again, _ = run(part, torch.cat([x, more[: part.grain]]), [*sizes, part.grain], part.init_state(1))
    assert_same(part, got, again[len(again) - len(got) :], "budget, nothing lost")


def check_causality(part: Part, x: Tensor, sizes: Sequence[int], change_from: int) -> None:
    """7. Changing inputs after what an output may hear changes nothing up to it; and it does change what follows."""
    other = torch.cat([x[:change_from], part.input(len(x), seed=77)[change_from:]])
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    count = len(x) // part.ratio
    heard = [(j + 1) * part.ratio if part.causal else min(e for e in ends if e > j * part.ratio) for j in range(count)]
    safe = sum(h <= change_from for h in heard)
    pairs = [(fresh(part, x, sizes), fresh(part, other, sizes))]
    if hasattr(part, "whole"):
        pairs.append((part.whole(x, sizes), part.whole(other, sizes)))
    for one, two in pairs:
        assert len(one) == count
        assert_same(part, two[:safe], one[:safe], "causality")
        assert safe == count or not torch.allclose(two[safe:], one[safe:], atol=part.tolerance), "the input is ignored"


def check_far(part: Relative, x: Tensor, sizes: Sequence[int]) -> None:
    """8. A stream far from its start behaves as near it: moved there once its memory is full, it goes on as before."""
    at = next(i for i in range(len(sizes)) if sum(sizes[:i]) >= part.memory)
    done = sum(sizes[:at])
    _, state = run(part, x[:done], sizes[:at], part.init_state(1))
    far, _ = run(part, x[done:], sizes[at:], part.moved(state))
    near, _ = run(part, x[done:], sizes[at:], state)
    assert_same(part, far, near, "far")


def check_memory(part: Part, x: Tensor, sizes: Sequence[int]) -> State:
    """9. A state's size is constant; gives the last one."""
    state = part.init_state(1)
    size = nbytes(state)
    assert size > 0
    for i, chunk in enumerate(chunks(x, sizes)):
        _, state = part.step(*ragged(part, [chunk]), state)
        assert nbytes(state) == size, f"memory: {size} bytes at first, {nbytes(state)} after chunk {i}"
    return state
