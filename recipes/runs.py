"""The loop that every training run shares: it goes on from its last save, writes metrics, and raises alarms.

A folder holds `metrics.jsonl`, `train.pt` (weights, optimiser, random state), the model so far in `checkpoint`, and, if
asked for, `metrics.png`, `tensorboard` and `samples.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import Progress

from asr.checkpoint import save
from asr.errors import CheckpointError, ConfigError
from asr.model import Model
from asr.transcriber import transcribe
from asr.units import STEP_MS
from recipes.data import Clip, load_audio, read_manifest
from recipes.distributed import Processes

__all__ = [
    "METRICS",
    "ROLLOUTS",
    "SAMPLES",
    "SAVED",
    "Alarm",
    "Run",
    "above",
    "add_outputs",
    "check_same_run",
    "draw_metrics",
    "follow",
    "forget_after",
    "keep",
    "shown_clips",
    "train",
    "write_samples",
]

SAVED = "train.pt"
METRICS, SAMPLES, ROLLOUTS = "metrics.jsonl", "samples.jsonl", "rollouts.jsonl"
"""What is logged of a run, each line with its step."""
BOARD = "tensorboard"
SHOWN_CLIPS = 5
"""So many clips of a manifest are transcribed at every save of a run."""

Alarm = Callable[[Mapping[str, float]], dict[str, object] | None]
"""From a step's metrics to what is added to metrics.jsonl: `alarm`, a sentence, and numbers; None: all is well."""


class RunConfig(Protocol):
    """What the loop has to know of a run's settings."""

    @property
    def steps(self) -> int:
        """Steps of the whole run."""

    @property
    def log_every(self) -> int:
        """A line of metrics every so many steps."""

    @property
    def save_every(self) -> int:
        """A save every so many steps."""


class Run(Protocol):
    """Weights, optimiser and random state; `step` moves them on, `state_dict` is asked for in every process."""

    @property
    def done(self) -> int:
        """Steps taken."""

    @property
    def config(self) -> RunConfig:
        """The settings."""

    def step(self) -> dict[str, float]:
        """One batch, one update; its metrics."""

    def state_dict(self) -> dict[str, Any]:
        """All that the steps to come depend on, beside the data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""


def above(name: str, bound: float, what: str) -> Alarm:
    """Raised where a metric is above a bound; `what` it is the share of."""

    def alarm(metrics: Mapping[str, float]) -> dict[str, object] | None:
        if metrics[name] <= bound:
            return None
        return {"alarm": f"{metrics[name]:.3f} of the {what}; the bound is {bound}", name: metrics[name]}

    return alarm


def train(
    run: Run,
    folder: Path,
    *,
    alarms: Sequence[Alarm] = (),
    saved: Callable[[], None] | None = None,
    processes: Processes | None = None,
    plot: bool = False,
    tensorboard: bool = False,
) -> Iterator[dict[str, object]]:
    """Runs to the end, from what `folder` holds of an earlier call on; yields each line of metrics.jsonl as written.

    A line is the mean of the metrics of the steps since the line before, with the `seconds` since the call; there is
    one every `log_every` steps, at every save, so that a run that goes on has nothing to make up for, and at the end.
    An alarm is a line of its own at once.

    Args:
        saved: called at each save in every process, before it counts: a run that dies in it takes the steps again.
        processes: of which the first one writes.
        plot: whether each save draws the metrics.
        tensorboard: whether the lines go to TensorBoard as well.

    Raises:
        CheckpointError: if the folder's run is another one.
        ConfigError: as `Run.step`, or if what is asked for is not installed.
    """
    processes = processes or Processes()
    folder.mkdir(parents=True, exist_ok=True)
    config = run.config
    if (folder / SAVED).exists():
        run.load_state_dict(torch.load(folder / SAVED, weights_only=True))
    if processes.first:
        for name in (METRICS, SAMPLES, ROLLOUTS):
            forget_after(folder / name, run.done)
    sums: dict[str, float] = {}
    since, begin = run.done, time.monotonic()
    board: AbstractContextManager[Board] = (
        _open_board(folder / BOARD, run.done) if tensorboard and processes.first else nullcontext(lambda line: None)
    )
    with board as show:
        while run.done < config.steps:
            metrics = run.step()
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + value
            saves = run.done % config.save_every == 0 or run.done == config.steps
            lines: list[dict[str, object]] = []
            if run.done % config.log_every == 0 or saves:
                means = {name: value / (run.done - since) for name, value in sums.items()}
                lines.append({"step": run.done, **means, "seconds": round(time.monotonic() - begin, 3)})
                sums, since = {}, run.done
            for alarm in alarms:
                if (raised := alarm(metrics)) is not None:
                    lines.append({"step": run.done, **raised})
            if saves and saved is not None:
                saved()
            state = run.state_dict() if saves else None  # in every process: each may hold a part
            if not processes.first:
                continue
            with (folder / METRICS).open("a", encoding="utf-8") as out:
                out.writelines(json.dumps(line) + "\n" for line in lines)
            for line in lines:
                show(line)
            if state is not None:
                torch.save(state, folder / (SAVED + ".new"))
                os.replace(folder / (SAVED + ".new"), folder / SAVED)
                if plot:
                    draw_metrics(folder)
            yield from lines


Board = Callable[[Mapping[str, object]], None]


@contextmanager
def _open_board(folder: Path, done: int) -> Iterator[Board]:
    """Takes lines to TensorBoard; what an earlier call wrote of the steps behind `done` is taken off."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(f"TensorBoard needs pip install 'earlybird-asr[train]' ({error})") from error
    with SummaryWriter(str(folder), purge_step=done + 1) as writer:

        def show(line: Mapping[str, object]) -> None:
            step = line["step"]
            if "alarm" in line:
                writer.add_text("alarm", str(line["alarm"]), step)
                return
            for name, value in line.items():
                if name not in ("step", "seconds"):
                    writer.add_scalar(name, value, step)

        yield show


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """The options that every run's command has."""
    parser.add_argument("--out", type=Path, required=True, help="what it holds of this run is gone on from")
    parser.add_argument("--show", type=Path, help="a manifest: its first clips are transcribed at every save")
    parser.add_argument("--keep-all", action="store_true", help="keep the checkpoint of every save (checkpoint-STEP)")
    parser.add_argument("--plot", action="store_true", help="draw the metrics at every save (metrics.png)")
    parser.add_argument("--tensorboard", action="store_true", help="metrics for TensorBoard as well")


