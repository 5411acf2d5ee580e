"""Numba CUDA loops of the n-gram kernels; see kernels.ngram for what they compute.

Apart from it, so that numba's CUDA part is imported only where this backend is asked for. `kernels.cuda_launch` starts
them, in numba's simulator where that is asked for.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import float32, int64
from torch import Tensor

from kernels.cuda_launch import SIMULATED, SIMULATED_THREADS, cuda, launch
from kernels.ngram import DEEPEST

THREADS = SIMULATED_THREADS if SIMULATED else 512


@cuda.jit
def _advance(  # type: ignore[no-untyped-def]
    root_score, root_target, first_arc, label, score, target, backoff_to, backoff_score, states, scores, targets
):
    row, thread, width = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    way = cuda.local.array(DEEPEST, int64)
    totals = cuda.local.array(DEEPEST, float32)
    length, total = 0, np.float32(0)
    state = states[row]
    while state != 0:
        way[length], totals[length] = state, total
        length += 1
        total += backoff_score[state]
        state = backoff_to[state]
    for v in range(thread, root_score.shape[0], width):
        scores[row, v] = root_score[v] + total
        targets[row, v] = root_target[v]
    for level in range(length - 1, -1, -1):  # from the shortest history to the longest, which holds
        cuda.syncthreads()
        for arc in range(first_arc[way[level]] + thread, first_arc[way[level] + 1], width):
            scores[row, label[arc]] = score[arc] + totals[level]
            targets[row, label[arc]] = target[arc]


@cuda.jit
def _lookup(  # type: ignore[no-untyped-def]
    root_score, root_target, first_arc, label, score, target, backoff_to, backoff_score, states, labels, scores, targets
):
    row = cuda.grid(1)
    if row >= states.shape[0]:
        return
    wanted = labels[row]
    state, total = states[row], np.float32(0)
    while state != 0:
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
            return
        total += backoff_score[state]
        state = backoff_to[state]
    scores[row] = root_score[wanted] + total
    targets[row] = root_target[wanted]


def advance(tables: dict[str, Tensor], states: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and next states [B, L] of `states` [B]; a block of threads a row."""
    B, L = states.shape[0], tables["root_score"].shape[0]
    scores = torch.empty(B, L, dtype=torch.float32, device=states.device)
    targets = torch.empty(B, L, dtype=torch.int32, device=states.device)
    launch(_advance, B, THREADS, [*tables.values(), states.contiguous(), scores, targets])
    return scores, targets


def lookup(tables: dict[str, Tensor], states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and next states [B] of one label a state; a thread a row."""
    scores = torch.empty(states.shape[0], dtype=torch.float32, device=states.device)
    targets = torch.empty(states.shape[0], dtype=torch.int64, device=states.device)
    blocks = -(-states.shape[0] // THREADS)
    launch(_lookup, blocks, THREADS, [*tables.values(), states.contiguous(), labels.contiguous(), scores, targets])
    return scores, targets
