"""Files and folders in, results out: every file is accounted for, and the same command goes on where it was stopped."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TextIO

import numpy as np

import asr
from asr.audio import display_path
from asr.errors import ConfigError
from asr.results import FileResult
from asr.units import SAMPLE_RATE
from asr.words import DraftCount
from server.batch_worker import Outcome, WorkerSettings
from server.dispatch import Task
from server.inputs import Input, expected_seconds
from server.journal import Entry, Journal, identity_of, settings_digest
from server.progress import BatchProgress
from server.writers import (
    RENDERERS,
    output_stems,
    plain_text,
    remove_parts,
    render_json_line,
    result_name,
    write_atomically,
)

Transcribe = Callable[[Sequence[Task]], Generator[Outcome]]
"""The outcomes of all tasks, in any order; closed when no more are wanted."""


class Stopped(BaseException):
    """The process was asked to stop. Attributes: signal: by which signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise `Stopped`, once: what follows is not disturbed by the second."""

    def stop(number: int, frame: FrameType | None) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return
    before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """What a batch does with its results.

    Attributes:
        formats: of `server.writers.RENDERERS`; exactly one where there is no `out`.
        out: the folder for the results and the journal, or None for standard output.
        overwrite: whether what is done already is done again.
        strict: whether a warning about a file makes it fail.

    Raises:
        ConfigError: if several formats would share standard output, or `out` is a file.
    """

    formats: tuple[str, ...] = ("txt",)
    out: Path | None = None
    overwrite: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        if self.out is None and len(self.formats) != 1:
            raise ConfigError(
                f"standard output takes one format, {','.join(self.formats)} were given; name a folder with --out"
            )
        if self.out is None and self.overwrite:
            raise ConfigError("--overwrite needs results to overwrite; name their folder with --out")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"--out is {display_path(self.out)}, a file; a folder is needed")


@dataclass(kw_only=True)
class BatchSummary:
    """What a batch did.

    Attributes:
        done: how many files have got a result; before: how many had one.
        failed: the files without one, each with its error.
        audio_samples, decoder_calls, decoder_rows, steps, drafts, delays_ms: totals of those done; a delay per word.
        wall_seconds: from the first byte read to the last result written.
        stopped: the signal that ended it early.
    """

    done: int = 0
    before: int = 0
    failed: list[tuple[Input, str]] = field(default_factory=list)
    audio_samples: int = 0
    decoder_calls: int = 0
    decoder_rows: int = 0
    drafts: dict[str, DraftCount] = field(default_factory=dict)
    steps: int = 0
    delays_ms: list[int] = field(default_factory=list)
    wall_seconds: float = 0.0
    stopped: int | None = None

    @property
    def exit_code(self) -> int:
        """0 all is done, 1 some failed, 128 and the signal if it was stopped."""
        return 128 + self.stopped if self.stopped is not None else 1 if self.failed else 0

    def add(self, result: FileResult) -> None:
        """Count one more file that was done."""
        self.done += 1
        self.audio_samples += result.audio_samples
        for transcript in result.transcripts:
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

    def closing_lines(self, files: int) -> list[str]:
        """What a person reads at the end: totals, then the files that failed with their reasons."""
        lines = []
        if files > 1 or self.failed or self.stopped is not None:
            counts = [f"{self.done} done", f"{self.before} done before", f"{len(self.failed)} failed"]
            left = files - self.done - self.before - len(self.failed)
            if not self.before:
                del counts[1]
            if left:
                counts.append(f"{left} left")
            lines.append(f"{files} files: {', '.join(counts)}")
        if files > 1 and self.done and self.wall_seconds:
            seconds = self.audio_samples / SAMPLE_RATE
            lines.append(
                f"{seconds / 3600:.2f} h of audio in {self.wall_seconds / 3600:.2f} h: "
                f"{seconds / self.wall_seconds:.1f} × real time"
            )
        lines += [f"failed: {_named(entry, error)}" for entry, error in self.failed]
        if self.stopped is not None:
            lines.append(f"stopped by {signal.Signals(self.stopped).name}; the same command goes on from here")
        return lines


def _named(entry: Input, error: str) -> str:
    shown = display_path(entry.path)
    return error if shown in error else f"{shown}: {error}"


def result_settings(settings: WorkerSettings) -> dict[str, object]:
    """All that the results of a batch depend on, files by their content."""
    values: dict[str, object] = {
        name: getattr(settings, name)
        for name in ("model", "delay_ms", "chunk_ms", "channel", "vad", "draft", "draft_mode", "lm_weight", "boost")
    }
    values["version"] = version_of("earlybird-asr")
    values["weights"] = _model_content(settings.model)
    for name, path in (("lm", settings.lm), ("phrases", settings.phrases)):
        identity = None if path is None else identity_of(path)
        values[name] = None if identity is None else identity.hash
    return values


def version_of(package: str) -> str:
    """Of an installed package, "source" where it runs from its source tree."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "source"


def _model_content(name: str) -> dict[str, str]:
    """The hashes of a model's files; none where there is no such model, which its loading will tell."""
    assert asr.__file__ is not None
    folder = Path(asr.__file__).parent / "checkpoints" / name
    if not folder.is_dir():
        folder = Path(name.removeprefix("whisper:"))
    identities = ((path.name, identity_of(path)) for path in sorted(folder.glob("*")))
    return {name: identity.hash for name, identity in identities if identity is not None}


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where an input's results go. Attributes: stem: the path without the suffix of a format; None: standard output."""

    entry: Input
    out: str = ""
    stem: Path | None = None


