"""Numba CUDA loops of the n-gram kernels; see kernels.ngram for what they compute.

Apart from it, so that numba's CUDA part is imported only where this backend is asked for. Under NUMBA_ENABLE_CUDASIM=1
they run in numba's simulator, on tensors of the CPU.
"""

from __future__ import annotations

from typing import Any

import numba.core.config
import numba.cuda
import numpy as np
import torch
from numba import float32, int64
from torch import Tensor

from kernels.ngram import DEEPEST

cuda: Any = numba.cuda  # its stubs know neither kernels nor the simulator
SIMULATED = bool(vars(numba.core.config)["ENABLE_CUDASIM"])
THREADS = 32 if SIMULATED else 512  # the simulator makes each a thread of the system

if not SIMULATED and not cuda.is_available():
    raise ImportError("numba finds no CUDA device (NUMBA_ENABLE_CUDASIM=1 simulates one)")


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


def _launch(kernel: Any, blocks: int, tensors: list[Tensor]) -> None:
    """Runs a kernel on the tensors' device, in the order of PyTorch's own work there."""
    device = tensors[0].device
    if not blocks:
        return
    if SIMULATED:
        kernel[blocks, THREADS](*(tensor.numpy() for tensor in tensors))
        return
    if device.type != "cuda":
        raise ValueError(f"the CUDA backend needs tensors on a CUDA device, got {device}")
    with torch.cuda.device(device):
        stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
        kernel[blocks, THREADS, stream](*(cuda.as_cuda_array(tensor) for tensor in tensors))


def advance(tables: dict[str, Tensor], states: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and next states [B, L] of `states` [B]; a block of threads a row."""
    B, L = states.shape[0], tables["root_score"].shape[0]
    scores = torch.empty(B, L, dtype=torch.float32, device=states.device)
    targets = torch.empty(B, L, dtype=torch.int32, device=states.device)
    _launch(_advance, B, [*tables.values(), states.contiguous(), scores, targets])
    return scores, targets


def lookup(tables: dict[str, Tensor], states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and next states [B] of one label a state; a thread a row."""
    scores = torch.empty(states.shape[0], dtype=torch.float32, device=states.device)
    targets = torch.empty(states.shape[0], dtype=torch.int64, device=states.device)
    blocks = -(-states.shape[0] // THREADS)
    _launch(_lookup, blocks, [*tables.values(), states.contiguous(), labels.contiguous(), scores, targets])
    return scores, targets
