"""Modified Kneser–Ney: known answers, sums of 1, and the very numbers of KenLM's lmplz."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.errors import LanguageModelError
from lm_fusion.arpa import NGrams, read_arpa
from lm_fusion.estimate import Estimate, estimate
from tests.lm_fusion import lmplz
from tests.lm_fusion.ngram_cases import grams_of, score

HERE = Path(__file__).resolve().parent


def of_lines(lines: list[str], *, order: int, prune: tuple[int, ...] = ()) -> Estimate:
    names: dict[str, int] = {}
    ids = [np.array([names.setdefault(word, len(names)) for word in line.split()], dtype=np.int32) for line in lines]
    return estimate(ids, list(names), order=order, prune=prune)


def largest_difference(one: NGrams, other: NGrams) -> float:
    """In log10, of probabilities and back-offs; the n-grams must be the same."""
    first, second = grams_of(one), grams_of(other)
    assert first.keys() == second.keys()
    return max(abs(a - b) for gram in first for a, b in zip(first[gram], second[gram], strict=True))


def test_one_word_by_hand() -> None:
    # One of everything: fallback discounts, 0.5 for what is seen once. Unigrams: a and </s> are each met behind one
    # word, so (1 - 0.5) / 2 + (0.5 + 0.5) / 2 · 1/3 (uniform over a, </s>, <unk>). Bigrams: 0.5 + 0.5 · unigram.
    found = of_lines(["a"], order=2)
    unigram = 0.25 + 0.5 / 3
    probabilities = {gram: 10**p for gram, (p, _) in grams_of(found.ngrams).items()}
    assert probabilities == pytest.approx(
        {
            ("<unk>",): 0.5 / 3,
            ("<s>",): 1.0,
            ("</s>",): unigram,
            ("a",): unigram,
            ("<s>", "a"): 0.5 + 0.5 * unigram,
            ("a", "</s>"): 0.5 + 0.5 * unigram,
        }
    )
    backoffs = {gram: 10**b for gram, (_, b) in grams_of(found.ngrams).items()}
    assert backoffs[("<s>",)] == backoffs[("a",)] == pytest.approx(0.5)
    assert backoffs[("</s>",)] == backoffs[("<unk>",)] == 1.0
    assert (found.fallback, found.discounts[0]) == ((1, 2), (0.5, 1.0, 1.5))
    assert (found.sentences, found.tokens) == (1, 1)


def test_the_numbers_of_lmplz() -> None:
    # tests/lm_fusion/README.md: how lmplz was called. Pruned, order 1 with fallback discounts, the others without.
    found = of_lines((HERE / "lmplz.txt").read_text(encoding="utf-8").splitlines(), order=4, prune=(0, 0, 0, 1))
    assert found.fallback == (1,)
    printed = [(0.539095, 1.39352, 1.97315), (0.728155, 1.50069, 2.27184), (0.866667, 1.17561, 2.46667)]
    for discounts, theirs in zip(found.discounts[1:], printed, strict=True):
        assert discounts == pytest.approx(theirs, rel=1e-5)
    assert largest_difference(found.ngrams, read_arpa(HERE / "lmplz.arpa")) < 1e-5


@pytest.mark.nightly
def test_the_numbers_of_lmplz_on_any_text(tmp_path: Path) -> None:
    executable = lmplz.find_or_build(tmp_path)
    rng = np.random.default_rng(0)
    books = (HERE / "lmplz.txt").read_text(encoding="utf-8").splitlines()
    worst = 0.0
    for order, prune, _ in itertools.product(range(3, 7), ((), (0, 1), (0, 0, 1)), range(4)):
        lines = lmplz.random_lines(rng)
        theirs = lmplz.run(executable, lines, tmp_path, order=order, prune=prune)
        worst = max(worst, largest_difference(of_lines(lines, order=order, prune=prune).ngrams, theirs))
    for order in range(2, 7):
        theirs = lmplz.run(executable, books, tmp_path, order=order, prune=())
        worst = max(worst, largest_difference(of_lines(books, order=order).ngrams, theirs))
    assert worst < 1e-5


@given(seed=st.integers(0, 2**31), order=st.integers(2, 6), prune=st.sampled_from([(), (0, 1), (0, 3)]))
@settings(max_examples=30, deadline=None)
def test_behind_every_history_the_probabilities_sum_to_one(seed: int, order: int, prune: tuple[int, ...]) -> None:
    lines = lmplz.random_lines(np.random.default_rng(seed))
    ngrams = of_lines(lines, order=order, prune=prune).ngrams
    grams = grams_of(ngrams)
    words = [word for word in ngrams.words if word != "<s>"]
    histories = [(), ("<unk>",), *(gram for gram in grams if len(gram) < order and gram[-1] not in ("</s>", "<unk>"))]
    for history in histories[:: max(1, len(histories) // 12)]:
        total = sum(10 ** score(grams, history, word, order) for word in words)
        assert total == pytest.approx(1.0, abs=1e-5), history


@given(seed=st.integers(0, 2**31), order=st.integers(2, 5))
@settings(max_examples=20, deadline=None)
def test_the_ngrams_are_those_of_the_text(seed: int, order: int) -> None:
    lines = lmplz.random_lines(np.random.default_rng(seed))
    expected = {("<unk>",)}
    for line in lines:
        words = ("<s>", *line.split(), "</s>")
        expected |= {words[i : i + n] for n in range(1, order + 1) for i in range(len(words) - n + 1)}
    found = of_lines(lines, order=order)
    assert set(grams_of(found.ngrams)) == expected
    assert found.tokens == sum(len(line.split()) for line in lines)


def test_pruning_leaves_out_what_is_rare() -> None:
    lines = ["a b", "a b", "a b c", "c a"]
    counts = {("a", "b"): 3, ("b", "</s>"): 2, ("<s>", "a"): 3, ("b", "c"): 1, ("<s>", "a", "b"): 3}
    for threshold in range(4):
        kept = set(grams_of(of_lines(lines, order=3, prune=(0, threshold)).ngrams))
        assert {gram for gram in counts if gram in kept} == {gram for gram, n in counts.items() if n > threshold}
        assert {("a",), ("b",), ("c",)} <= kept


def test_the_order_of_sentences_and_empty_ones_do_not_matter() -> None:
    lines = ["a b a", "b", "c c b a"]
    one = of_lines(lines, order=3).ngrams
    ids = {word: index for index, word in enumerate("abc")}
    arrays = [np.array([ids[word] for word in line.split()], dtype=np.int32) for line in ["", *lines, ""]]
    other = estimate(arrays, "abc", order=3)
    assert other.sentences == 3
    assert largest_difference(one, other.ngrams) == 0.0


@pytest.mark.parametrize("order", [1, 7])
def test_orders_that_cannot_be_estimated(order: int) -> None:
    with pytest.raises(LanguageModelError, match=f"the order is {order}; 2 to 6 can be estimated"):
        of_lines(["a"], order=order)


@pytest.mark.parametrize("prune", [(1,), (0, 2, 1), (0, 0, 0, 0)])
def test_thresholds_that_cannot_be(prune: tuple[int, ...]) -> None:
    with pytest.raises(LanguageModelError, match=r"needed are at most 3 numbers that do not fall, the first of them 0"):
        of_lines(["a"], order=3, prune=prune)


def test_text_that_cannot_be_used() -> None:
    with pytest.raises(LanguageModelError, match="no text to estimate from: 0 sentences"):
        of_lines([], order=3)
    with pytest.raises(LanguageModelError, match="no text to estimate from: 2 sentences, none with a token"):
        of_lines(["", " "], order=3)
    with pytest.raises(LanguageModelError, match=r"token ids must be of 0\.\.1, got 0 to 2"):
        estimate([np.array([0, 2], dtype=np.int32)], "ab", order=3)
    with pytest.raises(
        LanguageModelError, match="a token that the text has is called <s>, </s> or <unk>, or as another"
    ):
        estimate([np.array([0, 1], dtype=np.int32)], ["a", "</s>"], order=3)
    with pytest.raises(LanguageModelError, match="or as another token"):
        estimate([np.array([0, 1], dtype=np.int32)], ["a", "a"], order=3)
    assert estimate([np.array([0], dtype=np.int32)], ["a", "</s>"], order=3).tokens == 1
