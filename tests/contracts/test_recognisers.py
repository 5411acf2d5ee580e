"""The laws of `tests/contracts/streaming.py` over both families' whole recognisers, through the decode loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.config import SessionSettings
from asr.recogniser import WAIT
from asr.units import STEP_SAMPLES
from tests import tiny
from tests.contracts import streaming as laws
from tests.contracts.recogniser_laws import (
    STILL,
    check_additive_offline,
    check_cross_offline,
    check_re_anchored,
    drafted,
)
from tests.contracts.recogniser_parts import AdditivePart, PreviewPart, RecogniserPart

few = settings(max_examples=2, deadline=None, derandomize=True)

CROSS = (tiny.settings(1, 1, 8, 4), tiny.settings(2, 3, 4, 0), tiny.settings(1, 2, 0, 0))
"""Different delays, chunks, right contexts and silences in one batch; one of them is the plain chunked encoder."""
ADDITIVE = (tiny.settings(2, 1), tiny.settings(5, 3), tiny.settings(2, 4))


def cross(*chosen: SessionSettings) -> RecogniserPart:
    return RecogniserPart(tiny.tiny_cross(), *(chosen or CROSS), causal=False)


def additive(*chosen: SessionSettings) -> AdditivePart:
    return AdditivePart(*(chosen or ADDITIVE))


FAMILIES = pytest.mark.parametrize("family", [cross, additive])
Family = Callable[..., Any]


def blocks(part: RecogniserPart, row: int, count: int) -> list[int]:
    """Sizes of `count` whole blocks of a row, and one that a flush cut short."""
    steps = part.settings[row].chunk.chunk_steps
    return [STEP_SAMPLES * steps] * count + [STEP_SAMPLES]


# -- both families -----------------------------------------------------------------------------------------------------


@FAMILIES
def test_the_recogniser_under_test_speaks_and_waits(family: Family) -> None:
    part, waits = family(), 0
    for row in range(3):
        sizes = blocks(part, row, 30)
        said = laws.fresh(part.alone(row), part.input(sum(sizes), 20 + row), sizes)[:, 0]
        assert len(set(said.tolist())) >= 4
        waits += int((said == WAIT).sum())
    assert waits > 10


@FAMILIES
@few
@given(turns=st.lists(st.tuples(*[st.booleans()] * 3), min_size=4, max_size=30))
def test_rows_of_different_chunks_in_any_turns_equal_the_rows_alone(
    family: Family, turns: list[tuple[bool, ...]]
) -> None:
    part = family()
    sizes = [blocks(part, row, count) for row, count in enumerate((20, 9, 13))]
    laws.check_idle(part, [part.input(sum(size), 20 + row) for row, size in enumerate(sizes)], sizes, turns)


@FAMILIES
def test_a_row_in_a_ragged_batch_equals_the_row_alone(family: Family) -> None:
    part = family()
    sizes = [blocks(part, row, 22 - 5 * row) for row in range(3)]
    laws.check_isolation(part, [part.input(sum(size), 23 + row) for row, size in enumerate(sizes)], sizes)


@FAMILIES
@pytest.mark.parametrize("old_blocks", [1, 27])
def test_a_reused_row_equals_a_fresh_one(family: Family, old_blocks: int) -> None:
    part = family()
    sizes = [blocks(part, 0, old_blocks), blocks(part, 0, 18), blocks(part, 1, 5)[:-1], blocks(part, 1, 6)]
    xs = [part.input(sum(size), 26 + i) for i, size in enumerate((sizes[0], sizes[1], sizes[2] + sizes[3]))]
    laws.check_reset(part, *xs, sizes)


@FAMILIES
@few
@given(at=st.integers(0, 11))
def test_a_discarded_block_leaves_no_trace(family: Family, at: int) -> None:
    part = family().alone(0)
    sizes = blocks(part, 0, 11)
    laws.check_discard(part, part.input(sum(sizes), 30), sizes, part.input(STEP_SAMPLES, 31), [STEP_SAMPLES], at)


@FAMILIES
@few
@given(row=st.integers(0, 2), step=st.integers(1, 30))
def test_nothing_changes_before_what_was_heard(family: Family, row: int, step: int) -> None:
    part = family().alone(row)
    sizes = blocks(part, 0, 12)
    change_from = min(sum(sizes), step * STEP_SAMPLES)
    laws.check_causality(part, part.input(sum(sizes), 33), sizes, change_from)


@FAMILIES
@pytest.mark.parametrize("row", [0, 1, 2])
def test_memory_is_constant_across_re_anchors(family: Family, row: int) -> None:
    part = family().alone(row)
    sizes = blocks(part, 0, 88 // part.settings[0].chunk.chunk_steps)
    state = laws.check_memory(part, part.input(sum(sizes), 34), sizes)
    if family is cross:
        assert int(state.re_anchors[0]) >= 2


@pytest.mark.parametrize(
    ("family", "chosen"),
    [(cross, tiny.settings(1, 4, 8, 4)), (cross, tiny.settings(1, 4)), (additive, tiny.settings(1, 4))],
)
def test_a_discarded_draft_of_a_block_leaves_no_trace(family: Family, chosen: SessionSettings) -> None:
    model = family().model
    x = tiny.sound(STEP_SAMPLES * 36, 36)
    without = drafted(model, x, chosen, None)
    assert drafted(model, x, chosen, 1) == without
    assert drafted(model, x, chosen, 2) == without


# -- additive ----------------------------------------------------------------------------------------------------------


@few
@given(sizes=laws.partitions(total=STEP_SAMPLES * 24, largest=STEP_SAMPLES * 4, grain=STEP_SAMPLES))
def test_additive_blocks_of_any_size_give_the_same_outputs(sizes: list[int]) -> None:
    part = additive(ADDITIVE[2])
    laws.check_chunking(part, part.input(sum(sizes), 40), sizes)


@few
@given(sizes=laws.partitions(total=STEP_SAMPLES * 24, largest=STEP_SAMPLES * 4, grain=STEP_SAMPLES))
def test_additive_far_from_its_start_behaves_as_near_it(sizes: list[int]) -> None:
    part = additive(ADDITIVE[2])
    laws.check_far(part, part.input(sum(sizes), 41), sizes)


@pytest.mark.parametrize("steps", [1, 3])
def test_additive_streaming_equals_the_training_forward(steps: int) -> None:
    check_additive_offline(tiny.tiny_additive(), tiny.rows_of(*ADDITIVE), steps)


# -- cross -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [tiny.settings(1, 1), tiny.settings(1, 3), tiny.settings(1, 2, 8, 4)])
def test_cross_streaming_equals_the_training_forward(chosen: SessionSettings) -> None:
    check_cross_offline(tiny.tiny_cross(anchors=STILL, gate=tiny.EverySecondStep()), chosen, 18)


def test_the_preview_keeps_the_laws_of_rows_and_memory() -> None:
    # Room for the largest chunk alone makes the window that is shown as long as in the batch.
    chosen = (tiny.settings(1, 2, 8, 4), tiny.settings(2, 2, 4, 0))
    part = PreviewPart(tiny.tiny_cross(ctc=tiny.tiny_ctc()), *chosen, causal=False)
    sizes = [blocks(part, 0, 16), blocks(part, 1, 13)]
    xs = [part.input(sum(size), 50 + b) for b, size in enumerate(sizes)]
    laws.check_isolation(part, xs, sizes)
    laws.check_idle(part, xs, sizes, [(True, False), (False, True), (True, True)] * 8)
    halves = [sizes[1][:4], sizes[1][4:]]
    laws.check_reset(part, xs[0], part.input(sum(sizes[0]), 52), xs[1], [sizes[0], sizes[0], *halves])
    laws.check_memory(part.alone(0), xs[0], sizes[0])


@pytest.mark.parametrize("chosen", [tiny.settings(1, 2, 8, 4), tiny.settings(1, 2)])
def test_a_re_anchored_stream_equals_a_fresh_one_from_the_anchor(
    chosen: SessionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_re_anchored(tiny.tiny_cross(anchors=STILL, gate=tiny.EverySecondStep()), chosen, monkeypatch)
