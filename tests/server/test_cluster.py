"""A batch on a Ray cluster of two nodes on this machine, with a tiny model."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile

import asr
from asr.errors import CheckpointError, ConfigError
from server.batch_worker import Outcome, WorkerSettings, in_this_process
from server.cluster import ClusterWorker, on_ray
from server.dispatch import Task
from tests.tiny_model import bursts, tiny_model

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    asr.save(tiny_model(folder), folder / "checkpoint", "random weights, for tests")
    return str(folder / "checkpoint")


def settings_of(model: str) -> WorkerSettings:
    return WorkerSettings(model=model, delay_ms=160, chunk_ms=160, batch_size=2)


def tasks_in(folder: Path, count: int, seconds: float = 0.4) -> list[Task]:
    tasks = []
    for number in range(count):
        path = folder / f"{number}.wav"
        soundfile.write(path, bursts(seconds + 0.05 * number, number).numpy(), 16_000)
        tasks.append(Task(index=number, path=path))
    (folder / "bad.wav").write_text("no audio")
    return [*tasks, Task(index=count, path=folder / "bad.wav")]


def told(outcomes: list[Outcome]) -> dict[int, tuple[Any, ...]]:
    assert len({outcome.index for outcome in outcomes}) == len(outcomes), "none is there twice"
    return {
        outcome.index: (
            outcome.result.path,
            type(outcome.result.error),
            # Confidences differ in their last bits with the shape of the batch.
            [([(w.text, w.start_ms, w.end_ms) for w in t.words], t.audio_samples) for t in outcome.result.transcripts],
            outcome.identity,
        )
        for outcome in outcomes
    }


def test_a_worker_decodes_the_files_of_many_calls_together(model: str, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    tasks = tasks_in(tmp_path, 3)
    worker = ClusterWorker(settings_of(model))
    assert worker.lines() == []
    with ThreadPoolExecutor(4) as calls:
        outcomes = list(calls.map(worker.transcribe, tasks))
    assert [outcome.index for outcome in outcomes] == [0, 1, 2, 3]
    assert told(outcomes) == told(list(in_this_process(settings_of(model), tasks, log=print)))


def test_a_worker_that_cannot_load_its_model_says_so() -> None:
    with pytest.raises(CheckpointError):
        ClusterWorker(settings_of("missing")).lines()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes; made anew for whoever kills one."""
    from ray.cluster_utils import Cluster

    os.environ["OMP_NUM_THREADS"] = "1"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def run(cluster: Any, settings: WorkerSettings, tasks: list[Task]) -> tuple[Iterator[Outcome], list[str]]:
    logged: list[str] = []
    return on_ray(settings, tasks, address=cluster.address, log=logged.append), logged


@pytest.mark.nightly
def test_two_nodes_give_what_one_process_gives(cluster: Any, model: str, tmp_path: Path) -> None:
    tasks = tasks_in(tmp_path, 8)
    outcomes, logged = run(cluster, settings_of(model), tasks)
    assert told(list(outcomes)) == told(list(in_this_process(settings_of(model), tasks, log=print)))
    assert logged == []


@pytest.mark.nightly
def test_a_model_that_no_node_can_load_is_told(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no model is called 'missing'"):
        list(run(cluster, settings_of("missing"), tasks_in(tmp_path, 2))[0])


def test_an_address_where_nobody_listens_is_told_at_once(model: str) -> None:
    task = Task(index=0, path=Path("a.wav"))
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"):
        with pytest.raises(ConfigError, match=rf"--ray {address}: there is no such cluster"):
            next(on_ray(settings_of(model), [task], address=address, log=print))


@pytest.mark.nightly
def test_a_node_that_dies_midway_loses_no_file(cluster: Any, model: str, tmp_path: Path) -> None:
    tasks = tasks_in(tmp_path, 16, seconds=2.0)
    node = cluster.add_node(num_cpus=1)
    outcomes, _ = run(cluster, settings_of(model), tasks)
    found = [next(outcomes) for _ in range(3)]
    cluster.remove_node(node, allow_graceful=False)
    found += outcomes
    assert told(found) == told(list(in_this_process(settings_of(model), tasks, log=print)))


@pytest.mark.nightly
def test_a_worker_that_is_killed_loses_no_file(cluster: Any, model: str, tmp_path: Path) -> None:
    tasks = tasks_in(tmp_path, 12, seconds=1.0)
    outcomes, logged = run(cluster, settings_of(model), tasks)
    found = [next(outcomes)]
    victims = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _is_worker(pid)]
    os.kill(victims[0], signal.SIGKILL)
    time.sleep(0.5)
    found += outcomes
    assert told(found) == told(list(in_this_process(settings_of(model), tasks, log=print)))
    assert logged == ["warning: a worker of the cluster has ended; its files are tried again, one at a time"]


def _is_worker(pid: str) -> bool:
    """Whether a process is one of this test's Ray actors."""
    try:
        title = Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return False
    return title.startswith(b"ray::ClusterWorker")
