"""Words with times to captions that can be read, by the usual rules of broadcasters.

At most two lines of 42 columns, at most 20 characters a second, at least one second and at most seven on the screen, no
two at once, broken where the speaker breaks: at the end of a sentence, at a comma, in a pause.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from asr.words import Word

__all__ = ["Cue", "columns", "cue_lines", "lay_out"]

LINE_COLUMNS = 42
LINES = 2
MS_A_CHARACTER = 50
LEAST_MS = 1_000
MOST_MS = 7_000
LINGER_MS = 800
"""So long a caption stays after its last word, where nothing follows."""
LONG_PAUSE_MS = 1_500
"""A caption never spans such a pause."""
PAUSE_MS = 300
SENTENCE_END, CLAUSE_END = ".?!…。？！", ",;:–—、，；："
CLOSING = "\"'”’)]»"

AFTER_COMMA_COLUMNS = 20
"""A line that ends at a comma may be so much longer or shorter than the other."""

A_CUE, AFTER_CLAUSE, AFTER_PAUSE, NOWHERE = 1.0, 0.5, 0.3, 3.0
"""Costs of a caption, by where it ends; after a sentence it costs itself alone."""
A_SENTENCE_GOES_ON, A_PAUSE_GOES_ON, LATE_SECOND = 0.8, 0.8, 4.0
"""Costs of a sentence's end and of a pause within a caption, and of each second that its reading takes too long."""


@dataclass(frozen=True, kw_only=True)
class Cue:
    """One caption.

    Attributes:
        start_ms, end_ms: when it is shown.
        lines: one or two.
        speaker: whose it is; None where there is one.
    """

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    speaker: str | None = None


@dataclass(frozen=True)
class _Part:
    """A word, or as much of one as fits a line. Attributes: glued: it follows without a space."""

    text: str
    start_ms: int
    end_ms: int
    glued: bool = False


def columns(text: str) -> int:
    r"""Width of a text: 2 for each wide (Chinese, Japanese, Korean) character, 0 for marks on another, else 1.

    >>> columns("abc"), columns("日本"), columns("e\u0301")
    (3, 4, 1)
    """
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _parts(words: Iterable[Word]) -> list[_Part]:
    found = []
    for word in words:
        pieces, line = [], ""
        for character in word.text:
            if columns(line + character) > LINE_COLUMNS:
                pieces.append(line)
                line = ""
            line += character
        pieces.append(line)
        length = word.end_ms - word.start_ms
        for at, piece in enumerate(pieces):
            start = word.start_ms + length * at // len(pieces)
            end = word.start_ms + length * (at + 1) // len(pieces)
            found.append(_Part(piece, start, end, glued=at > 0))
    return found


def _joined(parts: Sequence[_Part]) -> str:
    return "".join(part.text if part.glued or not at else f" {part.text}" for at, part in enumerate(parts))


def _ends(text: str, marks: str) -> bool:
    return text.rstrip(CLOSING)[-1:] in tuple(marks)


def cue_lines(texts: Sequence[str], glued: Sequence[bool]) -> tuple[str, ...] | None:
    """One or two lines of the texts, as even as they can be, rather after a comma; None if they do not fit.

    Args:
        texts: each at most a line.
        glued: whether each follows the one before without a space.
    """
    parts = [_Part(text, 0, 0, glued=one) for text, one in zip(texts, glued, strict=True)]
    whole = _joined(parts)
    if columns(whole) <= LINE_COLUMNS:
        return (whole,)
    best: tuple[int, tuple[str, str]] | None = None
    for at in range(1, len(parts)):
        upper, lower = _joined(parts[:at]), _joined(parts[at:])
        widths = columns(upper), columns(lower)
        if max(widths) > LINE_COLUMNS:
            continue
        cost = abs(widths[0] - widths[1]) - (AFTER_COMMA_COLUMNS if _ends(upper, SENTENCE_END + CLAUSE_END) else 0)
        if best is None or cost < best[0]:
            best = cost, (upper, lower)
    return None if best is None else best[1]


def _lines(parts: Sequence[_Part], label: str) -> tuple[str, ...] | None:
    label_parts = [_Part(label, 0, 0)] if label else []
    every = [*label_parts, *parts]
    return cue_lines([part.text for part in every], [part.glued for part in every])


