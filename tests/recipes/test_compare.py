"""Two runs over the same clips: the change is paired, and what cannot be compared is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipes.compare import main


def entry(errors: dict[str, list[int]], **more: Any) -> dict[str, Any]:
    delay = {"p50_ms": 500, "p90_ms": 900, "p95_ms": 1000}
    return {
        "delay_ms": 480,
        "chunk_ms": 320,
        "snr_db": None,
        "gain_db": 0.0,
        "errors": errors,
        "delay": delay,
    } | more


def written(path: Path, *entries: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in entries), encoding="utf-8")
    return str(path)


def test_the_change_is_that_of_the_clips_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clips = {str(number): [8, 1, 1, 0] for number in range(20)}
    better = {name: [9, 1, 0, 0] for name in clips}
    before = written(tmp_path / "a.jsonl", entry(clips), entry(clips, delay_ms=80))
    after = written(tmp_path / "b.jsonl", entry(better, delay={"p50_ms": 400, "p90_ms": 800, "p95_ms": 900}))
    assert main([before, after, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "delay_ms": 480,
        "chunk_ms": 320,
        "snr_db": None,
        "gain_db": 0.0,
        "clips": 20,
        "wer": [20.0, 10.0],
        "change": [-10.0, -10.0, -10.0],  # every clip has one error of ten words less, however they are drawn
        "p50_ms": [500, 400],
        "p90_ms": [900, 800],
        "p95_ms": [1000, 900],
        "deleted": [20, 0],
    }
    assert main([before, after]) == 0
    assert "| 480 ms | 320 ms | 20.0 → 10.0 | -10.0 (-10.0 to -10.0) | 500 → 400 |" in capsys.readouterr().out


def test_a_change_in_one_clip_alone_may_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clips = {str(number): [9, 1, 0, 0] for number in range(20)}
    before = written(tmp_path / "a.jsonl", entry(clips))
    after = written(tmp_path / "b.jsonl", entry(clips | {"3": [10, 0, 0, 0]}))
    assert main([before, after, "--json"]) == 0
    change, low, high = json.loads(capsys.readouterr().out)["change"]
    assert change == -0.5
    assert low < -0.5 < high == 0.0


def test_clips_without_words_count_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = written(tmp_path / "a.jsonl", entry({"a": [9, 1, 0, 0], "silence": [0, 0, 0, 5]}))
    assert main([before, before, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clips"] == 1


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (entry({"a": [9, 1, 0, 0]}, chunk_ms=640), "no setting"),
        (entry({"b": [9, 1, 0, 0]}), "other clips"),
        ({"delay_ms": 480}, "line 1: no line of recipes.evaluate"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, Any], message: str
) -> None:
    before = written(tmp_path / "a.jsonl", entry({"a": [9, 1, 0, 0]}))
    assert main([before, written(tmp_path / "b.jsonl", other)]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none"), str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err
