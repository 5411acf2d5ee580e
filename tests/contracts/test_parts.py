"""The laws of `tests/contracts/streaming.py` over every part below the recognisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from tests.contracts import streaming as laws
from tests.contracts.parts import (
    AdapterPart,
    AdditiveDecoderPart,
    CollapsePart,
    CrossDecoderPart,
    CtcHeadPart,
    EncoderPart,
    FrontendPart,
    RightContextPart,
    RingPart,
)

few = settings(max_examples=3, deadline=None, derandomize=True)

Maker = Callable[[], Any]
ANY_CHUNKS: dict[str, Maker] = {  # parts whose outputs no chunking changes
    "frontend": FrontendPart,
    "ring": RingPart,
    "causal encoder": lambda: EncoderPart(tiny.tiny_causal_encoder(), chunk=4),
    "causal Whisper encoder": lambda: EncoderPart(tiny.tiny_causal_whisper_encoder(), chunk=4),
    "cross decoder": CrossDecoderPart,
    "additive decoder": AdditiveDecoderPart,
    "adapter": AdapterPart,
    "ctc head": CtcHeadPart,
    "collapse": lambda: CollapsePart("reference"),
    "collapse numba": lambda: CollapsePart("numba"),
}
OWN_CHUNKS: dict[str, Maker] = {  # parts for which the chunk size is part of the input
    "whisper encoder": lambda: EncoderPart(tiny.tiny_whisper_encoder(left_context_frames=8), chunk=4),
    "right context": RightContextPart,
}
ALL = ANY_CHUNKS | OWN_CHUNKS
CHUNKS = 6
"""Chunks of the longest stream here: more than the rings hold."""


def named(makers: dict[str, Maker], without: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name for name in makers if name not in without])


def sizes_for(draw: st.DataObject, name: str, total: int) -> list[int]:
    """A partition of `total` that the part may be fed."""
    part = ALL[name]()
    if name == "whisper encoder":
        return [part.largest] * (total // part.largest)
    return draw.draw(laws.partitions(total=total, largest=part.largest, grain=part.grain))


def length(part: Any, chunks: int = CHUNKS) -> int:
    return int(part.largest) * chunks


@named(ANY_CHUNKS)
@few
@given(data=st.data())
def test_any_chunking_equals_the_whole(name: str, data: st.DataObject) -> None:
    part = ANY_CHUNKS[name]()
    laws.check_chunking(part, part.input(length(part), seed=1), sizes_for(data, name, length(part)))


@named(ALL, without=("collapse", "collapse numba"))
@few
@given(data=st.data())
def test_streaming_equals_the_training_forward(name: str, data: st.DataObject) -> None:
    part = ALL[name]()
    laws.check_offline(part, part.input(length(part), seed=2), sizes_for(data, name, length(part)))


@named(ALL)
@few
@given(data=st.data())
def test_idle_rows_do_not_move(name: str, data: st.DataObject) -> None:
    part = ALL[name]()
    lengths = [length(part, 6), length(part, 4), length(part, 8)]
    turns = data.draw(st.lists(st.tuples(*[st.booleans()] * 3), max_size=12))
    xs = [part.input(time, seed=3 + b) for b, time in enumerate(lengths)]
    laws.check_idle(part, xs, [sizes_for(data, name, time) for time in lengths], turns)


@named(ALL)
@few
@given(data=st.data())
def test_a_row_in_a_ragged_batch_equals_the_row_alone(name: str, data: st.DataObject) -> None:
    part = ALL[name]()
    lengths = [length(part, 6), length(part), length(part, 7)]
    xs = [part.input(time, seed=6 + b) for b, time in enumerate(lengths)]
    laws.check_isolation(part, xs, [sizes_for(data, name, time) for time in lengths])


def test_a_row_at_the_end_of_its_positions_does_not_mind_a_longer_call() -> None:
    """The cross decoder's positions end; padding beside them is no reason to refuse the row's last tokens."""
    part = CrossDecoderPart()
    sizes = [[1] * part.decoder.text_positions, [4] * 5]
    xs = [part.input(sum(size), seed=18 + b) for b, size in enumerate(sizes)]
    laws.check_idle(part, xs, sizes, [(True, False)] * (len(sizes[0]) - 5))


@named(ALL)
@few
@given(data=st.data())
def test_a_reused_row_equals_a_fresh_one(name: str, data: st.DataObject) -> None:
    part = ALL[name]()
    time, half = length(part, 6), length(part, 3)
    sizes = [sizes_for(data, name, n) for n in (time, time, half, half)]
    laws.check_reset(part, part.input(time, 9), part.input(time, 10), part.input(2 * half, 11), sizes)


@named(ALL)
@few
@given(data=st.data())
def test_a_discarded_draft_leaves_no_trace(name: str, data: st.DataObject) -> None:
    part = ALL[name]()
    sizes = sizes_for(data, name, length(part))
    draft = data.draw(laws.partitions(total=part.largest, largest=part.largest, grain=part.grain))
    if name in OWN_CHUNKS:
        draft = [part.largest]
    at = data.draw(st.integers(0, len(sizes) - 1))
    laws.check_discard(part, part.input(length(part), 12), sizes, part.input(sum(draft), 13), draft, at)


@pytest.mark.parametrize(
    ("name", "budget", "chunks"),
    [
        ("ring", 4, 9),
        ("causal encoder", 4, 9),
        ("whisper encoder", 4, 9),
        ("right context", 4, 9),
        ("additive decoder", 4, 9),
        ("cross decoder", 48 - 4 * 9, 9),  # its positions end; until then nothing is overwritten
        ("ring", 9, 0),  # nothing has been heard: the whole ring is free
    ],
)
def test_the_budget_is_sharp_to_one_slot(name: str, budget: int, chunks: int) -> None:
    part = ALL[name]()
    laws.check_budget(part, part.input(4 * chunks, 14), [4] * chunks, budget)


@named(ALL, without=("collapse", "collapse numba"))
@few
@given(data=st.data())
def test_nothing_changes_before_what_was_heard(name: str, data: st.DataObject) -> None:
    part = ALL[name]()
    time = length(part)
    sizes = sizes_for(data, name, time)
    change_from = part.grain * data.draw(st.integers(0, time // part.grain))
    laws.check_causality(part, part.input(time, 15), sizes, change_from)


@pytest.mark.parametrize("name", ["ring", "causal encoder", "whisper encoder", "right context", "additive decoder"])
@few
@given(data=st.data())
def test_far_from_its_start_a_stream_behaves_as_near_it(name: str, data: st.DataObject) -> None:
    part = ALL[name]()
    sizes = sizes_for(data, name, length(part))
    laws.check_far(part, part.input(length(part), 16), sizes)


@named(ALL, without=("cross decoder",))
def test_memory_is_constant(name: str) -> None:
    part = ALL[name]()
    laws.check_memory(part, part.input(length(part, 40), 17), [part.largest] * 40)
