"""The word spotter: known answers, all alignments by hand, and backends that are equal to the last bit."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from kernels.dispatch import dispatch

BLANK = 3
BACKENDS = ["reference", "numba"]


def spot(backend: str, log_probs: Tensor, sequences: list[list[int]], prefix: int = 2) -> list[float]:
    lens = torch.tensor([len(sequence) for sequence in sequences])
    labels = torch.zeros(len(sequences), int(lens.max()), dtype=torch.int64)
    for at, sequence in enumerate(sequences):
        labels[at, : len(sequence)] = torch.tensor(sequence)
    found: list[float] = dispatch("spotting.spot", backend)(
        log_probs, labels, lens, blank=BLANK, prefix=prefix
    ).tolist()
    return found


def said(*labels: int, sure: float = 8.0) -> Tensor:
    """[W, 4] of a head that hears these labels."""
    return (sure * torch.eye(4)[list(labels)]).log_softmax(-1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_said_is_heard_in_full_and_the_rest_costs(backend: str) -> None:
    heard = said(BLANK, 0, 0, BLANK, 1, 2, BLANK, BLANK)
    assert spot(backend, heard, [[0, 1, 2], [0, 1], [1]]) == [0, 0, 0]
    assert spot(backend, heard, [[0, 2]]) == [-4]  # the 1 between is 8 nats less as a blank, of two labels
    assert spot(backend, heard, [[0, 0]]) == [-4]  # a repeat needs a blank between and a second 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_beginning_counts_where_the_rest_may_still_come(backend: str) -> None:
    assert spot(backend, said(BLANK, 0, 1), [[0, 1, 2, 0]]) == [0]
    assert spot(backend, said(BLANK, 0, 1, BLANK), [[0, 1, 2, 0]]) == [0]
    assert spot(backend, said(0, 1, 0, 1, 1), [[0, 1, 2, 2]], prefix=3) == pytest.approx([-8 / 3])
    assert spot(backend, said(BLANK, BLANK, 0), [[0, 1, 2]])[0] < -3  # one label is how a hundred words begin
    assert spot(backend, said(0, 1, BLANK, 2, 2, 2), [[0, 1, 0]])[0] < -2


@pytest.mark.parametrize("backend", BACKENDS)
def test_too_few_steps_hold_nothing(backend: str) -> None:
    assert spot(backend, said(0), [[0, 1]]) == [-torch.inf]
    assert spot(backend, torch.zeros(0, 4), [[0, 1], [0]]) == [-torch.inf, -torch.inf]


def by_hand(log_probs: Tensor, sequence: list[int], prefix: int) -> float:
    """The best over all strings of labels and all places where they may begin."""
    drops = log_probs - log_probs.amax(1, keepdim=True)
    steps, best = len(drops), -torch.inf
    for first in range(steps):
        for end in range(first + 1, steps + 1):
            for path in product(range(4), repeat=end - first):
                if path[0] == BLANK:
                    continue
                merged = [x for at, x in enumerate(path) if x != BLANK and (at == 0 or path[at - 1] != x)]
                whole = merged == sequence
                begun = end == steps and len(merged) >= prefix and merged == sequence[: len(merged)]
                if whole or begun:
                    score = sum(float(drops[first + at, label]) for at, label in enumerate(path)) / len(merged)
                    best = max(best, score)
    return best


def test_the_best_of_all_alignments() -> None:
    for seed in range(4):
        log_probs = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
        for sequence in ([0], [1, 1], [0, 1, 2], [2, 1, 2, 0]):
            found = spot("reference", log_probs, [sequence])
            assert found == pytest.approx([by_hand(log_probs, sequence, 2)], abs=1e-5)


@pytest.mark.parametrize("prefix", [1, 2, 9])
def test_backends_are_equal(prefix: int) -> None:
    generator = torch.Generator().manual_seed(7)
    log_probs = (4 * torch.randn(20, 4, generator=generator)).log_softmax(-1)
    sequences = [torch.randint(0, 3, (1 + n % 6,), generator=generator).tolist() for n in range(30)]
    one, other = (spot(backend, log_probs, sequences, prefix) for backend in BACKENDS)
    assert one == other
    assert one == [spot("numba", log_probs, [sequence], prefix)[0] for sequence in sequences]  # in a batch as alone
    assert max(one) <= 0


def test_what_does_not_fit_is_refused() -> None:
    for backend in BACKENDS:
        with pytest.raises(ValueError, match="a prefix of at least 1"):
            spot(backend, said(0), [[0]], prefix=0)
        with pytest.raises(ValueError, match=r"need \[W, V\]"):
            spot(backend, said(0)[None], [[0]])