def shown_clips(manifest: Path | None) -> tuple[Clip, ...]:
    """The first clips of the manifest that `--show` names."""
    return read_manifest(manifest)[:SHOWN_CLIPS] if manifest is not None else ()


def keep(
    model: Model,
    folder: Path,
    *,
    step: int,
    stage: str,
    settings: Mapping[str, object],
    shown: Sequence[Clip] = (),
    every: bool = False,
) -> None:
    """Saves the model as it is at a step in `folder`/checkpoint, and writes down what it makes of the shown clips.

    Args:
        every: whether the step's model is kept beside later ones as well, in checkpoint-STEP.
    """
    card = f"# {model.name}\n\nAfter {step} steps of {stage}: {json.dumps(settings)}\n"
    for name in ("checkpoint", f"checkpoint-{step}") if every else ("checkpoint",):
        save(model, folder / name, card)
    write_samples(model, shown, folder / SAMPLES, step=step)


def follow(lines: Iterator[dict[str, object]], steps: int) -> Iterator[dict[str, object]]:
    """The lines as they come, printed to stderr; below them, where that is a terminal, how far the run is."""
    console = Console(stderr=True, soft_wrap=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("steps", total=steps)
        for line in lines:
            console.print(json.dumps(line), markup=False, highlight=False)
            progress.update(task, completed=line["step"])  # type: ignore[arg-type]
            yield line


def check_same_run(state: Mapping[str, Any], here: Mapping[str, object]) -> None:
    """That a saved state is of a run with the same settings and data as this one.

    Args:
        state: what a run's `state_dict` gave; here: the entries of it that have to be the same.

    Raises:
        CheckpointError: if one of them is not.
    """
    for name, value in here.items():
        if state.get(name) != value:
            raise CheckpointError(f"the saved run has {name}={state.get(name)!r}; this one has {value!r}")


def forget_after(path: Path, step: int) -> None:
    """Takes off what was logged after the save that is gone on from, half a last line included."""
    if not path.exists():
        return
    whole = path.read_text(encoding="utf-8")
    lines = whole[: whole.rfind("\n") + 1].splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["step"] <= step), encoding="utf-8")


def write_samples(model: Model, clips: Sequence[Clip], path: Path, *, step: int) -> None:
    """Appends what the model now writes of each clip, beside its transcript, at the first delay and chunk it offers."""
    if not clips:
        return
    limits = model.config.limits
    delay_ms, chunk_ms = limits.delays[0] * STEP_MS, limits.chunks[0].chunk_steps * STEP_MS
    with path.open("a", encoding="utf-8") as out:
        for clip in clips:
            text = transcribe(model, load_audio(clip.path), delay_ms=delay_ms, chunk_ms=chunk_ms).text
            entry = {"step": step, "audio": clip.audio, "reference": clip.text, "text": text}
            out.write(json.dumps(entry, ensure_ascii=False) + "\n")


def draw_metrics(folder: Path) -> Path:
    """Draws every number of metrics.jsonl over the steps, an alarm as a line across; gives the picture's path.

    Raises:
        ConfigError: if there are no metrics, or matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"plots need matplotlib: pip install 'earlybird-asr[train]' ({error})") from error
    path = folder / METRICS
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    logged = [line for line in lines if "alarm" not in line]
    names = sorted({name for line in logged for name in line} - {"step", "seconds"})
    if not names:
        raise ConfigError(f"{path} holds no metrics to draw")
    columns = 3
    figure = Figure(figsize=(4 * columns, 2.4 * math.ceil(len(names) / columns)), layout="constrained")
    for axes, name in zip(figure.subplots(math.ceil(len(names) / columns), columns).flat, names, strict=False):
        points = [(line["step"], line[name]) for line in logged if name in line]
        axes.plot([step for step, _ in points], [value for _, value in points], linewidth=1)
        for line in lines:
            if "alarm" in line and name in line:
                axes.axvline(line["step"], color="red", linewidth=0.5)
        axes.set_title(name, fontsize=9)
    picture = folder / "metrics.png"
    figure.savefig(picture, dpi=100)
    return picture
