"""Where a stretch of speech ends: a pure state machine over committed words and the audio clock."""

from __future__ import annotations

from dataclasses import dataclass

from asr.errors import ConfigError
from asr.text import TextDelta
from asr.words import Word
from streaming.events import Reason, Segment

SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！")
CLOSERS = "\"'”’)]»"


@dataclass(frozen=True, kw_only=True)
class EndpointConfig:
    """When a segment ends.

    Attributes:
        pause_ms: so long without a word; sentence_pause_ms: so long behind a sentence's end.
        longest_ms, most_words: a segment that reaches one of them ends behind its newest word.
    """

    pause_ms: int = 800
    sentence_pause_ms: int = 500
    longest_ms: int = 30_000
    most_words: int = 200

    def __post_init__(self) -> None:
        if min(self.pause_ms, self.sentence_pause_ms, self.longest_ms, self.most_words) < 1:
            raise ConfigError(f"every limit of an endpoint must be at least 1; got {self}")


def ends_sentence(text: str) -> bool:
    """Whether a word ends a sentence.

    >>> ends_sentence('now."'), ends_sentence("now,")
    (True, False)
    """
    return text.rstrip(CLOSERS).endswith(SENTENCE_ENDS)


class Endpointer:
    """Groups a session's words into segments.

    A word is committed some time after it was spoken: that none came says nothing about the last moments. So a pause
    is one that is quiet as well; where the background is never quiet, it counts up to the last moment from which a word
    would surely have been committed by now.

    Args:
        delay_ms: how late words are committed as a rule; lateness_ms: at the latest.
        config: when a segment ends.
    """

    def __init__(self, *, delay_ms: int, lateness_ms: int, config: EndpointConfig | None = None) -> None:
        self.config = config or EndpointConfig()
        self._delay_ms, self._lateness_ms = delay_ms, lateness_ms
        self._words: list[Word] = []
        self._first = 0

    def change_delay(self, *, delay_ms: int, lateness_ms: int) -> None:
        """Words are committed later or earlier from now on."""
        self._delay_ms, self._lateness_ms = delay_ms, lateness_ms

    def step(
        self, delta: TextDelta, *, processed_ms: int, quiet_ms: int, word_open: bool, flushed: bool
    ) -> list[Segment]:
        """The segments that end here.

        Args:
            delta: what is new.
            processed_ms: audio decoded; quiet_ms: how much of its end is no louder than the background.
            word_open: whether a word is under way.
            flushed: whether nothing more can come of the audio so far.
        """
        found = []
        if delta.amended is not None and delta.amended[0] >= self._first:
            self._words[delta.amended[0] - self._first] = delta.amended[1]
        for word in delta.words:
            if self._words and (
                len(self._words) >= self.config.most_words
                or word.end_ms - self._words[0].start_ms > self.config.longest_ms
            ):
                found.append(self._segment("length"))
            self._words.append(word)
        if self._words and flushed:
            found.append(self._segment("flush"))
        elif self._words and not word_open:
            since_ms = processed_ms - self._words[-1].end_ms
            pause_ms = max(min(quiet_ms, since_ms - self._delay_ms), since_ms - self._lateness_ms)
            if pause_ms >= self.config.pause_ms:
                found.append(self._segment("pause"))
            elif pause_ms >= self.config.sentence_pause_ms and ends_sentence(self._words[-1].text):
                found.append(self._segment("sentence"))
        return found

    def _segment(self, reason: Reason) -> Segment:
        words, first = self._words, self._first
        self._words, self._first = [], first + len(words)
        return Segment(
            text=" ".join(word.text for word in words),
            first=first,
            count=len(words),
            start_ms=words[0].start_ms,
            end_ms=words[-1].end_ms,
            reason=reason,
        )
