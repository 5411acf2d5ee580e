"""Modified Kneser–Ney estimation (Chen and Goodman 1998) by sorting, without a compiler.

Interpolated, and in every choice as KenLM's `lmplz` does it (Heafield et al. 2013): <unk> gets the share of the uniform
distribution, <s> has probability 1, n-grams that begin a sentence keep their plain counts, discounts that cannot be
estimated are replaced by 0.5, 1 and 1.5 (`--discount_fallback`), and pruning (`--prune`) keeps the sums at 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asr.errors import LanguageModelError
from lm_fusion.arpa import BEGIN, END, MARKS, UNKNOWN, NGrams

Longs = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

LOWEST_ORDER, HIGHEST_ORDER = 2, 6
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
_UNKNOWN, _BEGIN, _END = range(3)


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """A model and how it came about.

    Attributes:
        ngrams: the model.
        discounts: per order those of n-grams seen once, twice, more often.
        fallback: orders whose discounts could not be estimated.
        sentences, tokens: of the text.
    """

    ngrams: NGrams
    discounts: tuple[tuple[float, float, float], ...]
    fallback: tuple[int, ...]
    sentences: int
    tokens: int


@dataclass(frozen=True, kw_only=True, eq=False)
class _Order:
    """The different n-grams of one order, sorted by what stands before them.

    Attributes:
        suffix: [M] index of the n-gram without its first word, in the order below.
        context: [M] index of the n-gram without its last word, in the order below.
        at: [M] where in the text one of them ends.
        raw: [M] how often they are met.
        begins: [M] whether they start with <s>.
        rank: [T] the n-gram that ends at each place, -1 where a sentence is not that far.
    """

    suffix: Longs
    context: Longs
    at: Longs
    raw: Longs
    begins: Bools
    rank: npt.NDArray[np.int32]


def estimate(
    sentences: Sequence[npt.NDArray[np.int32]], names: Sequence[str], *, order: int, prune: Sequence[int] = ()
) -> Estimate:
    """The modified Kneser–Ney model of a text.

    Args:
        sentences: token ids below len(names); one without tokens counts for nothing.
        names: [V] what to call each token.
        order: N.
        prune: n-grams met at most so often are left out: one number an order, not falling, the last one for all orders
            behind it; the first must be 0, for a token that was seen is kept.

    Raises:
        LanguageModelError: if the order or the thresholds cannot be used, there is no text, or an id or name is wrong.
    """
    thresholds = _thresholds(order, prune)
    text, offset = _flatten(sentences, len(names))
    seen = np.flatnonzero(np.bincount(text, minlength=3)[3:]) + 3
    words = (*MARKS_IN_ORDER, *(names[i - 3] for i in seen.tolist()))
    if any(word in MARKS for word in words[3:]) or len(set(words)) < len(words):
        raise LanguageModelError("a token that the text has is called <s>, </s> or <unk>, or as another token is")
    dense = np.zeros(len(names) + 3, dtype=np.int64)
    dense[seen] = np.arange(3, 3 + len(seen))
    dense[:3] = range(3)
    text = dense[text]
    orders = _count(text, offset, order, len(words))
    return _estimate(text, offset, orders, words, thresholds)


MARKS_IN_ORDER = (UNKNOWN, BEGIN, END)


def _thresholds(order: int, prune: Sequence[int]) -> list[int]:
    if not LOWEST_ORDER <= order <= HIGHEST_ORDER:
        raise LanguageModelError(f"the order is {order}; {LOWEST_ORDER} to {HIGHEST_ORDER} can be estimated")
    given = list(prune) or [0]
    thresholds = (given + [given[-1]] * order)[:order]
    if len(given) > order or thresholds[0] != 0 or sorted(thresholds) != thresholds:
        raise LanguageModelError(
            f"prune is {given}; needed are at most {order} numbers that do not fall, the first of them 0"
        )
    return thresholds


def _flatten(sentences: Sequence[npt.NDArray[np.int32]], size: int) -> tuple[Longs, npt.NDArray[np.int32]]:
    """The text as [T] ids with marks, tokens from 3 on, and how far each place is from the <s> of its sentence."""
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
    full = [sentence for sentence in sentences if len(sentence)]
    if not full:
        raise LanguageModelError(f"there is no text to estimate from: {len(sentences)} sentences, none with a token")
    lengths = lengths[lengths > 0] + 2
    ends = np.cumsum(lengths)
    starts = ends - lengths
    tokens = np.concatenate(full).astype(np.int64)
    if tokens.min() < 0 or tokens.max() >= size:
        raise LanguageModelError(f"token ids must be of 0..{size - 1}, got {tokens.min()} to {tokens.max()}")
    text = np.full(ends[-1], -1, dtype=np.int64)
    text[starts], text[ends - 1] = _BEGIN, _END
    text[text < 0] = tokens + 3
    offset = np.arange(ends[-1]) - np.repeat(starts, lengths)
    return text, offset.astype(np.int32)


def _count(text: Longs, offset: npt.NDArray[np.int32], order: int, size: int) -> list[_Order]:
    """The n-grams of each order; each is named by the one without its first word, and that word."""
    nothing = np.zeros(size, dtype=np.int64)
    at = np.zeros(size, dtype=np.int64)
    at[text] = np.arange(len(text))
    orders = [
        _Order(
            suffix=nothing,
            context=nothing,
            at=at,
            raw=np.bincount(text, minlength=size),
            begins=np.arange(size) == _BEGIN,
            rank=text.astype(np.int32),
        )
    ]
    for n in range(2, order + 1):
        below = orders[-1].rank
        places = np.flatnonzero(offset >= n - 1)
        keys = below[places].astype(np.int64) * size + text[places - n + 1]
        unique, first, inverse, raw = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        rank = np.full(len(text), -1, dtype=np.int32)
        rank[places] = inverse
        at = places[first]
        orders.append(
            _Order(
                suffix=unique // size,
                context=below[at - 1].astype(np.int64),
                at=at,
                raw=raw,
                begins=unique % size == _BEGIN,
                rank=rank,
            )
        )
    return orders


def _estimate(
    text: Longs, offset: npt.NDArray[np.int32], orders: list[_Order], words: tuple[str, ...], thresholds: list[int]
) -> Estimate:
    size, N = len(words), len(orders)
    last = _last_place(text, offset, N)
    ids, log10, backoff, discounts, fallback = [], [], [], [], []
    kept_before = np.ones(size, dtype=np.bool_)
    below = np.full(1, 1 / (size - 1))  # the uniform distribution, over <unk> too but not <s>
    for n, grams in enumerate(orders, start=1):
        counts = _adjusted(grams, None if n == N else orders[n])
        if n == 1:
            counts[_BEGIN] = 0
        discount, estimated = _discounts(_count_of_counts(counts, grams, n, N, last))
        discounts.append(discount)
        if not estimated:
            fallback.append(n)
        kept = np.ones(len(counts), dtype=np.bool_) if n == 1 else grams.raw > thresholds[n - 1]
        off = np.array([0.0, *discount])[np.minimum(counts, 3)]
        contexts = 1 if n == 1 else len(orders[n - 2].raw)
        total = np.bincount(grams.context, weights=counts, minlength=contexts)
        spare = np.bincount(grams.context, weights=np.where(kept, off, counts), minlength=contexts)
        is_context = total > 0
        gamma = np.ones(contexts)
        gamma[is_context] = spare[is_context] / total[is_context]
        probability = (counts - off) / total[grams.context] + gamma[grams.context] * below[grams.suffix]
        if n == 1:
            probability[_BEGIN] = 1.0
        else:
            backoff.append(np.log10(gamma)[kept_before])
        keep = np.flatnonzero(kept)
        ids.append(np.stack([text[grams.at[keep] - n + 1 + j] for j in range(n)], axis=1) if n > 1 else keep[:, None])
        log10.append(np.minimum(np.log10(probability[keep]), 0.0))
        below, kept_before = probability, kept
    backoff.append(np.zeros(len(ids[-1])))
    ngrams = NGrams(
        words=words,
        ids=tuple(rows.astype(np.int32) for rows in ids),
        log10=tuple(values.astype(np.float32) for values in log10),
        backoff=tuple(values.astype(np.float32) for values in backoff),
    )
    sentences = int(np.count_nonzero(text == _END))
    return Estimate(
        ngrams=ngrams,
        discounts=tuple(discounts),
        fallback=tuple(fallback),
        sentences=sentences,
        tokens=len(text) - 2 * sentences,
    )


def _adjusted(grams: _Order, longer: _Order | None) -> Longs:
    """Kneser–Ney counts: before how many different words an n-gram is met; its plain count where none can be before."""
    if longer is None:
        return grams.raw.copy()
    different = np.bincount(longer.suffix, minlength=len(grams.raw))
    return np.where(grams.begins, grams.raw, different)


def _count_of_counts(counts: Longs, grams: _Order, n: int, N: int, last: int) -> Longs:
    """How many n-grams have the count 1, 2, 3, 4: [5].

    `lmplz` takes the plain count of the n-gram that comes last in its order for its adjusted one. With a small text
    that moves a discount, so it is done here as well.
    """
    of = np.bincount(np.minimum(counts, 5), minlength=6)[:5]
    gram = int(grams.rank[last])
    if n < N and gram >= 0:
        for value, change in ((int(counts[gram]), -1), (int(grams.raw[gram]), 1)):
            if value < 5:
                of[value] += change
    return of


def _last_place(text: Longs, offset: npt.NDArray[np.int32], N: int) -> int:
    """Where the n-gram ends that `lmplz` comes to last: by last word first, words by their first appearance."""
    first = np.full(int(text.max()) + 1, len(text))
    np.minimum.at(first, text, np.arange(len(text)))
    first[[_BEGIN, _END]] = [-2, -1]
    places = np.flatnonzero(offset > 0)
    for back in range(N):
        inside = offset[places] >= back
        appeared = np.where(inside, first[text[places - np.minimum(back, offset[places])]], first[_BEGIN])
        places = places[appeared == appeared.max()]
    return int(places[0])


def _discounts(of: Longs) -> tuple[tuple[float, float, float], bool]:
    """Chen and Goodman's equation 26, and whether it could be used."""
    if of[1] and of[2] and of[3]:
        y = of[1] / (of[1] + 2 * of[2])
        found = [j - (j + 1) * y * of[j + 1] / of[j] for j in (1, 2, 3)]
        if min(found) >= 0:
            return (float(found[0]), float(found[1]), float(found[2])), True
    return FALLBACK_DISCOUNTS, False
