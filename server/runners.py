"""Who works on a batch: this process, worker processes beside it, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from server.batch_worker import Outcome, WorkerSettings, in_this_process
from server.dispatch import Task
from server.machine import available_cpus
from server.pool import in_processes
from server.progress import BatchProgress


def worker_processes(*, files: int, threads: int, device: str, cpus: int) -> int:
    """How many processes share the work: as many as the processors feed, one on a GPU, never more than files.

    >>> worker_processes(files=9, threads=2, device="cpu", cpus=8)
    4
    >>> worker_processes(files=9, threads=1, device="cuda", cpus=8)
    1
    """
    return max(1, min(files, cpus // threads if device == "cpu" else 1))


class Runner:
    """What `run_batch` calls for the outcomes of its tasks.

    A single file is done in this process; several by worker processes, be it only one, so that a file that kills its
    process does not end the batch.

    Args:
        settings: of each worker.
        ray: the address of a Ray cluster, "local" to start one, None: this machine without Ray.
        progress: told how much was read.
    """

    def __init__(self, settings: WorkerSettings, *, ray: str | None, progress: BatchProgress) -> None:
        self._settings, self._ray, self._progress = settings, ray, progress

    def __call__(self, tasks: Sequence[Task]) -> Generator[Outcome]:
        """The outcomes of the tasks, as they finish.

        Raises:
            EarlybirdError: if a setting cannot work, the model cannot be loaded, or there is no such cluster.
        """
        settings, progress = self._settings, self._progress
        if self._ray is not None:
            from server.cluster import on_ray

            return on_ray(settings, tasks, address=self._ray, log=progress.log, heard=progress.heard)
        if len(tasks) == 1:
            return in_this_process(settings, tasks, log=progress.log, heard=progress.heard)
        workers = worker_processes(
            files=len(tasks), threads=settings.threads, device=settings.device, cpus=available_cpus()
        )
        return in_processes(settings, tasks, workers=workers, log=progress.log, heard=progress.heard)
