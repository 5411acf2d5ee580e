"""Numba CUDA loops of the phrase kernels; see kernels.phrases for what they compute.

Apart from it, so that numba's CUDA part is imported only where this backend is asked for. `kernels.cuda_launch` starts
them, in numba's simulator where that is asked for.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from kernels.cuda_launch import SIMULATED, SIMULATED_THREADS, cuda, launch

THREADS = SIMULATED_THREADS if SIMULATED else 256


@cuda.jit
def _scores(first_arc, label, target, fail, credit, live, nodes, out):  # type: ignore[no-untyped-def]
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    back = live[nodes[row]]
    for token in range(thread, out.shape[1], cuda.blockDim.x):
        out[row, token] = np.float32(0) - back
    length = 1
    node = fail[nodes[row]]
    while node >= 0:
        length += 1
        node = fail[node]
    for level in range(length - 1, -1, -1):  # from the shortest text to the longest, which holds
        cuda.syncthreads()
        node = nodes[row]
        for _ in range(level):
            node = fail[node]
        for arc in range(first_arc[node] + thread, first_arc[node + 1], cuda.blockDim.x):
            out[row, label[arc]] = credit[target[arc]] - back


@cuda.jit
def _advance(first_arc, label, target, fail, opens, nodes, tokens, roots, after):  # type: ignore[no-untyped-def]
    row = cuda.grid(1)
    if row >= nodes.shape[0]:
        return
    token, node = tokens[row], nodes[row]
    found = roots[row] + (0 if opens[token] else 1)
    while node >= 0:
        low, high = first_arc[node], first_arc[node + 1]
        end = high
        while low < high:
            middle = (low + high) // 2
            if label[middle] < token:
                low = middle + 1
            else:
                high = middle
        if low < end and label[low] == token:
            found = target[low]
            break
        node = fail[node]
    after[row] = found


def scores(tables: list[Tensor], nodes: Tensor, out: Tensor) -> None:
    """Fills out [k, V]; one block of threads a row."""
    launch(_scores, nodes.shape[0], THREADS, [*tables, nodes, out])


def advance(tables: list[Tensor], rows: list[Tensor], after: Tensor) -> None:
    """Fills after [k]; rows: nodes, tokens and roots, [k] each."""
    launch(_advance, -(-after.shape[0] // THREADS), THREADS, [*tables, *rows, after])
