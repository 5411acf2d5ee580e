"""A batch on a Ray cluster: each worker is an actor that loads the model once, each file a call of one.

A worker or a node that dies takes nothing with it: see `server.dispatch`. docs/cluster.md says how to start a cluster.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

from asr.errors import ConfigError, EarlybirdError, WorkerDied
from asr.units import SAMPLE_RATE
from server.batch_worker import BatchWorker, Outcome, WorkerSettings
from server.dispatch import Dispatcher, Task
from server.pool import died_with

LOCAL = "local"
POLL_SECONDS = 1.0
CONNECT_SECONDS = 5.0
FAILED_STARTS = 3
"""More workers than that may not end before they have their model."""


class ClusterWorker:
    """What a Ray actor runs: calls come in on threads of their own, one thread decodes them together.

    Args:
        settings: how files are transcribed.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._lines: list[str] = []
        self._refusal: EarlybirdError | None = None
        try:
            self._worker = BatchWorker(settings, log=self._lines.append)
        except EarlybirdError as error:  # Ray tells nothing of what is raised here: `lines` does
            self._refusal = error
            return
        self._tasks: Queue[Task] = Queue()
        self._futures: dict[int, Future[Outcome]] = {}
        threading.Thread(target=self._serve, daemon=True).start()

    def lines(self) -> list[str]:
        """What it has to say, once it has its model.

        Raises:
            EarlybirdError: as `BatchWorker`.
        """
        if self._refusal is not None:
            raise self._refusal
        return self._lines

    def transcribe(self, task: Task) -> Outcome:
        """The outcome of a file, after it was decoded together with those of other calls."""
        future: Future[Outcome] = Future()
        self._futures[task.index] = future
        self._tasks.put(task)
        return future.result()

    def _take(self, seconds: float | None) -> Task | None:
        try:
            return self._tasks.get(block=seconds != 0.0, timeout=seconds)
        except Empty:
            return None

    def _serve(self) -> None:
        try:
            for outcome in self._worker.serve(self._take):
                self._futures.pop(outcome.index).set_result(outcome)
        except Exception as error:
            for future in self._futures.values():
                future.set_exception(error)
            raise


@dataclass
class _Actor:
    """Attributes: starting: answers when it has its model. calls: task by the reference of its answer."""

    handle: Any
    starting: Any
    ready: bool = False
    calls: dict[Any, Task] = field(default_factory=dict)


class _Cluster:
    def __init__(self, ray: Any, settings: WorkerSettings, dispatcher: Dispatcher) -> None:
        self._ray, self._settings, self._dispatcher = ray, settings, dispatcher
        resources: dict[str, Any] = {"num_cpus": settings.threads, "max_concurrency": settings.batch_size + 2}
        if settings.device != "cpu":
            resources["num_gpus"] = 1
        self._class = ray.remote(**resources)(ClusterWorker)
        self.actors: dict[int, _Actor] = {}
        self._started = self._failed_starts = 0

    def room(self) -> int:
        """How many workers the cluster has room for."""
        have = self._ray.cluster_resources()
        rooms = int(have.get("CPU", 0)) // self._settings.threads
        return rooms if self._settings.device == "cpu" else min(rooms, int(have.get("GPU", 0)))

    def grow(self) -> None:
        """As many workers as there is room and work for."""
        while len(self.actors) < min(self.room(), self._busy() + self._dispatcher.waiting):
            handle = self._class.remote(self._settings)
            self.actors[self._started] = _Actor(handle, handle.lines.remote())
            self._started += 1

    def _busy(self) -> int:
        return sum(bool(actor.calls) for actor in self.actors.values())

    def supply(self) -> None:
        for number, actor in self.actors.items():
            while actor.ready and (task := self._dispatcher.next_for(number)) is not None:
                actor.calls[actor.handle.transcribe.remote(task)] = task

    def answers(self) -> Iterator[tuple[int, _Actor, Any]]:
        """(number, actor, reference) of what has been answered, or has failed."""
        owners = {ref: number for number, actor in self.actors.items() for ref in actor.calls}
        owners |= {actor.starting: number for number, actor in self.actors.items() if not actor.ready}
        answered, _ = self._ray.wait(list(owners), timeout=POLL_SECONDS) if owners else ([], [])
        yield from ((owners[ref], self.actors[owners[ref]], ref) for ref in answered)

    def bury(self, number: int) -> list[Task]:
        """The files that are given up with a worker."""
        actor = self.actors.pop(number)
        self._ray.kill(actor.handle)
        if actor.ready:
            return self._dispatcher.died(number)
        self._failed_starts += 1
        if self._failed_starts > FAILED_STARTS:
            raise WorkerDied(f"{self._failed_starts} workers of the cluster have ended while they loaded the model")
        return []


def check_reachable(address: str) -> None:
    """Refuses an address where nobody listens, which Ray would try for minutes.

    Raises:
        ConfigError: says why it cannot be reached.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():  # "local", "auto": Ray knows where
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--ray {address}: there is no such cluster: {error}") from error


def on_ray(
    settings: WorkerSettings,
    tasks: Sequence[Task],
    *,
    address: str,
    log: Callable[[str], None],
    heard: Callable[[int], None] | None = None,
) -> Generator[Outcome]:
    """The outcomes of all tasks, as they finish. Every node must see the files, and the model, under the same paths.

    Args:
        settings: of every worker.
        tasks: like lengths in a row.
        address: of the cluster as `ray.init` takes it; "local": one on this machine, for this batch alone.
        log: told once whatever a worker has to say, and when one dies.
        heard: told how many samples were read, when their file is done.

    Raises:
        ConfigError: if Ray is not installed, or there is no such cluster.
        EarlybirdError: as `BatchWorker`.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--ray needs Ray: pip install 'earlybird-asr[cluster]'") from error
    ours = not ray.is_initialized()
    if ours:
        check_reachable(address)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=LOCAL if address == LOCAL else address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(f"--ray {address}: there is no such cluster: {error}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray puts its own in its place
    try:
        yield from _outcomes(ray, settings, tasks, log, heard)
    finally:
        if ours:
            ray.shutdown()


def _outcomes(
    ray: Any,
    settings: WorkerSettings,
    tasks: Sequence[Task],
    log: Callable[[str], None],
    heard: Callable[[int], None] | None,
) -> Generator[Outcome]:
    dispatcher = Dispatcher(tasks, room=settings.batch_size + 1)
    cluster = _Cluster(ray, settings, dispatcher)
    said: set[str] = set()
    try:
        while not dispatcher.over:
            cluster.grow()
            cluster.supply()
            for number, actor, ref in cluster.answers():
                if number not in cluster.actors:  # it was buried meanwhile
                    continue
                try:
                    answer = ray.get(ref)
                except (ray.exceptions.RayActorError, ray.exceptions.RayTaskError) as error:
                    cause = getattr(error, "cause", None)
                    if isinstance(cause, EarlybirdError):
                        raise cause from error
                    log("warning: a worker of the cluster has ended; its files are tried again, one at a time")
                    yield from (died_with(task, "on the cluster") for task in cluster.bury(number))
                    continue
                if not actor.ready:
                    cluster.actors[number].ready = True
                    dispatcher.join(number)
                    for line in answer:
                        if line not in said:
                            said.add(line)
                            log(line)
                    continue
                task = actor.calls.pop(ref)
                dispatcher.finished(number, task.index)
                cluster.supply()
                if heard is not None:
                    heard(round(answer.result.audio_samples / SAMPLE_RATE) * SAMPLE_RATE)
                yield answer
    finally:
        for actor in cluster.actors.values():
            ray.kill(actor.handle)
