"""Which words of a development set are rare, and phrase lists of any length that hold a clip's own.

The rule: a word of the set's normalised transcripts is a *keyword* if it is letters only, at least four of them, and
not among the most frequent words of the text that the n-gram model is trained on. *Distractors* are words of that text
by the same rule that no transcript of the set holds.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from asr.metrics import normalize_english
from recipes.data import Clip

__all__ = ["clip_keywords", "distractors", "list_for", "rare", "word_counts"]

LEAST_LETTERS = 4
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")


def word_counts(lines: Iterable[str]) -> Counter[str]:
    """How often each lower-case word occurs.

    >>> word_counts(["It's the THE", "dog"])["the"]
    2
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(_WORD.findall(line.lower().replace("’", "'")))
    return counts


def rare(word: str, common: Collection[str]) -> bool:
    """Whether a word is one that a list could be needed for.

    Args:
        word: lower case.
        common: the most frequent words.

    >>> [word for word in ("kubernetes", "house", "r2d2", "zoe") if rare(word, {"house"})]
    ['kubernetes']
    """
    return word.isascii() and word.isalpha() and len(word) >= LEAST_LETTERS and word not in common


def clip_keywords(clips: Iterable[Clip], common: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The rare words of each clip's transcript, by the clip's name, each once."""
    found: dict[str, tuple[str, ...]] = {}
    for clip in clips:
        words = dict.fromkeys(normalize_english(clip.text or "").split())
        found[clip.audio] = tuple(word for word in words if rare(word, common))
    return found


def distractors(counts: Mapping[str, int], common: Collection[str], spoken: Collection[str]) -> tuple[str, ...]:
    """Rare words of the text that are never spoken, sorted."""
    return tuple(sorted(word for word in counts if rare(word, common) and word not in spoken))


def list_for(own: Sequence[str], others: Sequence[str], *, size: int, seed: str) -> tuple[str, ...]:
    """A list of `size` phrases: a clip's own, then others drawn by a seed; own ones beyond `size` are left out.

    Args:
        own: the clip's keywords; none for a list of absent phrases.
        others: to draw from; all of them if there are no more.
        size: of the list.
        seed: gives the same list for the same clip.
    """
    own = tuple(own)[:size]
    return (*own, *random.Random(seed).sample(others, min(size - len(own), len(others))))
