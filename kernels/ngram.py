"""N-gram look-ups for a batch of states: the whole vocabulary in one call, or one label a state.

Shapes: B states, L labels, S states of the automaton, A arcs. A state stands for the newest labels as far as the model
knows them. Each kernel has the backends "reference" (PyTorch, any device), "numba" (CPU) and "cuda" (Numba), equal to
the last bit. Layout after NGPU-LM (arXiv 2505.22857); here short histories are written first and longer ones over them,
so that no mask is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from kernels.dispatch import register, register_lazy

DEEPEST = 8
"""States that a way to state 0 may pass: what a CUDA thread has room for."""


@dataclass(frozen=True, kw_only=True)
class NgramTables:
    """A back-off n-gram model as an automaton. State 0 is the empty history; it has every label.

    Attributes:
        root_score, root_target: [L] float32 and int32: what state 0 gives each label, and where it leads.
        first_arc: [S+1] int64, arcs of state s are first_arc[s] to first_arc[s+1]; none for state 0.
        label, score, target: [A] int32, float32, int32; labels rise within a state.
        backoff_to: [S] int32, the state of the next shorter known history, with a smaller number; 0 for state 0.
        backoff_score: [S] float32, what going there costs; 0 for state 0.
        depth: states, without 0, that a way to 0 passes at most.
    """

    root_score: Tensor
    root_target: Tensor
    first_arc: Tensor
    label: Tensor
    score: Tensor
    target: Tensor
    backoff_to: Tensor
    backoff_score: Tensor
    depth: int

    @property
    def labels(self) -> int:
        """L."""
        return self.root_score.shape[0]

    @property
    def states(self) -> int:
        """S."""
        return self.backoff_to.shape[0]

    def tensors(self) -> dict[str, Tensor]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "depth"}

    def to(self, device: torch.device | str) -> NgramTables:
        """The tables on a device."""
        return NgramTables(**{name: tensor.to(device) for name, tensor in self.tensors().items()}, depth=self.depth)


def best_backend(device: torch.device) -> str:
    """The backend made for a device: "numba" for the CPU, "cuda" for CUDA, "reference" for any other."""
    return {"cpu": "numba", "cuda": "cuda"}.get(device.type, "reference")


def _check(tables: NgramTables, states: Tensor, labels: Tensor | None = None) -> None:
    """Refuses what does not fit; the numbers themselves only on the CPU, elsewhere that would wait for the device."""
    if tables.depth > DEEPEST:
        raise ValueError(f"the tables are {tables.depth} states deep, at most {DEEPEST} can be used")
    if states.dim() != 1 or states.dtype != torch.int64:
        raise ValueError(f"states must be [B] int64, got {tuple(states.shape)} {states.dtype}")
    if labels is not None and (labels.shape != states.shape or labels.dtype != torch.int64):
        raise ValueError(f"labels must be {tuple(states.shape)} int64, got {tuple(labels.shape)} {labels.dtype}")
    if states.device != tables.first_arc.device:
        raise ValueError(f"states are on {states.device}, the tables on {tables.first_arc.device}")
    if states.device.type != "cpu" or not len(states):
        return
    if not 0 <= int(states.min()) <= int(states.max()) < tables.states:
        raise ValueError(f"states must be of 0..{tables.states - 1}, got {states.tolist()}")
    if labels is not None and not 0 <= int(labels.min()) <= int(labels.max()) < tables.labels:
        raise ValueError(f"labels must be of 0..{tables.labels - 1}, got {labels.tolist()}")


def advance_reference(tables: NgramTables, states: Tensor) -> tuple[Tensor, Tensor]:
    """What every label scores behind each state, and the state that it leads to.

    Args:
        tables: the automaton.
        states: [B] int64.
    Returns:
        scores [B, L] float32, next states [B, L] int32.
    Raises:
        ValueError: if states have another shape, type or device, or (on the CPU) are out of range.
    """
    _check(tables, states)
    way, totals = [states], [torch.zeros_like(states, dtype=torch.float32)]
    for _ in range(tables.depth):
        totals.append(totals[-1] + tables.backoff_score[way[-1]])
        way.append(tables.backoff_to[way[-1]].long())
    scores = tables.root_score + totals[-1][:, None]  # [B, L]
    targets = tables.root_target.repeat(len(states), 1)
    rows = torch.arange(len(states), device=states.device)
    for state, total in zip(reversed(way), reversed(totals), strict=True):
        first = tables.first_arc[state]
        counts = tables.first_arc[state + 1] - first
        row = rows.repeat_interleave(counts)  # [arcs of all rows]
        arc = torch.arange(len(row), device=states.device) + (first - counts.cumsum(0) + counts)[row]
        label = tables.label[arc].long()
        scores[row, label] = tables.score[arc] + total[row]
        targets[row, label] = tables.target[arc]
    return scores, targets


def lookup_reference(tables: NgramTables, states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What one label scores behind each state, and the state that it leads to.

    Args:
        tables: the automaton.
        states: [B] int64.
        labels: [B] int64.
    Returns:
        scores [B] float32, next states [B] int64.
    Raises:
        ValueError: as `advance_reference`, for labels too.
    """
    _check(tables, states, labels)
    total = torch.zeros_like(states, dtype=torch.float32)
    scores, targets = torch.zeros_like(total), torch.zeros_like(states)
    found = torch.zeros_like(states, dtype=torch.bool)
    state = states
    for _ in range(tables.depth):
        low, end = tables.first_arc[state], tables.first_arc[state + 1]
        high = end
        for _ in range(tables.labels.bit_length()):  # no state has more arcs than there are labels
            middle = (low + high) // 2
            below = (middle < high) & (_at(tables.label, middle) < labels)
            low, high = torch.where(below, middle + 1, low), torch.where(below, high, middle)
        hit = ~found & (low < end) & (_at(tables.label, low) == labels)
        scores = torch.where(hit, _at(tables.score, low) + total, scores)
        targets = torch.where(hit, _at(tables.target, low).long(), targets)
        found |= hit
        total = total + tables.backoff_score[state]
        state = tables.backoff_to[state].long()
    scores = torch.where(found, scores, tables.root_score[labels] + total)
    return scores, torch.where(found, targets, tables.root_target[labels].long())


