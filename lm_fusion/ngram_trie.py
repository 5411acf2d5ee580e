"""A back-off model as a trie in arrays: what every way to build, mix and read one looks n-grams up in.

Node 0 is the empty history; the other nodes are the n-grams, and where a pruned model lacks the beginning of one, that
too. Nodes are numbered by length, then by parent, then by label, so that `keys` rises and a look-up is a binary search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asr.errors import LanguageModelError

Longs = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

NOT_THERE = -100.0
"""log10 probability of what a model without <unk> does not know, as KenLM has it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trie:
    """M nodes over labels 0..L-1.

    Attributes:
        labels: L.
        keys: [M-1] int64, parent · L + label of nodes 1 and on.
        starts: [N+2] int64, where each length begins; the last is M.
        listed: [M] bool, whether the model names the n-gram.
        log10, backoff: [M] float64; log10 of a node that is not listed is what back-off gives.
        suffix: [M] int64, the longest node that ends as this one does and is shorter.
    """

    labels: int
    keys: Longs
    starts: Longs
    listed: npt.NDArray[np.bool_]
    log10: Doubles
    backoff: Doubles
    suffix: Longs

    @property
    def order(self) -> int:
        """N."""
        return len(self.starts) - 2

    def parents(self, nodes: Longs) -> Longs:
        """The node without its last label; nodes above 0."""
        return self.keys[nodes - 1] // self.labels

    def last(self, nodes: Longs) -> Longs:
        """The last label; nodes above 0."""
        return self.keys[nodes - 1] % self.labels

    def child(self, nodes: Longs, labels: Longs) -> Longs:
        """The node one label longer, -1 where there is none."""
        if not len(self.keys):
            return np.full_like(nodes, -1)
        wanted = nodes * self.labels + labels
        at = np.searchsorted(self.keys, wanted)
        there = self.keys[np.minimum(at, len(self.keys) - 1)] == wanted
        return np.where(there, at + 1, -1)

    def score(self, nodes: Longs, labels: Longs) -> tuple[Doubles, Longs]:
        """log10 probability of a label behind each node, and the longest node for what has been read then.

        A label that is no 1-gram gets `NOT_THERE` and leads to node 0; what a model has a `<unk>` for is to be asked
        for by that label.
        """
        total = np.zeros(len(nodes))
        scores = np.empty(len(nodes))
        reached = np.zeros(len(nodes), dtype=np.int64)
        state = nodes.copy()
        open_ = np.arange(len(nodes))
        while len(open_):
            found = self.child(state[open_], labels[open_])
            hit = found >= 0
            done = open_[hit]
            scores[done] = self.log10[found[hit]] + total[done]
            reached[done] = found[hit]
            open_ = open_[~hit]
            at_root = state[open_] == 0
            scores[open_[at_root]] = NOT_THERE + total[open_[at_root]]
            open_ = open_[~at_root]
            total[open_] += self.backoff[state[open_]]
            state[open_] = self.suffix[state[open_]]
        return scores, reached


def build_trie(
    ids: Sequence[npt.NDArray[np.integer]],
    log10: Sequence[npt.NDArray[np.floating]],
    backoff: Sequence[npt.NDArray[np.floating]],
    *,
    labels: int,
) -> Trie:
    """The trie of a model.

    Args:
        ids: per order n = 1..N [M_n, n], labels below `labels`.
        log10, backoff: per order [M_n].
        labels: L.

    Raises:
        LanguageModelError: if an n-gram stands twice.
    """
    order = len(ids)
    rows = [np.zeros(len(part), dtype=np.int64) for part in ids]  # the node of each n-gram's first d labels
    keys: list[Longs] = []
    starts = [0, 1]
    for d in range(1, order + 1):
        longer = range(d - 1, order)
        wanted = np.concatenate([rows[k] * labels + ids[k][:, d - 1] for k in longer])
        unique, place = np.unique(wanted, return_inverse=True)
        place = place.reshape(-1) + starts[-1]
        begin = 0
        for k in longer:
            rows[k] = place[begin : begin + len(rows[k])]
            begin += len(rows[k])
        if len(np.unique(rows[d - 1])) != len(rows[d - 1]):
            raise LanguageModelError(f"one of the model's {len(rows[d - 1])} {d}-grams stands twice")
        keys.append(unique)
        starts.append(starts[-1] + len(unique))
    size = starts[-1]
    listed = np.zeros(size, dtype=np.bool_)
    all_log10, all_backoff = np.zeros(size), np.zeros(size)
    for nodes, scores, weights in zip(rows, log10, backoff, strict=True):
        listed[nodes] = True
        all_log10[nodes] = scores
        all_backoff[nodes] = weights
    trie = Trie(
        labels=labels,
        keys=np.concatenate(keys),
        starts=np.array(starts, dtype=np.int64),
        listed=listed,
        log10=all_log10,
        backoff=all_backoff,
        suffix=np.zeros(size, dtype=np.int64),
    )
    _link(trie)
    return trie


def _link(trie: Trie) -> None:
    """Sets the suffixes, and the probabilities of nodes that are not listed; short ones first, which long ones need."""
    for d in range(1, trie.order + 1):
        nodes = np.arange(trie.starts[d], trie.starts[d + 1])
        parents, labels = trie.parents(nodes), trie.last(nodes)
        if d == 1:
            missing = nodes[~trie.listed[nodes]]
            trie.log10[missing] = NOT_THERE  # a history that begins with a word without a 1-gram
            continue
        state = trie.suffix[parents]
        scores, reached = trie.score(state, labels)
        trie.suffix[nodes] = reached
        blank = ~trie.listed[nodes]
        trie.log10[nodes[blank]] = trie.backoff[parents[blank]] + scores[blank]
