"""CTC kernels: greedy collapse that goes on across chunks, and forced alignment.

Shapes: B streams, T frames, V labels with the blank, L target labels, N labels found. Frames are numbered from the
start of the stream. Each kernel has the backends "reference" (PyTorch) and "numba" (CPU), equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernels.dispatch import register, register_lazy


@dataclass(frozen=True)
class CollapseState:
    """What a later chunk must know: the run of equal labels that each stream is in.

    Attributes:
        label: [B] int64, the newest frame's label; the blank if no label is open.
        first: [B] int64, the frame where that run began; meaningless for the blank.
        frames: [B] int64, frames seen so far.
    """

    label: Tensor
    first: Tensor
    frames: Tensor


@dataclass(frozen=True)
class CollapsedLabels:
    """Runs of one non-blank label that touch a chunk, in order; rows are padded with -1.

    Attributes:
        ids, first, last: [B, N] int64: the label, its first and its last frame so far.
        counts: [B] int64, valid entries of each row.
        continues: [B] bool: the row's first entry is the last one of an earlier chunk, with a later `last`.
    """

    ids: Tensor
    first: Tensor
    last: Tensor
    counts: Tensor
    continues: Tensor


@dataclass(frozen=True)
class LabelSpans:
    """Where the best path puts each target label.

    Attributes:
        first, last: [L] int64 frames, both inclusive; first[i] > last[i - 1].
        score: [L] float64, mean log-probability of the label over its frames.
        total: [] float64, log-probability of the whole path, blanks included.
    """

    first: Tensor
    last: Tensor
    score: Tensor
    total: Tensor


def init_collapse(batch: int, *, blank: int) -> CollapseState:
    """State of `batch` streams that have heard nothing."""
    zeros = torch.zeros(batch, dtype=torch.int64)
    return CollapseState(label=torch.full_like(zeros, blank), first=zeros, frames=zeros.clone())


def greedy_collapse_reference(
    log_probs: Tensor, lens: Tensor, state: CollapseState, *, blank: int
) -> tuple[CollapsedLabels, CollapseState]:
    """The best label of each frame, repeats merged and blanks removed.

    Args:
        log_probs: [B, T, V], any monotone score, without NaN; equal scores go to the lowest label.
        lens: [B] int64, valid frames of each row; 0 leaves that stream as it was.
        state: what `init_collapse` or the call before returned.
        blank: the blank's label.

    Returns:
        The runs that touch this chunk, and the state after it. Chunk after chunk, with each entry that `continues`
        replacing the one it goes on from, they are the runs of the whole.

    Raises:
        ValueError: if shapes disagree, or lens or blank are out of range.
    """
    _check_collapse(log_probs, lens, state, blank)
    best = log_probs.argmax(dim=-1)  # [B, T]
    rows: list[list[tuple[int, int, int]]] = []
    continues: list[bool] = []
    label, first = state.label.clone(), state.first.clone()
    for b, length in enumerate(lens.tolist()):
        runs: list[tuple[int, int, int]] = []
        values, sizes = torch.unique_consecutive(best[b, :length], return_counts=True)
        frame = int(state.frames[b])
        goes_on = length > 0 and int(values[0]) == int(state.label[b])
        for i, (value, size) in enumerate(zip(values.tolist(), sizes.tolist(), strict=True)):
            start = int(state.first[b]) if i == 0 and goes_on else frame
            frame += size
            label[b], first[b] = value, start
            if value != blank:
                runs.append((value, start, frame - 1))
        rows.append(runs)
        continues.append(goes_on and int(values[0]) != blank)
    longest = max((len(runs) for runs in rows), default=0)
    padded = torch.full((len(rows), longest, 3), -1, dtype=torch.int64)
    for b, runs in enumerate(rows):
        if runs:
            padded[b, : len(runs)] = torch.tensor(runs)
    found = CollapsedLabels(
        ids=padded[..., 0],
        first=padded[..., 1],
        last=padded[..., 2],
        counts=torch.tensor([len(runs) for runs in rows], dtype=torch.int64),
        continues=torch.tensor(continues, dtype=torch.bool),
    )
    return found, CollapseState(label=label, first=first, frames=state.frames + lens)


def _check_collapse(log_probs: Tensor, lens: Tensor, state: CollapseState, blank: int) -> None:
    if log_probs.dim() != 3:
        raise ValueError(f"log_probs must be [B, T, V], got {tuple(log_probs.shape)}")
    B, T, V = log_probs.shape
    if lens.shape != (B,) or state.label.shape != (B,):
        raise ValueError(f"log_probs has {B} rows, lens {tuple(lens.shape)}, state {tuple(state.label.shape)}")
    if not 0 <= blank < V:
        raise ValueError(f"blank ({blank}) must be a label of 0..{V - 1}")
    if B and not 0 <= int(lens.min()) <= int(lens.max()) <= T:
        raise ValueError(f"lens must be within 0..{T} frames, got {lens.tolist()}")


def _greedy_collapse_numba() -> Callable[..., Any]:
    from kernels.ctc_numba import collapse_rows

    def greedy_collapse(
        log_probs: Tensor, lens: Tensor, state: CollapseState, *, blank: int
    ) -> tuple[CollapsedLabels, CollapseState]:
        _check_collapse(log_probs, lens, state, blank)
        if log_probs.dtype in (torch.float16, torch.bfloat16):
            log_probs = log_probs.float()  # exact, and numba knows no half precision
        runs, counts, continues, label, first = collapse_rows(
            log_probs.detach().contiguous().numpy(),
            lens.numpy(),
            state.label.numpy(),
            state.first.numpy(),
            state.frames.numpy(),
            blank,
        )
        longest = int(counts.max()) if len(counts) else 0
        padded = torch.from_numpy(runs)[:, :longest]
        found = CollapsedLabels(
            ids=padded[..., 0],
            first=padded[..., 1],
            last=padded[..., 2],
            counts=torch.from_numpy(counts),
            continues=torch.from_numpy(continues),
        )
        after = CollapseState(label=torch.from_numpy(label), first=torch.from_numpy(first), frames=state.frames + lens)
        return found, after

    return greedy_collapse


def forced_align_reference(log_probs: Tensor, targets: Tensor, *, blank: int | None = None) -> LabelSpans:
    """The most probable CTC path that spells `targets` (Viterbi over labels with blanks between and around them).

    Computed in float64. Of equally good paths, the one is taken that, read from its end, ends on a label rather than
    a blank and stays longest where it is.

    Args:
        log_probs: [T, V] log-probabilities, without NaN.
        targets: [L] int64, without the blank; L = 0 is legal.
        blank: the blank's label; None is V - 1.

    Raises:
        ValueError: if T is too small for the labels and the blanks that repeats need, if every path has probability 0,
            if shapes are wrong, or if a label is out of range or the blank.
    """
    blank = _check_align(log_probs, targets, blank)
    T, L = log_probs.shape[0], targets.shape[0]
    scores = log_probs.to(torch.float64)
    path_labels = torch.full((2 * L + 1,), blank, dtype=torch.int64)
    path_labels[1::2] = targets
    may_skip = torch.zeros(2 * L + 1, dtype=torch.bool)
    may_skip[2:] = (path_labels[2:] != blank) & (path_labels[2:] != path_labels[:-2])
    emitted = scores[:, path_labels]  # [T, 2L+1]
    never = torch.full((2,), -torch.inf, dtype=torch.float64)
    best = torch.full((2 * L + 1,), -torch.inf, dtype=torch.float64)
    came_from = torch.zeros(T, 2 * L + 1, dtype=torch.int64)  # how many states back
    if T:
        best[:2] = emitted[0, :2]
    for t in range(1, T):
        padded = torch.cat([never, best])
        skipped = torch.where(may_skip, padded[:-2], -torch.inf)
        choices = torch.stack([best, padded[1:-1], skipped])  # [3, 2L+1]
        came_from[t] = choices.argmax(dim=0)
        best = choices.gather(0, came_from[t : t + 1])[0] + emitted[t]
    state = 2 * L if L == 0 or best[2 * L] > best[2 * L - 1] else 2 * L - 1
    total = best[state] if T else torch.zeros((), dtype=torch.float64)
    states = torch.zeros(T, dtype=torch.int64)
    for t in range(T - 1, -1, -1):
        states[t] = state
        state -= int(came_from[t, state])
    return _spans(states, emitted, total, L)


def _check_align(log_probs: Tensor, targets: Tensor, blank: int | None) -> int:
    if log_probs.dim() != 2 or targets.dim() != 1:
        raise ValueError(
            f"need log_probs [T, V] and targets [L], got {tuple(log_probs.shape)} and {tuple(targets.shape)}"
        )
    T, V = log_probs.shape
    blank = V - 1 if blank is None else blank
    labels = targets.tolist()
    if not 0 <= blank < V:
        raise ValueError(f"blank ({blank}) must be a label of 0..{V - 1}")
    if any(not 0 <= label < V or label == blank for label in labels):
        raise ValueError(f"targets must be labels of 0..{V - 1} other than the blank ({blank}), got {labels}")
    repeats = sum(a == b for a, b in pairwise(labels))
    if len(labels) + repeats > T:
        raise ValueError(
            f"{len(labels)} labels with {repeats} repeats need {len(labels) + repeats} frames, there are {T}"
        )
    return blank


def _spans(states: Tensor, emitted: Tensor, total: Tensor, labels: int) -> LabelSpans:
    """Spans of the labels on a path of `states` [T]; label i is state 2i + 1."""
    if not bool(total > -torch.inf):
        raise ValueError(f"every path of {labels} labels through {states.shape[0]} frames has probability 0")
    first = torch.zeros(labels, dtype=torch.int64)
    last = torch.zeros(labels, dtype=torch.int64)
    score = torch.zeros(labels, dtype=torch.float64)
    for i in range(labels):
        frames = torch.nonzero(states == 2 * i + 1)[:, 0]
        first[i], last[i] = frames[0], frames[-1]
        score[i] = emitted[frames, 2 * i + 1].mean()
    return LabelSpans(first=first, last=last, score=score, total=total)


def _forced_align_numba() -> Callable[..., Any]:
    from kernels.ctc_numba import viterbi_states

    def forced_align(log_probs: Tensor, targets: Tensor, *, blank: int | None = None) -> LabelSpans:
        blank = _check_align(log_probs, targets, blank)
        scores = log_probs.detach().to(torch.float64)
        path_labels = torch.full((2 * targets.shape[0] + 1,), blank, dtype=torch.int64)
        path_labels[1::2] = targets
        emitted = scores[:, path_labels].contiguous()  # [T, 2L+1]
        states, total = viterbi_states(emitted.numpy(), path_labels.numpy(), blank)
        return _spans(torch.from_numpy(states), emitted, torch.tensor(total, dtype=torch.float64), targets.shape[0])

    return forced_align


register("ctc.greedy_collapse", "reference", greedy_collapse_reference)
register_lazy("ctc.greedy_collapse", "numba", _greedy_collapse_numba)
register("ctc.forced_align", "reference", forced_align_reference)
register_lazy("ctc.forced_align", "numba", _forced_align_numba)
