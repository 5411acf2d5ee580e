"""Worker processes, with a stand-in for what they do; files say by their names what happens to them."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from asr.errors import CheckpointError, EarlybirdError, WorkerDied
from asr.results import FileResult
from asr.words import Transcript
from server import pool
from server.batch_worker import Outcome, WorkerSettings
from server.dispatch import Task
from server.pool import Heard, Line, Ready, in_processes
from server.runners import worker_processes


def stand_in(connection: Connection, settings: WorkerSettings) -> None:
    """In place of `pool._work`."""
    if settings.model == "refused":
        connection.send(CheckpointError("no such model"))
        return
    if settings.model == "dies":
        os._exit(3)
    connection.send(Line("a phrase is left out"))
    connection.send(Ready())
    held: list[Task] = []
    while True:
        try:
            held.append(connection.recv())
            while connection.poll(0.05):
                held.append(connection.recv())
        except EOFError:
            return
        while held:
            task = held.pop(0)
            if "killer" in task.path.name:
                os.kill(os.getpid(), signal.SIGSEGV)
            if "sleeper" in task.path.name:
                time.sleep(600)
            connection.send(Heard(16_000))
            result = FileResult(path=task.path, transcripts=(Transcript(words=(), audio_samples=16_000),))
            connection.send(Outcome(index=task.index, result=result, seconds=0.1, identity=None))


@pytest.fixture(autouse=True)
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_work", stand_in)


def transcribe(names: list[str], *, model: str = "m", workers: int = 2) -> tuple[dict[int, Outcome], list[str], int]:
    logged: list[str] = []
    heard: list[int] = []
    tasks = [Task(index=n, path=Path(name)) for n, name in enumerate(names)]
    settings = WorkerSettings(model=model, batch_size=2)
    outcomes = list(in_processes(settings, tasks, workers=workers, log=logged.append, heard=heard.append))
    found = {outcome.index: outcome for outcome in outcomes}
    assert len(found) == len(outcomes) == len(names), "one outcome for every file"
    assert multiprocessing.active_children() == []
    return found, logged, sum(heard)


def test_every_file_has_one_outcome() -> None:
    found, logged, heard = transcribe([f"{n}.wav" for n in range(11)])
    assert [found[n].result.path for n in range(11)] == [Path(f"{n}.wav") for n in range(11)]
    assert logged == ["a phrase is left out"], "said once, not by every worker"
    assert heard == 11 * 16_000


def test_a_file_that_kills_its_worker_fails_alone() -> None:
    names = [f"{n}.wav" for n in range(9)]
    names[1] = names[4] = "killer.wav"
    found, logged, _ = transcribe(names)
    errors = {n: outcome.result.error for n, outcome in found.items() if outcome.result.error is not None}
    assert errors.keys() == {1, 4}
    assert isinstance(errors[1], WorkerDied)
    assert str(errors[1]) == ("killer.wav: the worker that had it ended by SIGSEGV, and again when it had it alone")
    assert "warning: a worker process ended by SIGSEGV; its files are tried again, one at a time" in logged


def test_one_worker_is_enough_to_get_past_a_killer() -> None:
    found, _, _ = transcribe(["killer.wav", "a.wav"], workers=1)
    assert [found[n].result.error is None for n in range(2)] == [False, True]


def test_a_model_that_cannot_be_loaded_is_told() -> None:
    with pytest.raises(CheckpointError, match="no such model"):
        transcribe(["a.wav", "b.wav"], model="refused")
    with pytest.raises(WorkerDied, match="ended with exit code 3 while it loaded the model"):
        transcribe(["a.wav", "b.wav"], model="dies")
    assert issubclass(WorkerDied, EarlybirdError)


def test_stopping_early_ends_what_is_under_way() -> None:
    tasks = [Task(index=0, path=Path("a.wav")), Task(index=1, path=Path("sleeper.wav"))]
    outcomes = in_processes(WorkerSettings(model="m", batch_size=1), tasks, workers=2, log=print)
    assert next(outcomes).index == 0
    outcomes.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("cpus", [1, 2, 7, 64])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_processes_and_threads_fit_the_cores(cpus: int, threads: int) -> None:
    processes = worker_processes(files=1000, threads=threads, device="cpu", cpus=cpus)
    assert processes * threads <= cpus or processes == 1
    assert (processes + 1) * threads > cpus, "and leave none idle"
    assert worker_processes(files=1, threads=threads, device="cpu", cpus=cpus) == 1
    assert worker_processes(files=1000, threads=threads, device="cuda:0", cpus=cpus) == 1