def _at(values: Tensor, index: Tensor) -> Tensor:
    """Values at indices of which those past the end do not count."""
    if not len(values):
        return torch.zeros_like(index, dtype=values.dtype)
    return values[index.clamp(max=len(values) - 1)]


def _advance_by(module: str) -> Callable[[], Callable[..., Any]]:
    """Loads `advance` of a module of loops."""

    def load() -> Callable[..., Any]:
        loops = importlib.import_module(module)

        def advance(tables: NgramTables, states: Tensor) -> tuple[Tensor, Tensor]:
            _check(tables, states)
            found: tuple[Tensor, Tensor] = loops.advance(tables.tensors(), states)
            return found

        return advance

    return load


def _lookup_by(module: str) -> Callable[[], Callable[..., Any]]:
    """Loads `lookup` of a module of loops."""

    def load() -> Callable[..., Any]:
        loops = importlib.import_module(module)

        def lookup(tables: NgramTables, states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            _check(tables, states, labels)
            found: tuple[Tensor, Tensor] = loops.lookup(tables.tensors(), states, labels)
            return found

        return lookup

    return load


register("ngram.advance", "reference", advance_reference)
register_lazy("ngram.advance", "numba", _advance_by("kernels.ngram_numba"))
register_lazy("ngram.advance", "cuda", _advance_by("kernels.ngram_cuda"))
register("ngram.lookup", "reference", lookup_reference)
register_lazy("ngram.lookup", "numba", _lookup_by("kernels.ngram_numba"))
register_lazy("ngram.lookup", "cuda", _lookup_by("kernels.ngram_cuda"))
