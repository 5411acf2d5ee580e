"""Files and folders in, results out; one bad file never stops the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TextIO

import numpy as np

from asr.audio import Channel, Samples, display_path, open_audio
from asr.errors import ConfigError, EarlybirdError
from asr.units import SAMPLE_RATE
from asr.words import DraftCount, Transcript
from server.engine import Job, Result
from server.writers import RENDERERS, output_stems, render_json_line, result_name, write_atomically

AUDIO_SUFFIXES = frozenset(
    ".aac .ac3 .aif .aifc .aiff .amr .ape .au .avi .caf .flac .flv .m4a .m4b .m4v .mka .mkv .mov .mp2 .mp3 .mp4 .mpeg "
    ".mpg .oga .ogg .ogv .opus .rf64 .snd .sph .ts .w64 .wav .webm .wma .wmv .wv".split()
)
"""What is taken from a folder. A file named by itself is taken whatever its suffix."""

Transcribe = Callable[[Iterable[Job]], Iterator[Result]]


@dataclass(frozen=True, kw_only=True)
class Input:
    """One audio file.

    Attributes:
        path: where it is.
        name: its place below the output folder: relative to the folder that was given, or its bare name.
    """

    path: Path
    name: PurePath


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """What a batch does with its results.

    Attributes:
        formats: of `server.writers.RENDERERS`; exactly one where there is no `out`.
        out: the folder for the results, or None for standard output.
        channel: which channel to hear, from 0, or "mix".

    Raises:
        ConfigError: if several formats would share standard output, or `out` is a file.
    """

    formats: tuple[str, ...] = ("txt",)
    out: Path | None = None
    channel: Channel = "mix"

    def __post_init__(self) -> None:
        if self.out is None and len(self.formats) != 1:
            raise ConfigError(
                f"standard output takes one format, {','.join(self.formats)} were given; name a folder with --out"
            )
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"--out is {display_path(self.out)}, a file; a folder is needed")


@dataclass(kw_only=True)
class BatchSummary:
    """What a batch did.

    Attributes:
        done: how many files have a result.
        failed: the files without one, each with its error.
        audio_samples, decoder_calls, decoder_rows, steps, drafts, delays_ms: totals of those done; a delay per word.
        wall_seconds: from the first byte read to the last result written.
    """

    done: int = 0
    failed: list[tuple[Input, str]] = field(default_factory=list)
    audio_samples: int = 0
    decoder_calls: int = 0
    decoder_rows: int = 0
    drafts: dict[str, DraftCount] = field(default_factory=dict)
    steps: int = 0
    delays_ms: list[int] = field(default_factory=list)
    wall_seconds: float = 0.0

    def add(self, transcript: Transcript) -> None:
        """Count one more file that was done."""
        self.done += 1
        self.audio_samples += transcript.audio_samples
        self.decoder_calls += transcript.stats.decoder_calls
        self.decoder_rows += transcript.stats.decoder_rows
        for name, count in transcript.stats.drafts.items():
            self.drafts[name] = self.drafts.get(name, DraftCount()) + count
        self.steps += transcript.stats.steps
        self.delays_ms += [word.delay_ms for word in transcript.words]

    def stats_line(self) -> str:
        """The figures in one line."""
        audio_seconds = self.audio_samples / SAMPLE_RATE
        figures = [
            f"{audio_seconds:.1f} s of audio",
            f"{self.wall_seconds:.1f} s of work",
            f"{len(self.delays_ms)} words",
            f"{self.steps} steps",
            f"{self.decoder_calls} decoder calls",
            f"{self.decoder_rows} decoder rows",
            *(
                f"{name} drafts {sum(count.accepted)} of {sum(count.proposed)} accepted"
                for name, count in sorted(self.drafts.items())
            ),
        ]
        if audio_seconds:
            figures.insert(2, f"real-time factor {self.wall_seconds / audio_seconds:.3f}")
        if self.delays_ms:
            median, p90 = np.quantile(self.delays_ms, [0.5, 0.9])
            figures.append(f"word delay median {median:.0f} ms, p90 {p90:.0f} ms")
        return ", ".join(figures)


def find_inputs(paths: Sequence[Path], *, log: Callable[[str], None]) -> list[Input]:
    """The audio files that `paths` name: files as they are, folders with all that lies below them, sorted.

    Folders are searched for `AUDIO_SUFFIXES`; names that begin with a dot are skipped there, and links to folders are
    not followed. A file reached twice is taken once. A path that is not there is kept: it fails by name in its turn.

    Args:
        paths: files and folders.
        log: told about folders that give nothing.

    Raises:
        ConfigError: if nothing at all is found.
    """
    found: dict[str, Input] = {}
    for path in paths:
        members = [path]
        if path.is_dir():
            members = sorted(_audio_files_below(path, log=log))
            if not members:
                log(f"warning: no audio file below {display_path(path)}")
        for member in members:
            name = member.relative_to(path) if path.is_dir() else PurePath(member.name)
            found.setdefault(os.path.abspath(member), Input(path=member, name=name))
    if not found:
        raise ConfigError(f"no audio file in {', '.join(display_path(path) for path in paths)}")
    return list(found.values())


def _audio_files_below(folder: Path, *, log: Callable[[str], None]) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        log(f"warning: cannot look into {display_path(error.filename)}: {error.strerror}")

    for parent, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and PurePath(name).suffix.lower() in AUDIO_SUFFIXES:
                yield Path(parent, name)


def run_batch(
    transcribe: Transcribe,
    inputs: Sequence[Input],
    settings: BatchSettings,
    *,
    results: TextIO,
    log: Callable[[str], None],
) -> BatchSummary:
    """Transcribe all inputs and write each result as soon as it is there.

    Args:
        transcribe: jobs to results, as `server.engine.transcribe_jobs` does.
        inputs: what `find_inputs` found.
        settings: where the results go.
        results: for the results where there is no output folder.
        log: for warnings, errors and the summary, a line each.

    Raises:
        ConfigError: before any work, if two inputs would be written to the same place.
    """
    stems = output_stems(entry.name for entry in inputs) if settings.out is not None else {}
    warnings: dict[str, list[str]] = {}
    jobs = (
        (str(index), _blocks(entry.path, settings.channel, warnings.setdefault(str(index), [])))
        for index, entry in enumerate(inputs)
    )
    summary = BatchSummary()
    started = time.perf_counter()
    for key, result in transcribe(jobs):
        entry = inputs[int(key)]
        for warning in warnings[key]:
            log(f"warning: {display_path(entry.path)}: {warning}")
        if isinstance(result, EarlybirdError):
            _fail(summary, entry, f"{type(result).__name__}: {result}", log=log)
        elif settings.out is None:
            results.write(_stream_line(result, entry, warnings[key], settings.formats[0], several=len(inputs) > 1))
            results.flush()
            summary.add(result)
        else:
            try:
                _write(result, entry, warnings[key], settings.out / stems[entry.name], settings.formats)
            except OSError as error:
                _fail(summary, entry, f"result not written: {error.strerror}: {display_path(error.filename)}", log=log)
            else:
                summary.add(result)
    summary.wall_seconds = time.perf_counter() - started
    assert summary.done + len(summary.failed) == len(inputs), "every job has exactly one result"
    if len(inputs) > 1 or summary.failed:
        log(f"{len(inputs)} files: {summary.done} done, {len(summary.failed)} failed")
    for entry, _ in summary.failed:
        log(f"failed: {display_path(entry.path)}")
    return summary


def _blocks(path: Path, channel: Channel, warnings: list[str]) -> Iterator[Samples]:
    """Opens the file when its first block is asked for."""
    with open_audio(path, channel=channel) as source:
        yield from source.blocks()
        warnings += source.warnings


def _fail(summary: BatchSummary, entry: Input, error: str, *, log: Callable[[str], None]) -> None:
    shown = display_path(entry.path)
    log(f"error: {error}" if shown in error else f"error: {shown}: {error}")
    summary.failed.append((entry, error))


def _stream_line(transcript: Transcript, entry: Input, warnings: Sequence[str], format: str, *, several: bool) -> str:
    if format == "json":
        return render_json_line(transcript, result_name(entry.path), warnings)
    return f"{display_path(entry.path)}\t{transcript.text}\n" if several else f"{transcript.text}\n"


def _write(transcript: Transcript, entry: Input, warnings: Sequence[str], stem: Path, formats: Sequence[str]) -> None:
    for format in formats:
        text = RENDERERS[format](transcript, result_name(entry.path), warnings)
        write_atomically(stem.with_name(f"{stem.name}.{format}"), text)
