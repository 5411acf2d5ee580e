"""Numba loops of the CTC kernels; see kernels.ctc for what they compute.

Apart from it, so that numba is imported only where this backend is asked for.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@numba.njit(cache=True)
def collapse_rows(
    log_probs: npt.NDArray[np.floating], lens: Ints, open_label: Ints, open_first: Ints, frames: Ints, blank: int
) -> tuple[Ints, Ints, npt.NDArray[np.bool_], Ints, Ints]:
    """Runs [B, T, 3] of (label, first, last) padded with -1; counts, continues, and label and first after, all [B]."""
    B, T, V = log_probs.shape
    runs = np.full((B, T, 3), -1, dtype=np.int64)
    counts = np.zeros(B, dtype=np.int64)
    continues = np.zeros(B, dtype=np.bool_)
    label, first = open_label.copy(), open_first.copy()
    for b in range(B):
        for t in range(lens[b]):
            best = 0
            for v in range(1, V):
                if log_probs[b, t, v] > log_probs[b, t, best]:
                    best = v
            frame = frames[b] + t
            if best != label[b]:
                label[b], first[b] = best, frame
            elif t == 0 and best != blank:
                continues[b] = True
            if best != blank:
                if first[b] == frame or t == 0:
                    counts[b] += 1
                row = counts[b] - 1
                runs[b, row, 0], runs[b, row, 1], runs[b, row, 2] = best, first[b], frame
    return runs, counts, continues, label, first


@numba.njit(cache=True)
def viterbi_states(emitted: Floats, path_labels: Ints, blank: int) -> tuple[Ints, float]:
    """Best path [T] through the states whose scores are `emitted` [T, S], and its score."""
    T, S = emitted.shape
    states = np.zeros(T, dtype=np.int64)
    if T == 0:
        return states, 0.0
    best = np.full(S, -np.inf)
    came_from = np.zeros((T, S), dtype=np.int64)
    best[:2] = emitted[0, :2]
    for t in range(1, T):
        for s in range(S - 1, -1, -1):  # downwards: what it reads still belongs to t - 1
            top, back = best[s], 0
            if s >= 1 and best[s - 1] > top:
                top, back = best[s - 1], 1
            if s >= 2 and path_labels[s] != blank and path_labels[s] != path_labels[s - 2] and best[s - 2] > top:
                top, back = best[s - 2], 2
            best[s] = top + emitted[t, s]
            came_from[t, s] = back
    state = S - 1 if S == 1 or best[S - 1] > best[S - 2] else S - 2
    total = best[state]
    for t in range(T - 1, -1, -1):
        states[t] = state
        state -= came_from[t, state]
    return states, total
