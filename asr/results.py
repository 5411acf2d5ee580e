"""What became of a file, and of a recording with a speaker a channel; loads no PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from asr.errors import EarlybirdError
from asr.words import Transcript, Word

__all__ = ["FileResult", "Turn"]

TURN_PAUSE_MS = 700
"""A speaker who is silent for so long gives the turn away."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one channel says until another one does. Attributes: channel: from 0. words: at least one."""

    channel: int
    words: tuple[Word, ...]

    @property
    def text(self) -> str:
        """The words with one space between them."""
        return " ".join(word.text for word in self.words)


@dataclass(frozen=True, kw_only=True)
class FileResult:
    """What became of one file.

    Attributes:
        path: as it was given.
        transcripts: one, or with channel="each" one a channel; none where there is an error.
        error: why there is no transcript.
        warnings: what was suspicious, one sentence each.
    """

    path: Path
    transcripts: tuple[Transcript, ...] = ()
    error: EarlybirdError | None = None
    warnings: tuple[str, ...] = ()

    @property
    def audio_samples(self) -> int:
        """Length at 16 kHz."""
        return max((transcript.audio_samples for transcript in self.transcripts), default=0)

    def turns(self) -> list[Turn]:
        """The words of all channels by time: each channel's are cut at pauses, the cuts sorted by start."""
        spoken = [
            Turn(channel=channel, words=words)
            for channel, transcript in enumerate(self.transcripts)
            for words in _utterances(transcript.words)
        ]
        spoken.sort(key=lambda turn: (turn.words[0].start_ms, turn.channel))
        return [
            Turn(channel=channel, words=tuple(word for turn in turns for word in turn.words))
            for channel, turns in groupby(spoken, key=lambda turn: turn.channel)
        ]


def _utterances(words: Iterable[Word]) -> Iterator[tuple[Word, ...]]:
    under_way: list[Word] = []
    for word in words:
        if under_way and word.start_ms - under_way[-1].end_ms >= TURN_PAUSE_MS:
            yield tuple(under_way)
            under_way = []
        under_way.append(word)
    if under_way:
        yield tuple(under_way)
