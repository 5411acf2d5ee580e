"""The loop of a run: lines, alarms, saves, and what a picture is drawn of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import soundfile

from asr.errors import ConfigError
from recipes.data import Clip
from recipes.distributed import Processes
from recipes.runs import METRICS, SAVED, above, draw_metrics, forget_after, train, write_samples
from tests.scripted import say, scripted_model


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
        (4, False),
        (5, True),
        (6, False),
        (7, False),
    ]
    assert found[2] == {"step": 5, "alarm": "0.900 of the steps wait; the bound is 0.5", "waits": 0.9}
    assert lines(tmp_path) == found


def test_saves_are_told_and_a_run_goes_on_from_the_last(tmp_path: Path) -> None:
    saved: list[int] = []
    first = Counter()
    running = train(first, tmp_path, saved=lambda: saved.append(first.done))
    assert [next(running)["step"] for _ in range(2)] == [2, 4]
    running.close()
    assert saved == [3]
    second = Counter()
    assert [line["step"] for line in train(second, tmp_path)] == [4, 6, 7]
    assert second.loaded == 3
    assert [line["step"] for line in lines(tmp_path)] == [2, 4, 6, 7]
    assert list(train(Counter(), tmp_path)) == []


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
    assert draw_metrics(tmp_path).read_bytes()[1:4] == b"PNG"
    with pytest.raises(ConfigError, match="holds no metrics"):
        draw_metrics(tmp_path / "none")


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
