"""Comparing two ways of recognising the same clips: paired intervals, and how well chosen words are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from asr.errors import ConfigError
from asr.metrics import WordErrors, normalize_english

__all__ = ["KeywordCounts", "PairedDifference", "count_keywords", "paired_difference"]


@dataclass(frozen=True)
class KeywordCounts:
    """Chosen words in some clips.

    Attributes:
        spoken: in the references; written: in the hypotheses; found: in both, clip by clip.
    """

    spoken: int = 0
    written: int = 0
    found: int = 0

    def __add__(self, other: KeywordCounts) -> KeywordCounts:
        """The counts of both."""
        return KeywordCounts(self.spoken + other.spoken, self.written + other.written, self.found + other.found)

    @property
    def recall(self) -> float | None:
        """Share of the spoken ones that were written; None if none was spoken."""
        return self.found / self.spoken if self.spoken else None

    @property
    def precision(self) -> float | None:
        """Share of the written ones that were spoken; None if none was written."""
        return self.found / self.written if self.written else None


def count_keywords(keywords: Collection[str], reference: str, hypothesis: str) -> KeywordCounts:
    """How often the words `keywords` were spoken, written, and both, in one clip.

    Args:
        keywords: as `normalize_english` writes them, one word each.
        reference, hypothesis: texts of the clip.

    Raises:
        ConfigError: if the extra `eval` is not installed.

    >>> count_keywords({"zoe", "kubernetes"}, "Zoe likes Zoe", "Zoe likes Kubernetes")
    KeywordCounts(spoken=2, written=2, found=1)
    """
    counts = [
        Counter(word for word in normalize_english(text).split() if word in keywords)
        for text in (reference, hypothesis)
    ]
    return KeywordCounts(counts[0].total(), counts[1].total(), (counts[0] & counts[1]).total())


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """Word error rate of one way less that of another, on the same clips.

    Attributes:
        difference: as a rate; below 0 the first way is better.
        low, high: its 95 % interval over clips.
    """

    difference: float
    low: float
    high: float

    @property
    def better(self) -> bool:
        """Whether the first way is better beyond what the choice of clips explains."""
        return self.high < 0


def paired_difference(
    first: Sequence[WordErrors], second: Sequence[WordErrors], *, seed: int, rounds: int = 2000
) -> PairedDifference:
    """The difference of two word error rates, clips resampled together.

    Args:
        first, second: of the same clips in the same order, with at least one reference word in all.
        seed: of the resampling; rounds: samples drawn.

    Raises:
        ConfigError: if they are not of the same clips, or there is nothing to compare.
    """
    words = np.array([errors.reference_length for errors in first])
    if len(first) != len(second) or not words.sum() or any(words != [e.reference_length for e in second]):
        raise ConfigError(f"need errors of the same clips with words, got {len(first)} and {len(second)} clips")
    differences = np.array([a.errors - b.errors for a, b in zip(first, second, strict=True)])
    chosen = np.random.default_rng(seed).integers(0, len(words), (rounds, len(words)))
    drawn = words[chosen].sum(1)
    rates = differences[chosen].sum(1)[drawn > 0] / drawn[drawn > 0]
    low, high = np.quantile(rates, [0.025, 0.975])
    return PairedDifference(difference=float(differences.sum() / words.sum()), low=float(low), high=float(high))
