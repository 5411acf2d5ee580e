"""The trie: nodes, their suffixes, and what back-off gives where nothing is listed."""

from __future__ import annotations

import numpy as np
import pytest

from asr.errors import LanguageModelError
from lm_fusion.ngram_trie import NOT_THERE, Trie, build_trie
from tests.lm_fusion.ngram_cases import random_ngrams

A, B, C = range(3)


def small() -> Trie:
    """Has a b a but neither a b nor b a: both a hole before and a hole behind."""
    return build_trie(
        [np.array([[B], [A]]), np.array([[B, B]]), np.array([[A, B, A]])],
        [np.array([-2.0, -1.0]), np.array([-0.5]), np.array([-0.25])],
        [np.array([-0.125, -0.0625]), np.array([-4.0]), np.array([0.0])],
        labels=3,
    )


def node(trie: Trie, *labels: int) -> int:
    found = np.zeros(1, dtype=np.int64)
    for label in labels:
        found = trie.child(found, np.array([label]))
    return int(found[0])


def test_nodes_are_numbered_by_length_parent_and_label() -> None:
    trie = small()
    assert trie.order == 3
    assert trie.starts.tolist() == [0, 1, 3, 5, 6]
    assert [node(trie, A), node(trie, B), node(trie, A, B), node(trie, B, B), node(trie, A, B, A)] == [1, 2, 3, 4, 5]
    assert node(trie, C) == -1
    assert trie.parents(np.array([1, 3, 5])).tolist() == [0, 1, 3]
    assert trie.last(np.array([1, 3, 5])).tolist() == [A, B, A]
    assert trie.listed.tolist() == [False, True, True, False, True, True]


def test_the_suffix_is_the_longest_node_that_ends_alike() -> None:
    trie = small()
    assert trie.suffix[[1, 2]].tolist() == [0, 0]
    assert trie.suffix[node(trie, A, B)] == node(trie, B)
    assert trie.suffix[node(trie, A, B, A)] == node(trie, A)  # b a is none


def test_a_hole_has_the_probability_that_back_off_gives() -> None:
    trie = small()
    assert trie.log10[node(trie, A, B)] == -0.0625 - 2.0
    assert trie.backoff[node(trie, A, B)] == 0.0


def test_scores_and_where_they_lead() -> None:
    trie = small()
    histories = np.array([0, node(trie, A, B), node(trie, B, B), node(trie, A, B, A), node(trie, B)])
    scores, reached = trie.score(histories, np.array([B, A, A, B, C]))
    assert scores.tolist() == [-2.0, -0.25, -4.0 - 0.125 - 1.0, -0.0625 - 2.0, NOT_THERE - 0.125]
    assert reached.tolist() == [node(trie, B), node(trie, A, B, A), node(trie, A), node(trie, A, B), 0]
    assert histories.tolist() == [0, 3, 4, 5, 2]  # as it was


def test_a_history_whose_first_word_is_no_1gram() -> None:
    trie = build_trie(
        [np.array([[A]]), np.array([[B, A]])],
        [np.array([-1.0]), np.array([-0.5])],
        [np.array([0.0]), np.array([0.0])],
        labels=3,
    )
    assert trie.log10[node(trie, B)] == NOT_THERE


def test_nothing_at_all() -> None:
    trie = build_trie([np.zeros((0, 1), dtype=np.int64)], [np.zeros(0)], [np.zeros(0)], labels=3)
    scores, reached = trie.score(np.zeros(2, dtype=np.int64), np.array([A, B]))
    assert scores.tolist() == [NOT_THERE, NOT_THERE]
    assert reached.tolist() == [0, 0]


def test_an_ngram_that_stands_twice() -> None:
    with pytest.raises(LanguageModelError, match="one of the model's 2 1-grams stands twice"):
        build_trie([np.array([[A], [A]])], [np.zeros(2)], [np.zeros(2)], labels=3)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_ngrams_are_given_does_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ngrams = random_ngrams(rng, 4, holes=True)
    mixed = [rng.permutation(len(ids)) for ids in ngrams.ids]
    one = build_trie(ngrams.ids, ngrams.log10, ngrams.backoff, labels=len(ngrams.words))
    other = build_trie(
        [ids[order] for ids, order in zip(ngrams.ids, mixed, strict=True)],
        [values[order] for values, order in zip(ngrams.log10, mixed, strict=True)],
        [values[order] for values, order in zip(ngrams.backoff, mixed, strict=True)],
        labels=len(ngrams.words),
    )
    for name in ("keys", "starts", "listed", "log10", "backoff", "suffix"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert (one.keys[1:] > one.keys[:-1]).all()
    assert (one.suffix[1:] < np.arange(1, len(one.suffix))).all()
