"""Phrase kernels: all backends are equal to the last bit, rows keep to themselves, what does not fit is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.dispatch import KernelUnavailable, dispatch
from kernels.phrases import PhraseTables

CUDA = torch.cuda.is_available()


def random_tables(seed: int, vocabulary: int = 7, lists: int = 3) -> tuple[PhraseTables, Tensor]:
    """Automata of random sequences, and the first root of each."""
    from lm_fusion.phrases_graph import Entry, build_graph, join_graphs

    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    opens = torch.arange(vocabulary) % 3 == 0
    graphs = []
    for _ in range(lists):
        entries = [
            Entry(
                tokens=tuple(number(0, vocabulary) for _ in range(number(1, 6))),
                boost=number(1, 30) / 8,
                anywhere=number(0, 2) == 0,
            )
            for _ in range(number(0, 9))
        ]
        graphs.append(build_graph(entries, opens=opens.numpy()))
    tables, offsets = join_graphs(graphs, opens)
    return tables, torch.tensor(offsets)


def check_backend(backend: str, seed: int, rows: int, device: str = "cpu") -> None:
    """Raises AssertionError where the backend's answers are not the reference's, bit for bit."""
    tables, offsets = random_tables(seed)
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(0, len(offsets), (rows,), generator=generator)
    ends = torch.tensor([*offsets[1:].tolist(), len(tables.fail)])
    nodes = offsets[which] + (torch.rand(rows, generator=generator) * (ends - offsets)[which]).long()
    tokens = torch.randint(0, tables.size, (rows,), generator=generator)
    scores = dispatch("phrases.scores", "reference")(tables, nodes)
    after = dispatch("phrases.advance", "reference")(tables, nodes, tokens, offsets[which])
    there = tables.to(torch.device(device))
    moved = [tensor.to(device) for tensor in (nodes, tokens, offsets[which])]
    found = dispatch("phrases.scores", backend)(there, moved[0]).cpu()
    assert torch.equal(found.view(torch.int32), scores.view(torch.int32))
    assert torch.equal(dispatch("phrases.advance", backend)(there, *moved).cpu(), after)


@given(seed=st.integers(0, 2**31), rows=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_numba_is_the_reference(seed: int, rows: int) -> None:
    check_backend("numba", seed, rows)


def test_cuda_is_the_reference_in_the_simulator() -> None:
    code = "from tests.kernels.test_phrases import check_backend\n"
    code += "for seed in range(12): check_backend('cuda', seed, seed % 5)"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not CUDA, reason="no CUDA device")
def test_cuda_is_the_reference_on_the_device() -> None:
    for seed in range(20):
        check_backend("cuda", seed, 3 * seed, device="cuda")
        check_backend("reference", seed, 3 * seed, device="cuda")


@pytest.mark.skipif(CUDA or bool(os.environ.get("NUMBA_ENABLE_CUDASIM")), reason="there is a CUDA device")
def test_cuda_is_not_there_without_a_device() -> None:
    with pytest.raises(KernelUnavailable, match="numba finds no CUDA device"):
        dispatch("phrases.scores", "cuda")


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_a_row_in_a_batch_is_the_row_alone(backend: str) -> None:
    tables, offsets = random_tables(4)
    kernel, advance = dispatch("phrases.scores", backend), dispatch("phrases.advance", backend)
    nodes = torch.arange(len(tables.fail))
    roots = torch.tensor([int(offsets[offsets <= node].max()) for node in nodes])
    tokens = nodes % tables.size
    together, after = kernel(tables, nodes), advance(tables, nodes, tokens, roots)
    for at in range(0, len(nodes), 5):
        one = slice(at, at + 1)
        assert torch.equal(kernel(tables, nodes[one]), together[one])
        assert torch.equal(advance(tables, nodes[one], tokens[one], roots[one]), after[one])


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_what_does_not_fit_is_refused(backend: str) -> None:
    tables, offsets = random_tables(1)
    with pytest.raises(ValueError, match=r"need \[k\] each, got \[\(2, 3\)\]"):
        dispatch("phrases.scores", backend)(tables, torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"need \[k\] each"):
        dispatch("phrases.advance", backend)(tables, offsets, offsets[:1], offsets)
    with pytest.raises(ValueError, match="nodes are on meta, the tables on cpu"):
        dispatch("phrases.scores", backend)(tables, torch.zeros(2, dtype=torch.int64, device="meta"))