def _reading_ms(lines: Sequence[str]) -> int:
    return max(LEAST_MS, MS_A_CHARACTER * sum(map(len, lines)))


@dataclass(frozen=True)
class _Draft:
    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    speaker: str | None

    @property
    def needs_ms(self) -> int:
        return _reading_ms(self.lines)


def _break_cost(parts: Sequence[_Part], last: int) -> float:
    """Of ending a caption behind parts[last]."""
    if last == len(parts) - 1:
        return A_CUE
    pause = parts[last + 1].start_ms - parts[last].end_ms
    if _ends(parts[last].text, SENTENCE_END) or pause >= LONG_PAUSE_MS:
        return A_CUE
    if _ends(parts[last].text, CLAUSE_END):
        return A_CUE + AFTER_CLAUSE
    return A_CUE + (AFTER_PAUSE if pause >= PAUSE_MS else NOWHERE)


def _cut(parts: Sequence[_Part], label: str, speaker: str | None) -> list[_Draft]:
    """The cheapest way to cut one speaker's parts into captions."""
    cost: list[float] = [0.0]
    chosen: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    for end in range(1, len(parts) + 1):
        best, inner = float("inf"), 0.0
        pick: tuple[int, tuple[str, ...]] = (end - 1, ())
        for start in range(end - 1, -1, -1):
            if start < end - 1:
                pause = parts[start + 1].start_ms - parts[start].end_ms
                if pause >= LONG_PAUSE_MS:
                    break
                inner += A_SENTENCE_GOES_ON * _ends(parts[start].text, SENTENCE_END)
                inner += A_PAUSE_GOES_ON * (pause >= PAUSE_MS)
            lines = _lines(parts[start:end], label)
            if lines is None and start < end - 1:
                break
            if start < end - 1 and parts[end - 1].end_ms - parts[start].start_ms > MOST_MS:
                break
            lines = lines or (label, parts[start].text)  # a part as wide as a line, below its speaker
            follows = parts[end].start_ms if end < len(parts) else parts[-1].end_ms + LINGER_MS
            late = max(0, _reading_ms(lines) - (follows - parts[start].start_ms))
            total = cost[start] + inner + _break_cost(parts, end - 1) + LATE_SECOND * late / 1000
            if total < best:
                best, pick = total, (start, lines)
        cost.append(best)
        chosen.append(pick)
    found, end = [], len(parts)
    while end:
        start, lines = chosen[end]
        found.append(_Draft(parts[start].start_ms, parts[end - 1].end_ms, lines, speaker))
        end = start
    return found[::-1]


def _timed(drafts: Sequence[_Draft], duration_ms: int) -> list[Cue]:
    """When each is shown: with its words, later where those before it are not read yet, earlier where the end is near.

    Captions that cannot all be read before the audio ends go on behind its end.
    """
    latest = [0] * len(drafts)
    end = max(duration_ms, sum(draft.needs_ms for draft in drafts))
    for at in range(len(drafts) - 1, -1, -1):
        latest[at] = end = end - drafts[at].needs_ms
    starts: list[int] = []
    free = 0
    for draft, last_chance in zip(drafts, latest, strict=True):
        starts.append(max(free, min(draft.start_ms, last_chance)))
        free = starts[-1] + draft.needs_ms
    cues = []
    for at, (draft, start) in enumerate(zip(drafts, starts, strict=True)):
        follows = starts[at + 1] if at + 1 < len(starts) else max(duration_ms, start + draft.needs_ms)
        wanted = max(start + draft.needs_ms, draft.end_ms + LINGER_MS)
        end = min(wanted, follows, start + MOST_MS)
        cues.append(Cue(start_ms=start, end_ms=end, lines=draft.lines, speaker=draft.speaker))
    return cues


def lay_out(
    turns: Iterable[tuple[str | None, Sequence[Word]]], *, duration_ms: int, label: str = "{speaker}:"
) -> list[Cue]:
    """Captions of what was said.

    Args:
        turns: (speaker, words) by time; the speaker is None where there is one.
        duration_ms: of the audio.
        label: how a speaker is named before the words; it counts as text. "" where the format names them.
    """
    drafts = [
        draft
        for speaker, words in turns
        for draft in _cut(_parts(words), "" if speaker is None else label.format(speaker=speaker), speaker)
    ]
    drafts.sort(key=lambda draft: draft.start_ms)
    return _timed(drafts, duration_ms)
