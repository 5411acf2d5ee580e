"""Numba loops of the phrase kernels for the CPU; see kernels.phrases for what they compute.

Apart from it, so that numba is imported only where this backend is asked for.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


@numba.njit(cache=True, nogil=True)
def scores(
    first_arc: Ints, label: Ints, target: Ints, fail: Ints, credit: Floats, live: Floats, nodes: Ints, size: int
) -> Floats:
    """[k, V]."""
    out = np.empty((nodes.shape[0], size), dtype=np.float32)
    for row in range(nodes.shape[0]):
        back = live[nodes[row]]
        out[row] = np.float32(0) - back
        length = 1
        node = fail[nodes[row]]
        while node >= 0:
            length += 1
            node = fail[node]
        for level in range(length - 1, -1, -1):  # from the shortest text to the longest, which holds
            node = nodes[row]
            for _ in range(level):
                node = fail[node]
            for arc in range(first_arc[node], first_arc[node + 1]):
                out[row, label[arc]] = credit[target[arc]] - back
    return out


@numba.njit(cache=True, nogil=True)
def advance(
    first_arc: Ints, label: Ints, target: Ints, fail: Ints, opens: Flags, nodes: Ints, tokens: Ints, roots: Ints
) -> Ints:
    """[k]."""
    after = np.empty_like(nodes)
    for row in range(nodes.shape[0]):
        token, node = tokens[row], nodes[row]
        after[row] = roots[row] + (0 if opens[token] else 1)
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
                after[row] = target[low]
                break
            node = fail[node]
    return after
