"""Numba loops of the word spotter for the CPU; see kernels.spotting for what they compute.

Apart from it, so that numba is imported only where this backend is asked for.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@numba.njit(cache=True, nogil=True)
def spot(drops: Floats, labels: Ints, lens: Ints, blank: int, prefix: int) -> Floats:
    """[P] of drops [W, V], what each label has less than the step's best one."""
    P, L = labels.shape
    best = np.full(P, -np.inf, dtype=np.float32)
    said = np.empty(L, dtype=np.float32)
    rested = np.empty(L, dtype=np.float32)
    for p in range(P):
        size = lens[p]
        said[:size] = -np.inf
        rested[:size] = -np.inf
        for t in range(drops.shape[0]):
            for at in range(size - 1, -1, -1):  # downwards: what it reads still belongs to t - 1
                top = said[at]
                if at == 0:
                    top = max(top, np.float32(0))
                else:
                    top = max(top, rested[at - 1])
                    if labels[p, at] != labels[p, at - 1]:
                        top = max(top, said[at - 1])
                rested[at] = max(said[at], rested[at]) + drops[t, blank]
                said[at] = top + drops[t, labels[p, at]]
            best[p] = max(best[p], said[size - 1] / np.float32(size))
        for at in range(prefix - 1, size):
            best[p] = max(best[p], max(said[at], rested[at]) / np.float32(at + 1))
    return best
