"""Numba loops of the n-gram kernels; see kernels.ngram for what they compute.

Apart from it, so that numba is imported only where this backend is asked for.
"""

from __future__ import annotations

import threading
from typing import Any

import numba
import numba.core.config
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

MOST_THREADS = int(vars(numba.core.config)["NUMBA_NUM_THREADS"])
_one_at_a_time = threading.Lock()  # numba's plainest threading layer may not be entered twice


@numba.njit(cache=True, nogil=True)
def _advance_row(
    root_score: Floats,
    root_target: Ints,
    first_arc: Longs,
    label: Ints,
    score: Floats,
    target: Ints,
    backoff_to: Ints,
    backoff_score: Floats,
    first: np.int64,
    scores: Floats,
    targets: Ints,
) -> None:
    length, total = 0, np.float32(0)
    state = first
    while state != 0:
        total += backoff_score[state]
        state = np.int64(backoff_to[state])
        length += 1
    for v in range(root_score.shape[0]):
        scores[v] = root_score[v] + total
    targets[:] = root_target
    for level in range(length - 1, -1, -1):  # from the shortest history to the longest, which holds
        total = np.float32(0)
        state = first
        for _ in range(level):
            total += backoff_score[state]
            state = np.int64(backoff_to[state])
        for arc in range(first_arc[state], first_arc[state + 1]):
            scores[label[arc]] = score[arc] + total
            targets[label[arc]] = target[arc]


@numba.njit(cache=True, nogil=True)
def _advance_one_by_one(r, rt, first_arc, label, score, target, to, cost, states, scores, targets):  # type: ignore[no-untyped-def]
    for row in range(states.shape[0]):
        _advance_row(r, rt, first_arc, label, score, target, to, cost, states[row], scores[row], targets[row])


@numba.njit(cache=True, nogil=True, parallel=True)
def _advance_side_by_side(r, rt, first_arc, label, score, target, to, cost, states, scores, targets):  # type: ignore[no-untyped-def]
    for row in numba.prange(states.shape[0]):
        _advance_row(r, rt, first_arc, label, score, target, to, cost, states[row], scores[row], targets[row])


@numba.njit(cache=True, nogil=True)
def _lookup(
    root_score: Floats,
    root_target: Ints,
    first_arc: Longs,
    label: Ints,
    score: Floats,
    target: Ints,
    backoff_to: Ints,
    backoff_score: Floats,
    states: Longs,
    labels: Longs,
    scores: Floats,
    targets: Longs,
) -> None:
    for row in range(states.shape[0]):
        wanted = labels[row]
        state, total = states[row], np.float32(0)
        while True:
            if state == 0:
                scores[row] = root_score[wanted] + total
                targets[row] = root_target[wanted]
                break
            low, high = first_arc[state], first_arc[state + 1]
            end = high
            while low < high:
                middle = (low + high) // 2
                if label[middle] < wanted:
                    low = middle + 1
                else:
                    high = middle
            if low < end and label[low] == wanted:
                scores[row] = score[low] + total
                targets[row] = target[low]
                break
            total += backoff_score[state]
            state = np.int64(backoff_to[state])


def advance(tables: dict[str, Tensor], states: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and next states [B, L] of `states` [B], on as many threads as PyTorch may use."""
    B, L = states.shape[0], tables["root_score"].shape[0]
    scores = torch.empty(B, L, dtype=torch.float32)
    targets = torch.empty(B, L, dtype=torch.int32)
    arrays: list[Any] = [tensor.numpy() for tensor in tables.values()]
    arrays += [states.contiguous().numpy(), scores.numpy(), targets.numpy()]
    threads = min(torch.get_num_threads(), MOST_THREADS, B)
    loop: Any = _advance_side_by_side if threads > 1 else _advance_one_by_one
    if threads > 1:
        with _one_at_a_time:
            numba.set_num_threads(threads)
            loop(*arrays)
    else:  # without waking threads, which costs more than a row where the machine is busy
        loop(*arrays)
    return scores, targets


def lookup(tables: dict[str, Tensor], states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and next states [B] of one label a state."""
    scores = torch.empty(states.shape[0], dtype=torch.float32)
    targets = torch.empty(states.shape[0], dtype=torch.int64)
    arrays: list[Any] = [tensor.numpy() for tensor in tables.values()]
    loop: Any = _lookup
    loop(*arrays, states.contiguous().numpy(), labels.contiguous().numpy(), scores.numpy(), targets.numpy())
    return scores, targets
