"""Phrase boosting as table look-ups: scores of the whole vocabulary, and the next node, for a batch of nodes.

Shapes: k rows, V vocabulary, N nodes, A arcs. A node stands for the longest piece of text so far with which a phrase
goes on. Each kernel has the backends "reference" (PyTorch, any device), "numba" (CPU) and "cuda" (Numba), equal to the
last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kernels.dispatch import register, register_lazy


@dataclass(frozen=True)
class PhraseTables:
    """An Aho–Corasick automaton, or several side by side.

    The arcs of a node are those of its trie; for a label without one the walk goes on at `fail`. Each automaton has two
    roots, neighbours: text after which any phrase may begin, and behind it text inside a word.

    Attributes:
        first_arc: [N+1] int64, arcs of node n are first_arc[n] to first_arc[n+1]; label: [A] int64, rising within a
            node; target: [A] int64 nodes.
        fail: [N] int64, the node of the next shorter text; -1 for roots.
        credit: [N] float32, what the token that leads to a node earns, the bonus of the text under way included.
        live: [N] float32, the bonus of the text under way, which the next token gives back.
        opens: [V] bool, tokens after which any phrase may begin.
    """

    first_arc: Tensor
    label: Tensor
    target: Tensor
    fail: Tensor
    credit: Tensor
    live: Tensor
    opens: Tensor

    @property
    def size(self) -> int:
        """V."""
        return self.opens.shape[0]

    @cached_property
    def keys(self) -> Tensor:
        """[A] int64, node · V + label, rising."""
        nodes = torch.arange(self.fail.shape[0], device=self.label.device)
        return nodes.repeat_interleave(self.first_arc.diff()) * self.size + self.label

    def to(self, device: torch.device) -> PhraseTables:
        """The tables on a device."""
        return PhraseTables(*(getattr(self, field.name).to(device) for field in fields(self)))


def phrase_scores_reference(tables: PhraseTables, nodes: Tensor) -> Tensor:
    """What each token would earn, less what it would give back.

    Args:
        tables: the automata.
        nodes: [k] int64, where the rows are.
    Returns:
        [k, V] float32.
    """
    _check(tables, nodes)
    scores = torch.zeros(nodes.shape[0], tables.size, device=nodes.device)
    levels: list[tuple[Tensor, Tensor]] = []
    rows, here = torch.arange(nodes.shape[0], device=nodes.device), nodes
    while rows.numel():
        levels.append((rows, here))
        shorter = tables.fail[here]
        rows, here = rows[shorter >= 0], shorter[shorter >= 0]
    for rows, here in reversed(levels):  # what a longer text says of a label holds
        first, count = tables.first_arc[here], tables.first_arc[here + 1] - tables.first_arc[here]
        before = count.cumsum(0) - count
        arcs = torch.arange(int(count.sum()), device=nodes.device) + (first - before).repeat_interleave(count)
        scores[rows.repeat_interleave(count), tables.label[arcs]] = tables.credit[tables.target[arcs]]
    return scores - tables.live[nodes][:, None]


def phrase_advance_reference(tables: PhraseTables, nodes: Tensor, tokens: Tensor, roots: Tensor) -> Tensor:
    """The nodes after one more token.

    Args:
        tables: the automata.
        nodes: [k] int64; tokens: [k] int64, of 0..V-1; roots: [k] int64, the first root of each row's automaton.
    Returns:
        [k] int64.
    """
    _check(tables, nodes, tokens, roots)
    after = roots + (~tables.opens[tokens]).long()
    if not tables.label.numel():
        return after
    rows, here = torch.arange(nodes.shape[0], device=nodes.device), nodes
    while rows.numel():
        key = here * tables.size + tokens[rows]
        arc = torch.searchsorted(tables.keys, key).clamp(max=tables.keys.shape[0] - 1)
        found = tables.keys[arc] == key
        after[rows[found]] = tables.target[arc[found]]
        shorter = tables.fail[here]
        on = ~found & (shorter >= 0)
        rows, here = rows[on], shorter[on]
    return after


def _check(tables: PhraseTables, nodes: Tensor, *others: Tensor) -> None:
    if nodes.dim() != 1 or any(other.shape != nodes.shape for other in others):
        raise ValueError(f"need [k] each, got {[tuple(tensor.shape) for tensor in (nodes, *others)]}")
    if nodes.device != tables.fail.device:
        raise ValueError(f"nodes are on {nodes.device}, the tables on {tables.fail.device}")


def _numba_backend(name: str) -> Callable[[], Callable[..., Any]]:
    def load() -> Callable[..., Any]:
        from kernels import phrases_numba

        def phrase_scores(tables: PhraseTables, nodes: Tensor) -> Tensor:
            _check(tables, nodes)
            scores = phrases_numba.scores(
                tables.first_arc.numpy(),
                tables.label.numpy(),
                tables.target.numpy(),
                tables.fail.numpy(),
                tables.credit.numpy(),
                tables.live.numpy(),
                nodes.contiguous().numpy(),
                tables.size,
            )
            return torch.from_numpy(scores)

        def phrase_advance(tables: PhraseTables, nodes: Tensor, tokens: Tensor, roots: Tensor) -> Tensor:
            _check(tables, nodes, tokens, roots)
            after = phrases_numba.advance(
                tables.first_arc.numpy(),
                tables.label.numpy(),
                tables.target.numpy(),
                tables.fail.numpy(),
                tables.opens.numpy(),
                nodes.contiguous().numpy(),
                tokens.contiguous().numpy(),
                roots.contiguous().numpy(),
            )
            return torch.from_numpy(after)

        return phrase_scores if name == "scores" else phrase_advance

    return load


def _cuda_backend(name: str) -> Callable[[], Callable[..., Any]]:
    def load() -> Callable[..., Any]:
        from kernels import phrases_cuda

        def phrase_scores(tables: PhraseTables, nodes: Tensor) -> Tensor:
            _check(tables, nodes)
            scores = torch.empty(nodes.shape[0], tables.size, device=nodes.device)
            arrays = [tables.first_arc, tables.label, tables.target, tables.fail, tables.credit, tables.live]
            phrases_cuda.scores(arrays, nodes, scores)
            return scores

        def phrase_advance(tables: PhraseTables, nodes: Tensor, tokens: Tensor, roots: Tensor) -> Tensor:
            _check(tables, nodes, tokens, roots)
            after = torch.empty_like(nodes)
            arrays = [tables.first_arc, tables.label, tables.target, tables.fail, tables.opens]
            phrases_cuda.advance(arrays, [nodes, tokens, roots], after)
            return after

        return phrase_scores if name == "scores" else phrase_advance

    return load


register("phrases.scores", "reference", phrase_scores_reference)
register_lazy("phrases.scores", "numba", _numba_backend("scores"))
register_lazy("phrases.scores", "cuda", _cuda_backend("scores"))
register("phrases.advance", "reference", phrase_advance_reference)
register_lazy("phrases.advance", "numba", _numba_backend("advance"))
register_lazy("phrases.advance", "cuda", _cuda_backend("advance"))
