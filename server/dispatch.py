"""Who works on which file, and what happens to the files of a worker that dies. No processes here: those are told."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Task:
    """One file to transcribe. Attributes: index: its number in the batch."""

    index: int
    path: Path


class Dispatcher:
    """Files in the order given to workers that come and go.

    A worker that dies may have been killed by any file it had: each of them is tried once more, alone, when the others
    are done; the one with which a worker dies again is given up.

    Args:
        tasks: like lengths in a row.
        room: files that a worker may have at once.
    """

    def __init__(self, tasks: Iterable[Task], *, room: int) -> None:
        self._queue = deque(tasks)
        self._suspects: deque[Task] = deque()
        self._held: dict[Hashable, list[Task]] = {}
        self._alone: set[Hashable] = set()
        self._room = room

    @property
    def over(self) -> bool:
        """Whether nothing is left to do or under way."""
        return not self.waiting and not any(self._held.values())

    @property
    def waiting(self) -> int:
        """Files that nobody has."""
        return len(self._queue) + len(self._suspects)

    def join(self, worker: Hashable) -> None:
        """A worker is there."""
        self._held[worker] = []

    def next_for(self, worker: Hashable) -> Task | None:
        """What a worker shall do besides what it has; None: nothing for now."""
        held = self._held[worker]
        if worker in self._alone:
            return None
        if self._queue:
            left = len(self._queue) + sum(map(len, self._held.values()))
            if len(held) < min(self._room, -(-left // len(self._held))):
                held.append(self._queue.popleft())
                return held[-1]
        elif self._suspects and not held:
            self._alone.add(worker)
            held.append(self._suspects.popleft())
            return held[-1]
        return None

    def finished(self, worker: Hashable, index: int) -> None:
        """A worker is done with a file."""
        self._held[worker] = [task for task in self._held[worker] if task.index != index]
        self._alone.discard(worker)

    def died(self, worker: Hashable) -> list[Task]:
        """A worker is gone: the files that are given up."""
        lost = self._held.pop(worker)
        if worker in self._alone:
            self._alone.discard(worker)
            return lost
        self._suspects.extend(lost)
        return []
