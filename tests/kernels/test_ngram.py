"""The n-gram kernels: known answers, the definition of back-off, and all backends equal to the last bit.

The CUDA backend runs in Numba's simulator, which must be chosen before Numba is imported: `test_in_the_simulator` runs
this file once more in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.dispatch import KernelUnavailable, available, dispatch
from kernels.ngram import NgramTables, best_backend
from lm_fusion.ngram import build_automaton
from tests.lm_fusion.ngram_cases import letter_units, random_ngrams

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
BACKENDS = ("reference", "numba", "cuda") if SIMULATED else ("reference", "numba")


def tables() -> NgramTables:
    """State 1 is after label 1, state 2 after 1 0, state 3 after 0 1 0; see `test_known_answers`."""
    return NgramTables(
        root_score=torch.tensor([-1.5, -2.0, -3.0]),
        root_target=torch.tensor([0, 1, 0], dtype=torch.int32),
        first_arc=torch.tensor([0, 0, 1, 2, 3]),
        label=torch.tensor([0, 2, 1], dtype=torch.int32),
        score=torch.tensor([-1.0, -0.125, -0.75]),
        target=torch.tensor([2, 0, 1], dtype=torch.int32),
        backoff_to=torch.tensor([0, 0, 0, 2], dtype=torch.int32),
        backoff_score=torch.tensor([0.0, -0.5, -0.25, -4.0]),
        depth=2,
    )


def random_tables(seed: int, order: int = 4) -> NgramTables:
    ngrams = random_ngrams(np.random.default_rng(seed), order, holes=seed % 2 == 1)
    return build_automaton(ngrams, letter_units(), source="random").tables


def advance(backend: str, tables: NgramTables, states: list[int]) -> tuple[Tensor, Tensor]:
    scores, targets = dispatch("ngram.advance", backend)(tables, torch.tensor(states, dtype=torch.int64))
    assert (scores.dtype, targets.dtype) == (torch.float32, torch.int32)
    return scores, targets


def lookup(backend: str, tables: NgramTables, states: list[int], labels: list[int]) -> tuple[Tensor, Tensor]:
    kernel = dispatch("ngram.lookup", backend)
    scores, targets = kernel(tables, torch.tensor(states, dtype=torch.int64), torch.tensor(labels, dtype=torch.int64))
    assert (scores.dtype, targets.dtype) == (torch.float32, torch.int64)
    return scores, targets


@pytest.mark.parametrize("backend", BACKENDS)
def test_known_answers(backend: str) -> None:
    scores, targets = advance(backend, tables(), [0, 1, 2, 3])
    assert scores.tolist() == [
        [-1.5, -2.0, -3.0],
        [-1.0, -2.5, -3.5],  # label 0 is known behind 1, the others cost the back-off
        [-1.75, -2.25, -0.125],
        [-5.75, -0.75, -4.125],  # label 2 is known one state further down, label 0 two
    ]
    assert targets.tolist() == [[0, 1, 0], [2, 1, 0], [0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(4))
def test_one_label_is_the_same_as_all_of_them(backend: str, seed: int) -> None:
    table = random_tables(seed)
    states = list(range(table.states))
    scores, targets = advance(backend, table, states)
    labels = list(range(table.labels)) * len(states)
    one, after = lookup(backend, table, [state for state in states for _ in range(table.labels)], labels)
    assert torch.equal(one, scores.flatten())
    assert torch.equal(after, targets.flatten().long())


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("order", range(1, 8))
def test_backends_are_equal_to_the_last_bit(backend: str, order: int) -> None:
    for seed in range(2):
        table = random_tables(seed, order)
        states = np.random.default_rng(seed).integers(table.states, size=5).tolist()
        for one, other in zip(advance("reference", table, states), advance(backend, table, states), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_in_a_batch_is_the_row_alone(backend: str) -> None:
    table = random_tables(3)
    scores, targets = advance(backend, table, [5, 0, 5, 2])
    for row, state in enumerate([5, 0, 5, 2]):
        alone, after = advance(backend, table, [state])
        assert torch.equal(alone[0], scores[row])
        assert torch.equal(after[0], targets[row])


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_in_nothing_out(backend: str) -> None:
    scores, targets = advance(backend, tables(), [])
    assert (scores.shape, targets.shape) == ((0, 3), (0, 3))
    one, after = lookup(backend, tables(), [], [])
    assert (one.shape, after.shape) == ((0,), (0,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_tables_stay_as_they_were_and_a_second_call_is_as_the_first(backend: str) -> None:
    table, before = random_tables(2), random_tables(2)
    first, second = (advance(backend, table, [1, 3]) for _ in range(2))
    assert torch.equal(first[0], second[0])
    first[0].fill_(7.0)
    first[1].fill_(7)
    assert torch.equal(advance(backend, table, [1, 3])[0], second[0])
    assert all(torch.equal(tensor, before.tensors()[name]) for name, tensor in table.tensors().items())


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_need_not_lie_side_by_side(backend: str) -> None:
    every_second = torch.tensor([1, 9, 2, 9, 3, 9])[::2]
    scores, _ = dispatch("ngram.advance", backend)(tables(), every_second)
    assert torch.equal(scores, advance(backend, tables(), [1, 2, 3])[0])
    one, _ = dispatch("ngram.lookup", backend)(tables(), every_second, torch.tensor([0, 5, 1, 5, 2, 5])[::2])
    assert one.tolist() == [-1.0, -2.25, -4.125]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_does_not_fit_is_refused(backend: str) -> None:
    with pytest.raises(ValueError, match=r"states must be of 0\.\.3, got \[4\]"):
        advance(backend, tables(), [4])
    with pytest.raises(ValueError, match=r"states must be of 0\.\.3, got \[-1\]"):
        lookup(backend, tables(), [-1], [0])
    with pytest.raises(ValueError, match=r"labels must be of 0\.\.2, got \[3\]"):
        lookup(backend, tables(), [0], [3])
    with pytest.raises(ValueError, match=r"labels must be \(2,\) int64, got \(1,\) torch.int64"):
        lookup(backend, tables(), [0, 1], [1])
    with pytest.raises(ValueError, match=r"states must be \[B\] int64, got \(1,\) torch.int32"):
        dispatch("ngram.advance", backend)(tables(), torch.zeros(1, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"states must be \[B\] int64, got \(1, 1\)"):
        dispatch("ngram.advance", backend)(tables(), torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="states are on meta, the tables on cpu"):
        dispatch("ngram.advance", backend)(tables(), torch.zeros(1, dtype=torch.int64, device="meta"))
    with pytest.raises(ValueError, match="the tables are 9 states deep, at most 8 can be used"):
        advance(backend, replace(tables(), depth=9), [0])


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one processor")
def test_rows_side_by_side_are_as_one_by_one() -> None:
    table = random_tables(1)
    states = list(range(table.states))
    alone, threads = advance("numba", table, states), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = advance("numba", table, states)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(alone[0], together[0])
    assert torch.equal(alone[1], together[1])


def test_each_device_has_its_backend() -> None:
    assert available("ngram.advance") == available("ngram.lookup") == ("cuda", "numba", "reference")
    devices = ("cpu", "cuda", "cuda:1", "mps")
    assert [best_backend(torch.device(name)) for name in devices] == ["numba", "cuda", "cuda", "reference"]


@pytest.mark.skipif(SIMULATED or torch.cuda.is_available(), reason="there is a CUDA device, or a simulated one")
def test_without_a_device_the_cuda_backend_says_so() -> None:
    with pytest.raises(
        KernelUnavailable, match=r"backend 'cuda' of kernel 'ngram\.advance' cannot be loaded: numba finds"
    ):
        dispatch("ngram.advance", "cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("backend", ["reference", "cuda"])
def test_on_a_device(backend: str) -> None:
    for seed in range(4):
        table = random_tables(seed)
        states = torch.arange(table.states)
        found = dispatch("ngram.advance", backend)(table.to("cuda"), states.cuda())
        for one, other in zip(advance("reference", table, states.tolist()), found, strict=True):
            assert torch.equal(one, other.cpu())
        labels = states % table.labels
        one, after = dispatch("ngram.lookup", backend)(table.to("cuda"), states.cuda(), labels.cuda())
        expected, target = lookup("reference", table, states.tolist(), labels.tolist())
        assert torch.equal(one.cpu(), expected)
        assert torch.equal(after.cpu(), target)


@pytest.mark.skipif(SIMULATED, reason="this is the simulator")
def test_in_the_simulator() -> None:
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cuda", __file__],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "17 passed" in run.stdout
