"""Worker processes on this machine. One that dies takes nothing with it: see `server.dispatch`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from asr.audio import display_path
from asr.errors import EarlybirdError, WorkerDied
from asr.results import FileResult
from server.batch_worker import BatchWorker, Outcome, WorkerSettings
from server.dispatch import Dispatcher, Task

REPORT_SECONDS = 0.5
STOP_SECONDS = 2.0


@dataclass(frozen=True)
class Ready:
    """A worker has its model."""


@dataclass(frozen=True)
class Heard:
    """A worker has read more audio. Attributes: samples: since it said so last."""

    samples: int


@dataclass(frozen=True)
class Line:
    """A worker has something to say. Attributes: text: for the log."""

    text: str


Message = Ready | Heard | Line | Outcome | EarlybirdError


class _Reporter:
    """Tells how much audio was read, now and then. Called by many threads."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._samples = 0
        self._next = 0.0

    def __call__(self, samples: int) -> None:
        with self._lock:
            self._samples += samples
            if time.monotonic() < self._next:
                return
            self._next = time.monotonic() + REPORT_SECONDS
            samples, self._samples = self._samples, 0
        self._send(Heard(samples))


def _work(connection: Connection, settings: WorkerSettings) -> None:
    """A worker process: tasks in, messages out, until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    lock = threading.Lock()

    def send(message: Message) -> None:
        with lock:
            connection.send(message)

    def take(seconds: float | None) -> Task | None:
        try:
            task: Task | None = connection.recv() if connection.poll(seconds) else None
        except (EOFError, OSError):  # the parent has closed it
            return None
        return task

    try:
        worker = BatchWorker(settings, log=lambda text: send(Line(text)), heard=_Reporter(send))
    except EarlybirdError as error:
        send(error)
        return
    send(Ready())
    for outcome in worker.serve(take):
        send(outcome)


def _end_with_parent() -> None:
    """No worker goes on alone, whatever ended its parent."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["asr.files", "server.engine"])  # PyTorch is imported once for all
    return context


class _Pool:
    def __init__(self, settings: WorkerSettings, dispatcher: Dispatcher) -> None:
        self._settings, self._dispatcher = settings, dispatcher
        self._context = _context()
        self._processes: dict[Connection, BaseProcess] = {}
        self._ready: set[Connection] = set()

    def start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, self._settings), daemon=True)
        process.start()
        theirs.close()  # so that its death is the end of the connection
        self._processes[ours] = process
        self._dispatcher.join(ours)

    def supply(self) -> None:
        for connection in self._ready:
            try:
                while (task := self._dispatcher.next_for(connection)) is not None:
                    connection.send(task)
            except OSError:  # it has died; its connection will say so when it is read
                continue

    def messages(self) -> Iterator[tuple[Connection, Message | None]]:
        """What the workers say next; None from one that has died."""
        for connection in wait(list(self._processes)):
            assert isinstance(connection, Connection)
            try:
                yield connection, connection.recv()
            except (EOFError, OSError):
                yield connection, None

    def mark_ready(self, connection: Connection) -> None:
        self._ready.add(connection)

    def bury(self, connection: Connection) -> tuple[list[Task], str]:
        """The files that are given up with a worker, and how it ended."""
        process = self._processes.pop(connection)
        connection.close()
        process.join()
        code = process.exitcode or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        if connection not in self._ready:
            raise WorkerDied(f"a worker process ended {how} while it loaded the model")
        self._ready.discard(connection)
        return self._dispatcher.died(connection), how

    def stop(self) -> None:
        for connection, process in self._processes.items():
            connection.close()
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def in_processes(
    settings: WorkerSettings,
    tasks: Iterable[Task],
    *,
    workers: int,
    log: Callable[[str], None],
    heard: Callable[[int], None] | None = None,
) -> Generator[Outcome]:
    """The outcomes of all tasks, as they finish, by worker processes that each hold the model.

    Args:
        settings: of every worker.
        tasks: like lengths in a row; those at the front are begun first.
        workers: how many processes.
        log: told once whatever a worker has to say.
        heard: told how many samples were read.

    Raises:
        EarlybirdError: as `BatchWorker`; WorkerDied if a process ends before it has its model.
    """
    dispatcher = Dispatcher(tasks, room=settings.batch_size + 1)
    pool = _Pool(settings, dispatcher)
    said: set[str] = set()
    try:
        for _ in range(min(workers, dispatcher.waiting)):
            pool.start()
        while not dispatcher.over:
            for connection, message in pool.messages():
                if isinstance(message, Outcome):
                    dispatcher.finished(connection, message.index)
                    pool.supply()
                    yield message
                elif isinstance(message, Heard) and heard is not None:
                    heard(message.samples)
                elif isinstance(message, Line) and message.text not in said:
                    said.add(message.text)
                    log(message.text)
                elif isinstance(message, Ready):
                    pool.mark_ready(connection)
                elif isinstance(message, EarlybirdError):
                    raise message
                elif message is None:
                    given_up, how = pool.bury(connection)
                    yield from (died_with(task, how) for task in given_up)
                    if dispatcher.waiting:
                        log(f"warning: a worker process ended {how}; its files are tried again, one at a time")
                        pool.start()
            pool.supply()
    finally:
        pool.stop()


def died_with(task: Task, how: str) -> Outcome:
    """The outcome of a file that took its worker with it twice."""
    error = WorkerDied(f"{display_path(task.path)}: the worker that had it ended {how}, and again when it had it alone")
    return Outcome(index=task.index, result=FileResult(path=task.path, error=error), seconds=0.0, identity=None)
