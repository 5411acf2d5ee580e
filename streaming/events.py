"""What a session says. Committed text never changes; only a tail does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asr.words import DecodeStats, Word

Reason = Literal["pause", "sentence", "flush", "length"]


@dataclass(frozen=True, kw_only=True)
class Words:
    """Committed text: append-only.

    Attributes:
        text: exactly what is appended, leading space included; all of a session's in a row are its transcript.
        words: new words, every one closed; `first` is the number, from the session's start, of the first of them.
        amended: (number, word) of the one that later pieces joined (late punctuation), as it is now; it comes before
            `words`. None if there is none.
    """

    text: str
    words: tuple[Word, ...]
    first: int
    amended: tuple[int, Word] | None = None


@dataclass(frozen=True, kw_only=True)
class Tail:
    """A volatile preview of what may come after the committed text; each one replaces the one before.

    Only a model with a CTC head gives any. It is never a part of the transcript; empty when there is nothing to show.
    """

    text: str


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of speech that has ended.

    Attributes:
        text: its words with one space between them.
        first: the number of its first word; count: how many it has.
        start_ms, end_ms: from its first word's start to its last word's end.
        reason: a pause; a shorter one behind a sentence's end; a flush; or that it had become too long.
    """

    text: str
    first: int
    count: int
    start_ms: int
    end_ms: int
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """How far a session is.

    Attributes:
        received_ms: audio that came in; processed_ms: audio decoded; lag_ms: the difference, up to a chunk while all is
            well.
    """

    received_ms: int
    processed_ms: int

    @property
    def lag_ms(self) -> int:
        """Audio that waits."""
        return self.received_ms - self.processed_ms


@dataclass(frozen=True, kw_only=True)
class Flushed:
    """Every `flush` is answered by one of these, after all words of the audio before it.

    Attributes:
        audio_ms: audio so far.
    """

    audio_ms: int


@dataclass(frozen=True, kw_only=True)
class Closed:
    """The last event.

    Attributes:
        audio_ms: all audio. stats: what it cost. warnings: what was suspicious about it, one sentence each.
    """

    audio_ms: int
    stats: DecodeStats
    warnings: tuple[str, ...] = ()


Event = Words | Tail | Segment | Heartbeat | Flushed | Closed
