"""Word errors with their times: are there more of them where a stream was re-anchored?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from asr.errors import ConfigError
from asr.metrics import WordErrors, normalize_english

__all__ = ["Located", "TimedText", "count_by_place", "locate", "is_near"]

REPEAT_UNITS = 3
"""An inserted word that stands within so many words of its equal is a doubled one."""


@dataclass(frozen=True, kw_only=True)
class TimedText:
    """Attributes: text: a word. at_ms: when it was spoken, or read, on the whole recording's clock."""

    text: str
    at_ms: int


@dataclass(frozen=True, kw_only=True)
class Located:
    """One unit of an alignment.

    Attributes:
        kind: "hit", "substitution", "deletion" or "insertion".
        text: the reference's word; an insertion's own.
        at_ms: of the reference's word; an insertion's own.
        doubled: whether it is an insertion close to its equal.
    """

    kind: str
    text: str
    at_ms: int
    doubled: bool = False


@lru_cache(maxsize=50_000)
def _normalised(word: str) -> tuple[str, ...]:
    return tuple(normalize_english(word).split())


def _units(words: Sequence[TimedText]) -> list[TimedText]:
    return [TimedText(text=unit, at_ms=word.at_ms) for word in words for unit in _normalised(word.text)]


def _jiwer() -> Any:
    try:
        import jiwer
    except ImportError as error:
        raise ConfigError(f"scoring needs jiwer: pip install 'earlybird-asr[eval]' ({error})") from error
    return jiwer


def locate(reference: Sequence[TimedText], hypothesis: Sequence[TimedText]) -> tuple[Located, ...]:
    """The cheapest edit of the one into the other, unit by unit, words normalised one by one.

    Args:
        reference, hypothesis: in the order of the text.
    Returns:
        hits, substitutions and deletions in the order of the reference, insertions between them.
    Raises:
        ConfigError: if the extra `eval` is not installed.
    """
    ref, hyp = _units(reference), _units(hypothesis)
    codes = {unit.text: "" for unit in [*ref, *hyp]}
    codes = {text: f"w{i}" for i, text in enumerate(codes)}
    if not ref or not hyp:
        kind = "deletion" if ref else "insertion"
        return tuple(Located(kind=kind, text=unit.text, at_ms=unit.at_ms) for unit in ref or hyp)
    found = _jiwer().process_words(" ".join(codes[u.text] for u in ref), " ".join(codes[u.text] for u in hyp))
    kinds = {"equal": "hit", "substitute": "substitution", "delete": "deletion"}
    located: list[Located] = []
    for chunk in found.alignments[0]:
        if chunk.type == "insert":
            for place in range(chunk.hyp_start_idx, chunk.hyp_end_idx):
                beside = hyp[max(0, place - REPEAT_UNITS) : place] + hyp[place + 1 : place + 1 + REPEAT_UNITS]
                doubled = any(unit.text == hyp[place].text for unit in beside)
                located.append(Located(kind="insertion", text=hyp[place].text, at_ms=hyp[place].at_ms, doubled=doubled))
        else:
            for unit in ref[chunk.ref_start_idx : chunk.ref_end_idx]:
                located.append(Located(kind=kinds[chunk.type], text=unit.text, at_ms=unit.at_ms))
    return tuple(located)


def is_near(at_ms: int, marks_ms: Sequence[int], *, within_ms: int) -> bool:
    """Whether a moment lies within `within_ms` of one of the marks.

    >>> is_near(900, [3000], within_ms=2000), is_near(1000, [3000], within_ms=2000)
    (False, True)
    """
    return any(abs(at_ms - mark) <= within_ms for mark in marks_ms)


def count_by_place(
    located: Sequence[Located], marks_ms: Sequence[int], *, within_ms: int
) -> dict[str, tuple[WordErrors, int]]:
    """Word errors, and how many of the insertions are doubled words, "near" the marks and "elsewhere"."""
    counts: dict[str, tuple[WordErrors, int]] = {}
    for place in ("near", "elsewhere"):
        here = [unit for unit in located if is_near(unit.at_ms, marks_ms, within_ms=within_ms) == (place == "near")]
        kinds = [unit.kind for unit in here]
        errors = WordErrors(*(kinds.count(kind) for kind in ("hit", "substitution", "deletion", "insertion")))
        counts[place] = (errors, sum(unit.doubled for unit in here))
    return counts
