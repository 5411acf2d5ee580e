"""Linear interpolation of two back-off models into one."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np

from asr.errors import LanguageModelError
from lm_fusion.arpa import NEVER, UNKNOWN, NGrams
from lm_fusion.ngram_trie import Doubles, Longs, Trie, build_trie

_ROUNDING = 1e-6
"""Probability that single precision leaves over where none should be."""


def mix(first: NGrams, second: NGrams, weight: float) -> NGrams:
    """The model that gives each n-gram of either `weight` · p_first + (1 - weight) · p_second.

    A word that only one model knows has probability 0 in the other. Back-off weights are what makes the words after
    each history sum to 1, so that an n-gram that neither lists may get another probability than the mean (the static
    mixture of SRILM's `ngram -mix-lm`).

    Args:
        first, second: the models, of any orders.
        weight: of the first, between 0 and 1.

    Raises:
        LanguageModelError: if the weight is not between 0 and 1.
    """
    if not 0 < weight < 1:
        raise LanguageModelError(f"the first model's weight is {weight}; it must lie between 0 and 1")
    words = list(dict.fromkeys((*first.words, *second.words)))
    place = {word: index for index, word in enumerate(words)}
    parts = [_Part(model, place, len(words)) for model in (first, second)]
    rows = [
        np.unique(np.concatenate([part for part in pair if part is not None]), axis=0)
        for pair in zip_longest(*(part.ids for part in parts))
    ]
    nothing = [np.zeros(len(part)) for part in rows]
    joint = build_trie(rows, nothing, nothing, labels=len(words))
    for part in parts:
        part.node = np.zeros(len(joint.log10), dtype=np.int64)
    ids: list[Longs] = [np.zeros((1, 0), dtype=np.int64)]
    for d in range(1, joint.order + 1):
        nodes = np.arange(joint.starts[d], joint.starts[d + 1])
        parents, labels = joint.parents(nodes), joint.last(nodes)
        mean = weight * parts[0].read(nodes, parents, labels) + (1 - weight) * parts[1].read(nodes, parents, labels)
        if d > 1:
            shorter = 10.0 ** joint.score(joint.suffix[parents], labels)[0]
            _weigh(joint, parents, mean, shorter, d - 1)
        joint.log10[nodes] = np.log10(np.maximum(mean, 10.0**NEVER))
        ids.append(np.concatenate([ids[-1][parents - joint.starts[d - 1]], labels[:, None]], axis=1))
    levels = [slice(joint.starts[d], joint.starts[d + 1]) for d in range(1, joint.order + 1)]
    return NGrams(
        words=tuple(words),
        ids=tuple(part.astype(np.int32) for part in ids[1:]),
        log10=tuple(joint.log10[level].astype(np.float32) for level in levels),
        backoff=tuple(joint.backoff[level].astype(np.float32) for level in levels),
    )


class _Part:
    """One of the models, over the words of both.

    Attributes:
        ids: its n-grams. node: for each node of the joint trie, the one that it is in here; set by `mix`.
    """

    def __init__(self, model: NGrams, place: dict[str, int], labels: int) -> None:
        table = np.array([place[word] for word in model.words], dtype=np.int64)
        self.ids = [table[part] for part in model.ids]
        self._trie = build_trie(self.ids, model.log10, model.backoff, labels=labels)
        self.node: Longs = np.zeros(0, dtype=np.int64)
        every = np.arange(labels)
        self._known = self._trie.child(np.zeros(labels, dtype=np.int64), every) >= 0
        self._label = np.where(self._known, every, place.get(UNKNOWN, 0))

    def read(self, nodes: Longs, parents: Longs, labels: Longs) -> Doubles:
        """Probabilities of labels behind the parents; notes where the nodes are."""
        scores, self.node[nodes] = self._trie.score(self.node[parents], self._label[labels])
        return np.where(self._known[labels], 10.0**scores, 0.0)


def _weigh(joint: Trie, parents: Longs, listed: Doubles, shorter: Doubles, d: int) -> None:
    """Sets the back-off weights of the histories of length d: what is left for words that they do not list."""
    first, end = joint.starts[d], joint.starts[d + 1]
    left = 1 - np.bincount(parents - first, weights=listed, minlength=end - first)
    of = 1 - np.bincount(parents - first, weights=shorter, minlength=end - first)
    usual = (left > _ROUNDING) & (of > _ROUNDING)
    weights = np.where(left > _ROUNDING, 0.0, NEVER)  # nothing is left, or every word is listed
    weights[usual] = np.log10(left[usual] / of[usual])
    weights[np.bincount(parents - first, minlength=end - first) == 0] = 0.0
    joint.backoff[first:end] = weights
