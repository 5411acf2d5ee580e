"""The key-value ring and the size of states."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from asr.errors import SpeculationBudgetExceeded
from asr.state import KVRing, nbytes, tensors_of


def ring(batch: int = 2, left_context: int = 3, slack: int = 2) -> KVRing:
    return KVRing.zeros(batch=batch, heads=1, head_dim=1, left_context=left_context, slack=slack)


def block(*rows: list[float]) -> Tensor:
    """[k, 1, T, 1] keys that say which position they are."""
    return torch.tensor(rows, dtype=torch.float32)[:, None, :, None]


def lens(*counts: int) -> Tensor:
    return torch.tensor(counts)


def put(state: KVRing, keys: Tensor, counts: Tensor, rows: Tensor | None = None) -> KVRing:
    state.write(keys, -keys, counts, rows)
    return state.advance(counts, rows)


def held(state: KVRing, row: int) -> list[float]:
    """Keys of the last left_context positions of a row, oldest first."""
    length = int(state.length[row])
    at = [p % state.capacity for p in range(max(0, length - state.left_context), length)]
    assert torch.equal(state.values[row, 0, at, 0], -state.keys[row, 0, at, 0])
    return state.keys[row, 0, at, 0].tolist()


def test_positions_lie_in_slots_modulo_the_capacity() -> None:
    state = ring(1)
    for start in range(1, 20, 2):
        state = put(state, block([start, start + 1]), lens(2))
        assert held(state, 0) == [p for p in range(start - 1, start + 2) if p > 0][-3:]


def test_rows_move_by_their_own_lengths_and_padding_is_not_written() -> None:
    state = ring()
    state = put(state, block([1, 2], [10, 99]), lens(2, 1))
    state = put(state, block([98, 97], [11, 12]), lens(0, 2))
    assert (held(state, 0), held(state, 1)) == ([1, 2], [10, 11, 12])
    assert state.length.tolist() == [2, 3]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_rows_are_slots_in_any_order(order: list[int]) -> None:
    state = ring()
    for start in (1, 3):
        keys = block([start, start + 1], [start + 10, start + 11])
        state = put(state, keys[order], lens(2, 2), torch.tensor(order))
    assert (held(state, 0), held(state, 1)) == ([2, 3, 4], [12, 13, 14])
    keys, _ = state.readable(0, torch.tensor([1]))
    assert torch.equal(keys, state.keys[:, :, : keys.shape[2]])


def test_one_row_may_move_alone() -> None:
    state = put(ring(), block([5.0, 6.0]), lens(2), torch.tensor([1]))
    assert (held(state, 0), held(state, 1)) == ([], [5, 6])


def test_a_block_that_does_not_fit_is_refused_and_says_why() -> None:
    state = ring(1)
    for start in (1, 3, 5):
        state = put(state, block([start, start + 1]), lens(2))
    with pytest.raises(SpeculationBudgetExceeded) as error:
        state.write(block([7, 8, 9]), block([7, 8, 9]), lens(3), None)
    assert str(error.value) == (
        "a block of 3 positions does not fit a ring of 5 slots with a left context of 3; make the ring with slack >= 3"
    )
    assert held(state, 0) == [4, 5, 6]


def test_only_valid_positions_count_against_the_budget() -> None:
    state = put(ring(), block([1, 2, 3, 4], [10, 99, 99, 99]), lens(4, 1))
    state = put(state, block([5, 99, 99, 99], [11, 12, 13, 14]), lens(1, 4))
    assert (held(state, 0), held(state, 1)) == ([3, 4, 5], [12, 13, 14])


def test_an_empty_ring_takes_as_much_as_it_has_slots() -> None:
    state = put(ring(1), block([1, 2, 3, 4, 5]), lens(5))
    assert held(state, 0) == [3, 4, 5]
    with pytest.raises(SpeculationBudgetExceeded):
        ring(1).write(torch.zeros(1, 1, 6, 1), torch.zeros(1, 1, 6, 1), lens(6), None)


def test_an_old_state_reads_what_it_read() -> None:
    old = put(ring(1), block([1, 2]), lens(2))
    put(old, block([7, 8]), lens(2))
    assert held(old, 0) == [1, 2]
    assert held(put(old, block([3, 4]), lens(2)), 0) == [2, 3, 4]


def test_a_reset_hides_without_touching_the_storage() -> None:
    state = put(ring(), block([1, 2], [10, 11]), lens(2, 2))
    emptied = state.reset(torch.tensor([0]))
    assert emptied.length.tolist() == [0, 2]
    assert emptied.keys is state.keys
    assert held(state, 0) == [1, 2]


def test_nbytes_counts_every_tensor_of_a_tree() -> None:
    @dataclass(frozen=True)
    class Tree:
        leaf: Tensor
        branch: tuple[KVRing, ...]
        name: str

    tree = Tree(torch.zeros(3, dtype=torch.int64), (ring(1), ring(1)), "not a tensor")
    assert len(tensors_of(tree)) == 7
    one_ring = sum(t.numel() * t.element_size() for t in (ring(1).keys, ring(1).values, ring(1).length))
    assert nbytes(tree) == 24 + 2 * one_ring
    assert nbytes([torch.zeros(2, dtype=torch.float16)]) == 4
