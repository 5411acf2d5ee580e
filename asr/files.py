"""Many files to transcripts: one bad file is one result with an error, and each is read as it is decoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from asr.audio import display_path, open_audio
from asr.channels import Channel
from asr.decode import TokenScorer
from asr.drafting import Drafting
from asr.errors import AudioFormatError, EarlybirdError
from asr.jobs import Job, transcribe_streams
from asr.loudness import Quiet, levels_db
from asr.model import Model
from asr.resample import Samples
from asr.results import FileResult
from asr.units import FRAME_MS
from asr.vad import SilenceSkipper, SileroDetector, SpeechDetector
from asr.words import Transcript

__all__ = ["FileResult", "transcribe_files"]

LOUD_DB = -45.0
SPEECH_LIKE_MS = 1_000
"""So much that is loud, over its background and in itself, and without a word, is suspicious."""


@dataclass(kw_only=True)
class _Track:
    """One channel of a file, read once while it is decoded.

    Attributes:
        skipper: leaves out its silence.
        heard: told how many samples of the file were read.
        warnings: what was suspicious, when all has been read.
        speech_like_ms: how much was loud.
    """

    path: Path
    channel: Channel
    skipper: SilenceSkipper | None
    heard: Callable[[int], None] | None
    warnings: list[str] = field(default_factory=list)
    speech_like_ms: int = 0

    def blocks(self) -> Iterator[Samples]:
        """Opens the file when the first block is asked for."""
        try:
            yield from self._blocks()
        except (EarlybirdError, GeneratorExit):
            raise
        except Exception as error:  # whatever a decoder does to a broken file, it is this file's error
            raise AudioFormatError(f"{display_path(self.path)}: {type(error).__name__}: {error}") from error

    def _blocks(self) -> Iterator[Samples]:
        quiet = Quiet()
        with open_audio(self.path, channel=self.channel) as source:
            for samples in source.blocks():
                for level in levels_db(samples):
                    quiet = quiet.step([level])
                    self.speech_like_ms += FRAME_MS * (quiet.frames == 0 and level >= LOUD_DB)
                if self.heard is not None:
                    self.heard(len(samples))
                yield samples if self.skipper is None else self.skipper.step(samples)
            self.warnings += source.warnings
        if self.skipper is not None:
            yield self.skipper.finish()

    def result(self, transcript: Transcript) -> Transcript:
        """The transcript on the file's own clock."""
        if not transcript.words and self.speech_like_ms >= SPEECH_LIKE_MS:
            self.warnings.append(
                f"{self.speech_like_ms / 1000:.1f} s are as loud as speech over their background, and no word was heard"
            )
        return transcript if self.skipper is None else self.skipper.restore(transcript)


@dataclass(kw_only=True)
class _Pending:
    """A file under way. Attributes: tracks: all of its channels that are heard. done: transcripts by track."""

    path: Path
    tracks: list[_Track]
    done: dict[int, Transcript] = field(default_factory=dict)
    error: EarlybirdError | None = None
    left: int = 0

    def result(self) -> FileResult:
        warnings = [
            warning if len(self.tracks) == 1 else f"channel {track.channel}: {warning}"
            for track in self.tracks
            for warning in track.warnings
        ]
        transcripts = () if self.error is not None else tuple(self.done[at] for at in range(len(self.tracks)))
        return FileResult(path=self.path, transcripts=transcripts, error=self.error, warnings=tuple(warnings))


def transcribe_files(
    model: Model,
    paths: Iterable[str | os.PathLike[str]],
    *,
    delay_ms: int = 480,
    chunk_ms: int = 320,
    batch_size: int = 4,
    channel: Channel | Literal["each"] = "mix",
    vad: bool | SpeechDetector = False,
    drafting: Drafting | None = None,
    scorer: TokenScorer | None = None,
    ahead: Callable[[Iterator[Samples]], Iterable[Samples]] | None = None,
    heard: Callable[[int], None] | None = None,
) -> Iterator[FileResult]:
    """Each file's result, in the order in which they finish.

    A path is asked for when a slot is free, and a file is read block by block while it is decoded: its length costs no
    memory beyond its words. Text and times do not depend on the other files.

    Args:
        model: what `asr.load` gave.
        paths: audio and video files of any kind. Like lengths in a row keep the batch full.
        delay_ms, chunk_ms, drafting, scorer: see `asr.transcribe`; the scorer has `batch_size` slots.
        batch_size: files, or channels of files, decoded at once.
        channel: which one to hear, from 0; "mix": their mean; "each": all of them, a transcript each.
        vad: whether long silence is left out; times stay those of the file. Or who tells speech from silence.
        ahead: wraps what reads a file, for example to let a thread read it; closes what it wraps when it is closed.
        heard: told how many samples of a file were read, by whoever reads it.

    Raises:
        ConfigError: at once, if the model was not made for the delay and the chunk, a setting cannot work, or `vad`
            needs a package that is not installed.
    """
    detector: SpeechDetector | None = SileroDetector() if vad is True else None if vad is False else vad
    pending: dict[str, tuple[_Pending, int]] = {}

    def jobs() -> Iterator[Job]:
        for number, path in enumerate(map(Path, paths)):
            file = _Pending(path=path, tracks=[])
            try:
                channels = _channels(path) if channel == "each" else [channel]
            except EarlybirdError as error:
                pending[f"{number}.0"] = file, 0
                file.left = 1
                yield f"{number}.0", _raising(error)
                continue
            file.tracks = [
                _Track(
                    path=path,
                    channel=one,
                    skipper=None if detector is None else SilenceSkipper(detector),
                    heard=heard if at == 0 else None,
                )
                for at, one in enumerate(channels)
            ]
            file.left = len(file.tracks)
            for at, track in enumerate(file.tracks):
                pending[f"{number}.{at}"] = file, at
                yield f"{number}.{at}", track.blocks() if ahead is None else ahead(track.blocks())

    results = transcribe_streams(
        model,
        jobs(),
        delay_ms=delay_ms,
        chunk_ms=chunk_ms,
        batch_size=batch_size,
        drafting=drafting,
        scorer=scorer,
    )
    return _gathered(results, pending)


def _gathered(
    results: Iterator[tuple[str, Transcript | EarlybirdError]], pending: dict[str, tuple[_Pending, int]]
) -> Iterator[FileResult]:
    try:
        for key, outcome in results:
            file, at = pending.pop(key)
            if isinstance(outcome, EarlybirdError):
                file.error = file.error or outcome
            else:
                file.done[at] = file.tracks[at].result(outcome)
            file.left -= 1
            if not file.left:
                yield file.result()
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            close()


def _channels(path: Path) -> list[int]:
    with open_audio(path) as source:
        return list(range(source.channels))


def _raising(error: EarlybirdError) -> Iterator[Samples]:
    raise error
    yield
