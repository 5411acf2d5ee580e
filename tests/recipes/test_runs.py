"""The loop of a run: lines, alarms, saves, and what a picture is drawn of."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import soundfile

import asr
from asr.errors import ConfigError
from recipes.data import Clip
from recipes.distributed import Processes
from recipes.runs import (
    METRICS,
    ROLLOUTS,
    SAMPLES,
    SAVED,
    above,
    add_outputs,
    draw_metrics,
    follow,
    forget_after,
    keep,
    shown_clips,
    train,
    write_samples,
)
from tests.scripted import say, scripted_model
from tests.tiny_model import tiny_ctc_model as tiny_model


@dataclass(frozen=True)
class Config:
    steps: int = 7
    log_every: int = 2
    save_every: int = 3


class Counter:
    """Counts its steps; `waits` is high at step 5."""

    def __init__(self, config: Config | None = None) -> None:
        self.done, self.config, self.loaded = 0, config or Config(), 0

    def step(self) -> dict[str, float]:
        self.done += 1
        return {"loss": 1 / self.done, "waits": 0.9 if self.done == 5 else 0.1}

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.done = self.loaded = state["done"]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def test_a_line_every_so_often_and_at_the_end_and_alarms_at_once(tmp_path: Path) -> None:
    found = list(train(Counter(), tmp_path, alarms=[above("waits", 0.5, "steps wait")]))
    assert [(line["step"], "alarm" in line) for line in found] == [
        (2, False),
        (3, False),
        (4, False),
        (5, True),
        (6, False),
        (7, False),
    ]
    assert found[3] == {"step": 5, "alarm": "0.900 of the steps wait; the bound is 0.5", "waits": 0.9}
    assert lines(tmp_path) == found


def test_a_line_has_the_means_since_the_line_before(tmp_path: Path) -> None:
    by_step = {line["step"]: line for line in train(Counter(), tmp_path)}
    assert by_step[2]["loss"] == pytest.approx((1 + 1 / 2) / 2)
    assert by_step[3]["loss"] == pytest.approx(1 / 3)  # a save has a line, whatever log_every says
    assert by_step[6]["loss"] == pytest.approx((1 / 5 + 1 / 6) / 2)
    assert by_step[6]["waits"] == pytest.approx(0.5)
    seconds = [line["seconds"] for line in by_step.values()]
    assert seconds == sorted(seconds)


def test_saves_are_told_and_a_run_goes_on_from_the_last(tmp_path: Path) -> None:
    saved: list[int] = []
    first = Counter()
    running = train(first, tmp_path, saved=lambda: saved.append(first.done))
    assert [next(running)["step"] for _ in range(3)] == [2, 3, 4]
    running.close()
    assert saved == [3]
    second = Counter()
    assert [line["step"] for line in train(second, tmp_path)] == [4, 6, 7]
    assert second.loaded == 3
    assert [line["step"] for line in lines(tmp_path)] == [2, 3, 4, 6, 7]
    assert list(train(Counter(), tmp_path)) == []


def test_a_run_that_dies_while_it_saves_takes_the_steps_again(tmp_path: Path) -> None:
    def dies() -> None:
        for name in (SAMPLES, ROLLOUTS):
            with (tmp_path / name).open("a") as out:
                out.write('{"step": 3}\n')
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        list(train(Counter(), tmp_path, saved=dies))
    again: list[int] = []
    run = Counter()
    list(train(run, tmp_path, saved=lambda: again.append(run.done)))
    assert again == [3, 6, 7]
    assert [line["step"] for line in lines(tmp_path)] == [2, 3, 4, 6, 7]
    assert (tmp_path / SAMPLES).read_text() == (tmp_path / ROLLOUTS).read_text() == ""


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    assert list(train(Counter(), tmp_path, processes=Processes(rank=1, size=2))) == []
    assert not (tmp_path / METRICS).exists()
    assert not (tmp_path / SAVED).exists()


def test_half_a_line_and_what_came_after_the_save_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    path.write_text('{"step": 1}\n{"step": 2, "alarm": "a"}\n{"step": 3}\n{"ste')
    forget_after(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2, "alarm": "a"}\n'
    forget_after(tmp_path / "none", 2)


def test_a_picture_of_all_numbers(tmp_path: Path) -> None:
    list(train(Counter(), tmp_path, alarms=[above("waits", 0.5, "steps wait")]))
    assert not (tmp_path / "metrics.png").exists()
    assert draw_metrics(tmp_path).read_bytes()[1:4] == b"PNG"
    with pytest.raises(ConfigError, match="holds no metrics"):
        draw_metrics(tmp_path / "none")


def test_every_save_is_drawn_if_asked(tmp_path: Path) -> None:
    running = train(Counter(), tmp_path, plot=True)
    assert [next(running)["step"] for _ in range(2)] == [2, 3]
    assert (tmp_path / "metrics.png").read_bytes()[1:4] == b"PNG"


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run's folder."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_tensorboard_shows_the_lines_and_forgets_what_is_done_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    running = train(Counter(), tmp_path, tensorboard=True)
    assert [next(running)["step"] for _ in range(3)] == [2, 3, 4]
    running.close()
    list(train(Counter(), tmp_path, alarms=[above("waits", 0.5, "steps wait")], tensorboard=True))
    found = scalars(tmp_path)
    assert set(found) == {"loss", "waits"}
    expected = [(line["step"], line["loss"]) for line in lines(tmp_path) if "alarm" not in line]
    assert [step for step, _ in found["loss"]] == [2, 3, 4, 6, 7]
    assert [value for _, value in found["loss"]] == pytest.approx([value for _, value in expected])


def test_without_tensorboard_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'earlybird-asr\[train\]'"):
        next(train(Counter(), tmp_path, tensorboard=True))
    assert next(train(Counter(), tmp_path))["step"] == 2


def test_lines_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = list(follow(train(Counter(), tmp_path), 7))
    assert [json.loads(line) for line in capsys.readouterr().err.splitlines()] == found


def test_every_command_has_the_same_outputs(tmp_path: Path) -> None:
    parser = ArgumentParser()
    add_outputs(parser)
    args = parser.parse_args(["--out", str(tmp_path)])
    assert vars(args) == {"out": tmp_path, "show": None, "keep_all": False, "plot": False, "tensorboard": False}
    assert shown_clips(args.show) == ()
    entry = {"duration": 1.0, "source": "s", "licence": "l"}
    (tmp_path / "clips.jsonl").write_text("".join(json.dumps({"audio": f"{i}", **entry}) + "\n" for i in range(9)))
    assert [clip.audio for clip in shown_clips(tmp_path / "clips.jsonl")] == ["0", "1", "2", "3", "4"]


def test_what_is_kept_is_a_checkpoint(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    keep(model, tmp_path / "run", step=12, stage="counting", settings={"steps": 20})
    card = (tmp_path / "run" / "checkpoint" / "MODEL_CARD.md").read_text()
    assert 'After 12 steps of counting: {"steps": 20}' in card
    assert asr.load(str(tmp_path / "run" / "checkpoint")).name == model.name
    for step in (13, 14):
        keep(model, tmp_path / "run", step=step, stage="counting", settings={}, every=True)
    names = ["checkpoint", "checkpoint-13", "checkpoint-14"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == names


def test_samples_are_what_the_model_writes_now(tmp_path: Path) -> None:
    model = scripted_model(tmp_path)
    soundfile.write(tmp_path / "a.wav", say(model, "the on"), 16_000, subtype="FLOAT")
    clip = Clip(
        audio="a.wav", path=tmp_path / "a.wav", duration_ms=500, text="The one", speaker=None, source="", licence=""
    )
    for step in (1, 2):
        write_samples(model, [clip], tmp_path / "samples.jsonl", step=step)
    found = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert found[1] == {"step": 2, "audio": "a.wav", "reference": "The one", "text": "the on"}
    assert [line["step"] for line in found] == [1, 2]
    write_samples(model, [], tmp_path / "none.jsonl", step=1)
    assert not (tmp_path / "none.jsonl").exists()
