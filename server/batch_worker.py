"""One worker of a batch: a model in memory, files in, outcomes out. The same in every way of running a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asr.channels import Channel
from asr.results import FileResult
from server.ahead import ReadAhead
from server.dispatch import Task
from server.journal import Identity, identity_of

PATIENCE_SECONDS = 0.2
"""So long a free slot waits for a file while others are decoded."""

Take = Callable[[float | None], Task | None]
"""The next file, if it comes within so many seconds, None: for ever; None: not now, or never again."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """How files are transcribed: `server.engine.load_model`, `load_scorer` and `asr.transcribe_files` say what is what.

    Attributes:
        draft, draft_mode: see `asr.drafting.Drafting`.
    """

    model: str
    device: str = "cpu"
    threads: int = 1
    delay_ms: int = 480
    chunk_ms: int = 320
    batch_size: int = 4
    channel: Channel | Literal["each"] = "mix"
    vad: bool = False
    draft: str = "auto"
    draft_mode: str = "exact"
    lm: Path | None = None
    lm_weight: float | None = None
    phrases: Path | None = None
    boost: float | None = None


_Running = dict[str, tuple[Task, float, Identity | None]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a task.

    Attributes:
        index: the task's.
        result: of its file.
        seconds: from its opening to its result.
        identity: what was in the file.
    """

    index: int
    result: FileResult
    seconds: float
    identity: Identity | None


class BatchWorker:
    """A loaded model.

    Args:
        settings: how files are transcribed.
        log: told about phrases that are not taken.
        heard: told how many samples were read; called by several threads.

    Raises:
        EarlybirdError: if a setting cannot work, or the model cannot be loaded.
    """

    def __init__(
        self, settings: WorkerSettings, *, log: Callable[[str], None], heard: Callable[[int], None] | None = None
    ) -> None:
        from server.engine import load_model, load_scorer

        self._settings, self._heard = settings, heard
        self._model = load_model(settings.model, device=settings.device, threads=settings.threads)
        self._scorer = load_scorer(
            self._model,
            slots=settings.batch_size,
            lm=settings.lm,
            lm_weight=settings.lm_weight,
            phrases=settings.phrases,
            boost=settings.boost,
            log=log,
        )
        self._transcribe([])  # settings that cannot work are refused before there is a file

    def serve(self, take: Take) -> Generator[Outcome]:
        """The outcomes of all files that `take` gives, as they finish, until it has none however long one waits."""
        while (first := take(None)) is not None:
            running: _Running = {}
            for result in self._transcribe(self._opened(first, take, running)):
                task, begin, identity = running.pop(str(result.path))
                seconds = time.monotonic() - begin
                yield Outcome(index=task.index, result=result, seconds=seconds, identity=identity)

    def _opened(self, first: Task, take: Take, running: _Running) -> Iterator[Path]:
        task: Task | None = first
        while task is not None:
            running[str(task.path)] = task, time.monotonic(), identity_of(task.path)
            yield task.path
            task = take(PATIENCE_SECONDS if running else 0.0)

    def _transcribe(self, paths: Iterable[Path]) -> Iterator[FileResult]:
        from asr.drafting import Drafting
        from asr.files import transcribe_files

        settings = self._settings
        return transcribe_files(
            self._model,
            paths,
            delay_ms=settings.delay_ms,
            chunk_ms=settings.chunk_ms,
            batch_size=settings.batch_size,
            channel=settings.channel,
            vad=settings.vad,
            drafting=Drafting.of(settings.draft, settings.draft_mode),
            scorer=self._scorer,
            ahead=ReadAhead,
            heard=self._heard,
        )


def in_this_process(
    settings: WorkerSettings,
    tasks: Iterable[Task],
    *,
    log: Callable[[str], None],
    heard: Callable[[int], None] | None = None,
) -> Generator[Outcome]:
    """The outcomes of all tasks, as they finish.

    Raises:
        EarlybirdError: as `BatchWorker`.
    """
    waiting = iter(tasks)
    return BatchWorker(settings, log=log, heard=heard).serve(lambda _: next(waiting, None))
