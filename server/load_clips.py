"""What clients of a load trial say, and what each of them gets of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from asr.errors import ConfigError
from asr.metrics import word_delays

__all__ = ["ArrivedWord", "Heard", "LoadClip", "SpokenWord", "read_clips"]


@dataclass(frozen=True, kw_only=True)
class SpokenWord:
    """Attributes: text: a word of a recording. end_ms: when it ends, from the recording's start."""

    text: str
    end_ms: int


@dataclass(frozen=True, kw_only=True)
class LoadClip:
    """A recording, what is said in it, and when, if that is known."""

    path: Path
    text: str
    words: tuple[SpokenWord, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ArrivedWord:
    """A word as a client got it.

    Attributes:
        text: the word.
        emitted_ms: when it was there for good, on the clock on which the client began to speak at 0.
        end_ms: when it ends, as the server has it; None where it does not say.
    """

    text: str
    emitted_ms: int
    end_ms: int | None


@dataclass
class Heard:
    """What one client got of one clip. Attributes: lags_ms: audio sent and not decoded, once a second."""

    clip: LoadClip
    text: str = ""
    words: list[ArrivedWord] = field(default_factory=list)
    lags_ms: list[int] = field(default_factory=list)
    refused: str | None = None

    @property
    def delays_ms(self) -> list[int]:
        """Of the recognised words, if their ends are known; otherwise of all words, by the server's ends."""
        if self.clip.words:
            return list(word_delays(self.clip.words, self.words).delays_ms)
        return [word.emitted_ms - word.end_ms for word in self.words if word.end_ms is not None]

    @property
    def lag_growth_ms(self) -> float | None:
        """Mean lag of the second half less that of the first; None of less than 4 s."""
        half = len(self.lags_ms) // 2
        return fmean(self.lags_ms[half:]) - fmean(self.lags_ms[:half]) if half >= 2 else None


def read_clips(manifest: Path, alignments: Path | None = None) -> list[LoadClip]:
    """Lines of {"audio", "text"}, paths relative to the manifest.

    Args:
        alignments: lines of {"audio", "words": [{"text", "end_ms"}]}, by the same names; clips without are left out.

    Raises:
        ConfigError: if one cannot be read or there is no clip.
    """
    try:
        words = None if alignments is None else {line["audio"]: _spoken(line["words"]) for line in _lines(alignments)}
        clips = [
            LoadClip(
                path=manifest.parent / line["audio"], text=line["text"], words=words[line["audio"]] if words else ()
            )
            for line in _lines(manifest)
            if words is None or words.get(line["audio"])
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{manifest}: no list of clips with audio and text: {error!r}") from None
    if not clips:
        raise ConfigError(f"{manifest}: has no clip")
    return clips


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _spoken(words: Sequence[Mapping[str, Any]]) -> tuple[SpokenWord, ...]:
    return tuple(SpokenWord(text=word["text"], end_ms=word["end_ms"]) for word in words)
