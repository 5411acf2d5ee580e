"""Linear interpolation: known answers, sums of 1, and what must not change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.errors import LanguageModelError
from lm_fusion.estimate import estimate
from lm_fusion.ngram_mix import mix
from tests.lm_fusion.lmplz import random_lines
from tests.lm_fusion.ngram_cases import grams_of, ngrams_of, score
from tests.lm_fusion.test_estimate import largest_difference, of_lines


def log10(value: float) -> float:
    return float(np.log10(value))


def test_known_answers() -> None:
    first = ngrams_of(
        {"<s>": (0, log10(0.5)), "</s>": (log10(0.5), 0), "a": (log10(0.5), 0)} | {"<s> a": (log10(0.75), 0)}
    )
    second = ngrams_of({"<s>": (0, 0), "</s>": (log10(0.25), 0), "b": (log10(0.75), 0)})
    grams = grams_of(mix(first, second, 0.25))
    p = {gram: 10 ** values[0] for gram, values in grams.items()}
    # b is not known to the first model, a not to the second: 0 there.
    assert p[("a",)] == pytest.approx(0.25 * 0.5)
    assert p[("b",)] == pytest.approx(0.75 * 0.75)
    assert p[("</s>",)] == pytest.approx(0.25 * 0.5 + 0.75 * 0.25)
    assert p[("<s>", "a")] == pytest.approx(0.25 * 0.75)
    # What is left behind <s> is shared out as without it: (1 - 0.1875) / (1 - 0.125).
    assert 10 ** grams[("<s>",)][1] == pytest.approx(0.8125 / 0.875)
    assert grams.keys() == {("<s>",), ("</s>",), ("a",), ("b",), ("<s>", "a")}


@given(seed=st.integers(0, 2**31), orders=st.tuples(st.integers(2, 4), st.integers(2, 4)), weight=st.floats(0.05, 0.95))
@settings(max_examples=25, deadline=None)
def test_listed_ngrams_are_the_mean_and_all_sum_to_one(seed: int, orders: tuple[int, int], weight: float) -> None:
    rng = np.random.default_rng(seed)
    parts = [of_lines(random_lines(rng), order=order, prune=(0, 1)).ngrams for order in orders]
    mixture = mix(*parts, weight)
    grams, tables = grams_of(mixture), [grams_of(part) for part in parts]
    order = max(orders)
    assert mixture.order == order
    assert set(grams) == set(tables[0]) | set(tables[1])

    def part_score(index: int, history: tuple[str, ...], word: str) -> float:
        return 10 ** score(tables[index], history, word, orders[index]) if (word,) in tables[index] else 0.0

    chosen = list(grams)[:: max(1, len(grams) // 40)]
    for gram in chosen:
        mean = weight * part_score(0, gram[:-1], gram[-1]) + (1 - weight) * part_score(1, gram[:-1], gram[-1])
        assert 10 ** grams[gram][0] == pytest.approx(mean, rel=1e-4)
    words = [word for word in mixture.words if word != "<s>"]
    for history in [(), *(gram for gram in chosen if len(gram) < order and gram[-1] not in ("</s>", "<unk>"))]:
        assert sum(10 ** score(grams, history, word, order) for word in words) == pytest.approx(1.0, abs=1e-4), history


@pytest.mark.parametrize("order", [2, 3, 4])
def test_a_model_with_itself_is_itself(order: int) -> None:
    model = of_lines(random_lines(np.random.default_rng(order)), order=order).ngrams
    grams, mixed = grams_of(model), grams_of(mix(model, model, 0.3))
    assert grams.keys() == mixed.keys()
    for gram, (probability, backoff) in grams.items():
        assert mixed[gram][0] == pytest.approx(probability, abs=1e-6)
        if backoff > -3:  # below, single precision has little left of the sums that it is made from
            assert mixed[gram][1] == pytest.approx(backoff, abs=1e-3)


def test_which_is_first_is_told_by_the_weight() -> None:
    rng = np.random.default_rng(5)
    one, other = (of_lines(random_lines(rng), order=3).ngrams for _ in range(2))
    assert largest_difference(mix(one, other, 0.25), mix(other, one, 0.75)) < 1e-4


@pytest.mark.parametrize("weight", [0.0, 1.0, -0.5, 1.5])
def test_weights_that_are_none(weight: float) -> None:
    model = estimate([np.array([0], dtype=np.int32)], "a", order=2).ngrams
    with pytest.raises(LanguageModelError, match=f"the first model's weight is {weight}; it must lie between 0 and 1"):
        mix(model, model, weight)
