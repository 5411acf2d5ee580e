"""How far a batch is: a bar where there is a terminal, nothing where there is none."""

from __future__ import annotations

import sys
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from asr.units import SAMPLE_RATE


class BatchProgress(Protocol):
    """Is told how far a batch is."""

    def begin(self, *, files: int, seconds: float) -> None:
        """So many files, together about so long, are to be done."""

    def heard(self, samples: int) -> None:
        """More audio was read."""

    def finished(self, *, expected: float, seconds: float) -> None:
        """A file is done or has failed; it was expected to be longer or shorter than it was."""

    def log(self, line: str) -> None:
        """A line for people."""

    def close(self) -> None:
        """Nothing more comes."""


class QuietProgress:
    """Shows nothing; lines go to `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self, *, files: int, seconds: float) -> None:
        """See `BatchProgress`."""

    def heard(self, samples: int) -> None:
        """See `BatchProgress`."""

    def finished(self, *, expected: float, seconds: float) -> None:
        """See `BatchProgress`."""

    def log(self, line: str) -> None:
        """See `BatchProgress`."""
        print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """See `BatchProgress`."""


class _SpeedColumn(ProgressColumn):
    """Seconds of audio for a second of the clock, over the last half minute."""

    def render(self, task: Task) -> Text:
        """`12.3 × real time`."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f} × real time")


class BarProgress:
    """A bar of audio, with files, hours, speed and time left; lines go above it.

    Args:
        console: of a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            BarColumn(bar_width=None),
            TextColumn("{task.fields[done]}/{task.fields[files]} files"),
            TextColumn("{task.fields[hours]}"),
            _SpeedColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
            transient=True,
        )
        self._seconds = self._total = 0.0
        self._done = 0
        self._task = self._bar.add_task("", total=None, done=0, files=0, hours="", visible=False)

    def begin(self, *, files: int, seconds: float) -> None:
        """See `BatchProgress`."""
        self._total = seconds
        self._bar.update(self._task, files=files, visible=True)
        self._bar.start()
        self._show()

    def heard(self, samples: int) -> None:
        """See `BatchProgress`."""
        self._seconds += samples / SAMPLE_RATE
        self._show()

    def finished(self, *, expected: float, seconds: float) -> None:
        """See `BatchProgress`."""
        self._done += 1
        self._total += seconds - expected
        self._show()

    def _show(self) -> None:
        total = max(self._total, self._seconds)
        hours = f"{self._seconds / 3600:.2f}/{total / 3600:.2f} h"
        self._bar.update(self._task, completed=self._seconds, total=total, done=self._done, hours=hours)

    def log(self, line: str) -> None:
        """See `BatchProgress`."""
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """See `BatchProgress`."""
        self._bar.stop()


def batch_progress(stream: TextIO | None = None) -> BatchProgress:
    """A bar if `stream`, by default standard error, is a terminal."""
    stream = stream or sys.stderr
    console = Console(file=stream)
    return BarProgress(console) if console.is_terminal and not console.is_dumb_terminal else QuietProgress(stream)
