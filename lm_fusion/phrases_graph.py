"""Token sequences to the tables of kernels/phrases: a trie, its failure arcs, bonuses and refunds.

The rule, exactly: for each place of a text, the longest listed sequence that begins there and is complete earns its
bonus; the text under way (the longest end of it with which a sequence goes on) has the bonus of its pieces for as long
as it lives. A step's score is the difference, so that what is left unfinished has been given back to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.phrases import PhraseTables

Ints = npt.NDArray[np.int64]

GRAIN = 1024
"""Bonuses are multiples of 1/1024 nat: float32 adds and subtracts those exactly."""

START, INSIDE = 0, 1
"""The two roots of every graph: any phrase may begin; only one that brings its own space, or needs none."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One spelling of a phrase.

    Attributes:
        tokens: its pieces, at least one.
        boost: bonus of each, in nats, where it weighs 1.
        anywhere: whether it may begin after any piece; else only at the start and after one of `opens`. What is
            true of one sequence is true of all that have its first piece.
        phrase: the number of the phrase that it spells.
    """

    tokens: tuple[int, ...]
    boost: float
    anywhere: bool
    phrase: int = 0


@dataclass(frozen=True, kw_only=True)
class PhraseGraph:
    """The automaton of one list, its nodes counted from 0: see `kernels.phrases.PhraseTables` for the other fields.

    Attributes:
        parent: [N] the node without its last piece, roots' own START; total: [N] the boosts of a node's pieces.
        levels: the first node of each depth from 1 on, and N.
        end: [E] the node where each spelling ends; phrase: [E] whose spelling it is.
    """

    first_arc: Ints
    label: Ints
    target: Ints
    fail: Ints
    credit: npt.NDArray[np.float32]
    live: npt.NDArray[np.float32]
    parent: Ints
    total: npt.NDArray[np.float64]
    levels: tuple[int, ...]
    end: Ints
    phrase: Ints

    @property
    def nodes(self) -> int:
        """N, the two roots included."""
        return len(self.fail)

    @property
    def empty(self) -> bool:
        """Whether it scores nothing."""
        return not len(self.label)

    def only(self, counts: npt.NDArray[np.bool_]) -> PhraseGraph:
        """The same nodes with the bonuses that they have if only some phrases are listed; boosts stay what they are.

        Args:
            counts: [P] whether each phrase does.
        """
        ends = self.end[counts[self.phrase]]
        complete, goes_on = np.zeros(self.nodes, dtype=bool), np.zeros(self.nodes, dtype=bool)
        complete[ends] = True
        while len(ends):
            goes_on[ends] = True
            ends = self.parent[ends]
            ends = ends[ends > INSIDE]
        ended, earned, live = np.zeros(self.nodes), np.zeros(self.nodes), np.zeros(self.nodes)
        for first, last in pairwise(self.levels):
            level = slice(first, last)
            parent, shorter = self.parent[level], self.fail[level]
            # Of the longest phrase that the path has completed.
            ended[level] = np.where(complete[level], self.total[level], ended[parent])
            earned[level] = ended[level] - ended[parent] + earned[shorter]
            live[level] = np.where(goes_on[level], self.total[level] - ended[level], live[shorter])
        return replace(self, credit=(earned + live).astype(np.float32), live=live.astype(np.float32))


def build_graph(
    entries: Sequence[Entry], *, opens: npt.NDArray[np.bool_], weights: npt.NDArray[np.float32] | None = None
) -> PhraseGraph:
    """The automaton of a list.

    Pieces that several sequences begin with have the largest of their boosts.

    Args:
        entries: the spellings; none gives an automaton that scores 0.
        opens: [V] the pieces after which any phrase may begin.
        weights: [V] by which a piece's boost is multiplied; None: 1.
    """
    size = len(opens)
    trie = _Trie(entries, size)
    bonus = trie.boost if weights is None else trie.boost * weights[trie.label]
    bonus = np.round(bonus * GRAIN) / GRAIN
    arc_from = np.concatenate([np.full(len(trie.roots), START), np.full(len(trie.open_roots), INSIDE), trie.parent])
    label = np.concatenate([trie.label[trie.roots - 2], trie.label[trie.open_roots - 2], trie.label])
    target = np.concatenate([trie.roots, trie.open_roots, np.arange(2, trie.nodes)])
    deeper = np.concatenate([np.full(len(trie.roots) + len(trie.open_roots), True), trie.parent > START])
    arc_from, label, target = arc_from[deeper], label[deeper], target[deeper]  # roots' arcs are there already
    keys = arc_from * size + label
    fail = np.full(trie.nodes, -1, dtype=np.int64)
    total = np.zeros(trie.nodes)
    for level in trie.levels:
        parent, labels = trie.parent[level - 2], trie.label[level - 2]
        fail[level] = _failures(fail[parent], labels, fail=fail, keys=keys, target=target, opens=opens)
        total[level] = total[parent] + bonus[level - 2]
    phrase = np.array([entry.phrase for entry in entries], dtype=np.int64)
    return PhraseGraph(
        first_arc=np.searchsorted(arc_from, np.arange(trie.nodes + 1)).astype(np.int64),
        label=label,
        target=target,
        fail=fail,
        credit=np.zeros(trie.nodes, dtype=np.float32),
        live=np.zeros(trie.nodes, dtype=np.float32),
        parent=np.concatenate([[START, START], trie.parent]),
        total=total,
        levels=(*(int(level[0]) for level in trie.levels), trie.nodes),
        end=trie.end,
        phrase=phrase,
    ).only(np.ones(phrase.max(initial=-1) + 1, dtype=bool))


class _Trie:
    """Nodes 2.. level by level, sorted by parent and label within a level: arcs lie in order by themselves."""

    def __init__(self, entries: Sequence[Entry], size: int) -> None:
        lens = np.array([len(entry.tokens) for entry in entries], dtype=np.int64)
        tokens = np.zeros((len(entries), int(lens.max(initial=0))), dtype=np.int64)
        for at, entry in enumerate(entries):
            tokens[at, : lens[at]] = entry.tokens
        boost = np.array([entry.boost for entry in entries], dtype=np.float64)
        anywhere = np.array([entry.anywhere for entry in entries], dtype=bool)
        here = np.full(len(entries), START, dtype=np.int64)
        parent, label, boosts = [], [], []
        self.levels: list[Ints] = []
        self.open_roots: Ints = np.zeros(0, dtype=np.int64)
        self.nodes = 2
        for depth in range(tokens.shape[1]):
            on = lens > depth
            keys, which = np.unique(here[on] * size + tokens[on, depth], return_inverse=True)
            level = self.nodes + np.arange(len(keys))
            here[on] = level[which]
            largest = np.zeros(len(keys))
            np.maximum.at(largest, which, boost[on])
            if depth == 0:
                self.open_roots = np.unique(here[anywhere])
            parent.append(keys // size)
            label.append(keys % size)
            boosts.append(largest)
            self.levels.append(level)
            self.nodes += len(keys)
        nothing = np.zeros(0, dtype=np.int64)
        self.parent: Ints = np.concatenate([nothing, *parent])
        self.label: Ints = np.concatenate([nothing, *label])
        self.boost = np.concatenate([np.zeros(0), *boosts])
        self.end: Ints = here
        self.roots: Ints = self.levels[0] if self.levels else nothing


def _failures(
    shorter: Ints, labels: Ints, *, fail: Ints, keys: Ints, target: Ints, opens: npt.NDArray[np.bool_]
) -> Ints:
    """For texts of a level: where they are without their first piece.

    Args:
        shorter: [n] where their parents are without it; -1 where the parent is a root.
        labels: [n] their last piece.
    """
    found = np.where(opens[labels], START, INSIDE)
    rows = np.flatnonzero(shorter >= 0)
    here = shorter[rows]
    while len(rows):
        wanted = here * len(opens) + labels[rows]
        arc = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        hit = keys[arc] == wanted
        found[rows[hit]] = target[arc[hit]]
        here = fail[here]
        on = ~hit & (here >= 0)
        rows, here = rows[on], here[on]
    return found


def join_graphs(graphs: Sequence[PhraseGraph], opens: Tensor) -> tuple[PhraseTables, tuple[int, ...]]:
    """The automata side by side, and the number of each one's first node.

    Args:
        graphs: at least one.
        opens: [V] bool.
    """
    offsets = np.cumsum([0, *(graph.nodes for graph in graphs)])
    arcs = np.cumsum([0, *(len(graph.label) for graph in graphs)])
    pairs = list(zip(graphs, offsets.tolist(), strict=False))
    tables = PhraseTables(
        first_arc=torch.from_numpy(
            np.concatenate([*(g.first_arc[:-1] + a for g, a in zip(graphs, arcs, strict=False)), arcs[-1:]])
        ),
        label=torch.from_numpy(np.concatenate([graph.label for graph in graphs])),
        target=torch.from_numpy(np.concatenate([graph.target + offset for graph, offset in pairs])),
        fail=torch.from_numpy(
            np.concatenate([np.where(graph.fail < 0, -1, graph.fail + offset) for graph, offset in pairs])
        ),
        credit=torch.from_numpy(np.concatenate([graph.credit for graph in graphs])),
        live=torch.from_numpy(np.concatenate([graph.live for graph in graphs])),
        opens=opens.cpu(),
    )
    return tables.to(opens.device), tuple(offsets[:-1].tolist())