def run_batch(
    transcribe: Transcribe,
    inputs: Sequence[Input],
    settings: BatchSettings,
    *,
    depends_on: Mapping[str, object],
    results: TextIO,
    progress: BatchProgress,
) -> BatchSummary:
    """Transcribe all inputs that are not done yet and write each result as soon as it is there.

    A result is done if the journal says so of the same content of the input, the same settings and at least the same
    formats, and its files are there.

    Args:
        transcribe: tasks to outcomes.
        inputs: what `find_inputs` found.
        settings: where the results go.
        depends_on: the settings on which results depend.
        results: for the results where there is no output folder.
        progress: told how far it is, and warnings, errors and the summary, a line each.

    Raises:
        ConfigError: before any work, if two inputs would be written to the same place, or another run writes there.
        OSError: if the journal cannot be written.
    """
    summary = BatchSummary()
    started = time.perf_counter()
    if settings.out is None:
        batch = _Batch(settings, summary, None, "", results, progress, several=len(inputs) > 1)
        batch.run(transcribe, [_Place(entry=entry) for entry in inputs])
    else:
        stems = output_stems(entry.name for entry in inputs)
        places = [
            _Place(entry=entry, out=result_name(stems[entry.name]), stem=settings.out / stems[entry.name])
            for entry in inputs
        ]
        digest = settings_digest(depends_on)
        with Journal(settings.out) as journal:
            remove_parts({place.stem.parent for place in places if place.stem is not None})
            batch = _Batch(settings, summary, journal, digest, results, progress, several=len(inputs) > 1)
            left = [place for place in places if not batch.is_done(place)]
            summary.before = len(places) - len(left)
            journal.begin(
                {"begun": datetime.now(UTC).isoformat(timespec="seconds"), "files": len(inputs), "left": len(left)}
                | {"digest": digest, "settings": dict(depends_on)}
            )
            batch.run(transcribe, left)
    summary.wall_seconds = time.perf_counter() - started
    for line in summary.closing_lines(len(inputs)):
        progress.log(line)
    return summary


@dataclass
class _Batch:
    settings: BatchSettings
    summary: BatchSummary
    journal: Journal | None
    digest: str
    results: TextIO
    progress: BatchProgress
    several: bool

    def is_done(self, place: _Place) -> bool:
        """Whether an earlier run has done this very work."""
        entry = self.journal.entries.get(place.out) if self.journal is not None else None
        if entry is None or place.stem is None or self.settings.overwrite or entry.status != "done":
            return False
        if entry.settings != self.digest or not set(self.settings.formats) <= set(entry.formats):
            return False
        if entry.warnings and self.settings.strict:
            return False
        if not all(_output(place.stem, format).is_file() for format in self.settings.formats):
            return False
        return entry.identity is not None and entry.identity == identity_of(place.entry.path)

    def run(self, transcribe: Transcribe, places: Sequence[_Place]) -> None:
        """The longest first, so that files of like length are decoded together and the end is not one long file."""
        lengths = [expected_seconds(place.entry.path) if len(places) > 1 else 0.0 for place in places]
        order = sorted(range(len(places)), key=lambda at: -lengths[at])
        tasks = [Task(index=at, path=places[at].entry.path) for at in order]
        left = len(tasks)
        if not tasks:
            return
        self.progress.begin(files=left, seconds=sum(lengths))
        try:
            with stop_on_signals(), closing(transcribe(tasks)) as outcomes:
                for outcome in outcomes:
                    self._take(places[outcome.index], outcome)
                    seconds = outcome.result.audio_samples / SAMPLE_RATE
                    self.progress.finished(expected=lengths[outcome.index], seconds=seconds)
                    left -= 1
            assert not left, "every task has exactly one outcome"
        except Stopped as stop:
            self.summary.stopped = stop.signal
        finally:
            self.progress.close()

    def _take(self, place: _Place, outcome: Outcome) -> None:
        result = outcome.result
        for warning in result.warnings:
            self.progress.log(f"warning: {display_path(place.entry.path)}: {warning}")
        error = None
        if result.error is not None:
            error = f"{type(result.error).__name__}: {result.error}"
        elif self.settings.strict and result.warnings:
            error = f"strict: {'; '.join(result.warnings)}"
        elif place.stem is None:
            self.results.write(self._line(result, place.entry))
            self.results.flush()
        else:
            try:
                for format in self.settings.formats:
                    text = RENDERERS[format](result, result_name(place.entry.path))
                    write_atomically(_output(place.stem, format), text)
            except OSError as problem:
                error = f"result not written: {problem.strerror}: {display_path(problem.filename or place.stem)}"
        if error is None:
            self.summary.add(result)
        else:
            self.progress.log(f"error: {_named(place.entry, error)}")
            self.summary.failed.append((place.entry, error))
        if self.journal is not None:
            self.journal.add(self._entry(place, outcome, error))

    def _entry(self, place: _Place, outcome: Outcome, error: str | None) -> Entry:
        entry = Entry(
            file=display_path(place.entry.path),
            out=place.out,
            status="failed",
            seconds=round(outcome.seconds, 3),
            audio_seconds=outcome.result.audio_samples / SAMPLE_RATE,
            error=error,
            warnings=outcome.result.warnings,
            identity=outcome.identity,
            settings=self.digest,
        )
        return entry if error is not None else replace(entry, status="done", formats=self.settings.formats)

    def _line(self, result: FileResult, entry: Input) -> str:
        format = self.settings.formats[0]
        if format == "json":
            return render_json_line(result, result_name(entry.path))
        if format == "txt" and self.several:
            return "".join(f"{display_path(entry.path)}\t{line}\n" for line in plain_text(result).split("\n"))
        return RENDERERS[format](result, result_name(entry.path)) or ("\n" if format == "txt" else "")


def _output(stem: Path, format: str) -> Path:
    return stem.with_name(f"{stem.name}.{format}")
