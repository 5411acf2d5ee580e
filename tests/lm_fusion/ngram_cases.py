"""N-gram models for the tests, and the definition of back-off to hold everything against."""

from __future__ import annotations

import math

import numpy as np

from lm_fusion.arpa import BEGIN, END, UNKNOWN, NGrams
from lm_fusion.ngram_units import Units

LETTERS = "abcdefgh"


def letter_units(letters: str = LETTERS) -> Units:
    """Each letter is a token, each space a word's end; nothing says where a word begins."""
    return Units("decoder", tuple(letters), lambda text: [letters.index(c) for c in text if c in letters], "")


def ngrams_of(grams: dict[str, tuple[float, float]]) -> NGrams:
    """The model of {"a b": (log10 probability, log10 back-off)}."""
    split = {tuple(text.split()): values for text, values in grams.items()}
    words = tuple(word for (word,) in (gram for gram in split if len(gram) == 1))
    order = max(map(len, split))
    parts = [[(gram, values) for gram, values in split.items() if len(gram) == n] for n in range(1, order + 1)]
    return NGrams(
        words=words,
        ids=tuple(
            np.array([[words.index(word) for word in gram] for gram, _ in part], dtype=np.int32).reshape(-1, n)
            for n, part in enumerate(parts, start=1)
        ),
        log10=tuple(np.array([values[0] for _, values in part], dtype=np.float32) for part in parts),
        backoff=tuple(np.array([values[1] for _, values in part], dtype=np.float32) for part in parts),
    )


def grams_of(ngrams: NGrams) -> dict[tuple[str, ...], tuple[float, float]]:
    """The inverse of `ngrams_of`, split into words."""
    return {
        tuple(ngrams.words[i] for i in row): (float(log10), float(backoff))
        for ids, log10s, backoffs in zip(ngrams.ids, ngrams.log10, ngrams.backoff, strict=True)
        for row, log10, backoff in zip(ids.tolist(), log10s, backoffs, strict=True)
    }


def score(grams: dict[tuple[str, ...], tuple[float, float]], history: tuple[str, ...], word: str, order: int) -> float:
    """log10 probability of a word, by the definition: the longest n-gram, and the back-off weights on the way to it."""
    words = {gram[0] for gram in grams if len(gram) == 1}
    word = word if word in words else UNKNOWN
    history = tuple(w if w in words else UNKNOWN for w in history)[max(0, len(history) - order + 1) :]
    for begin in range(len(history) + 1):
        if (*history[begin:], word) in grams:
            weights = [grams[history[i:]][1] for i in range(begin) if history[i:] in grams]
            return grams[(*history[begin:], word)][0] + math.fsum(weights)
    return -100.0 + math.fsum(grams[history[i:]][1] for i in range(len(history)) if history[i:] in grams)


def random_ngrams(
    rng: np.random.Generator, order: int, *, letters: str = LETTERS, unknown: bool = True, holes: bool = False
) -> NGrams:
    """A model of random n-grams over some of the letters, `<unk>` in longer ones included; not a distribution.

    Args:
        unknown: whether it has <unk>.
        holes: whether n-grams may lack their beginning or their end in the order below, as pruning leaves them.
    """
    known = [letter for letter in letters if rng.random() < 0.75] or [letters[0]]
    inside = known + [UNKNOWN] * unknown
    weigh = order > 1
    grams: dict[str, tuple[float, float]] = {BEGIN: (-99.0, weigh * _weight(rng)), END: (-float(rng.random()), 0.0)}
    grams |= {word: (-3 * float(rng.random()), weigh * _weight(rng)) for word in inside}
    shorter = [(BEGIN,), *((word,) for word in inside)]
    for n in range(2, order + 1):
        found = {}
        for _ in range(12):
            start = shorter[rng.integers(len(shorter))] if shorter else ()
            if len(start) < n - 1 or holes:
                start = (*start, *rng.choice(inside, size=n))[: n - 1]
            end = END if rng.random() < 0.15 else str(rng.choice(inside))
            suffix = " ".join((*start[1:], end))
            if holes or suffix in grams or n == 2:
                found[(*map(str, start), end)] = (-3 * float(rng.random()), _weight(rng) if n < order else 0.0)
        grams |= {" ".join(gram): (p, 0.0 if gram[-1] == END else b) for gram, (p, b) in found.items()}
        shorter = [gram for gram in found if gram[-1] != END]
    return ngrams_of(grams)


def _weight(rng: np.random.Generator) -> float:
    return 0.0 if rng.random() < 0.3 else float(rng.normal(-0.3, 0.4))
