"""`earlybird train`: which program each stage is, with which arguments, and its exit code."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from recipes.tune import build_parser
from server.cli import main
from server.train_cli import STAGES, command_line


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have been run; each exits with 3."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=3)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_a_recipe_with_a_main(stage: str) -> None:
    found = importlib.util.find_spec(STAGES[stage][0])
    assert found is not None
    assert found.origin is not None
    with open(found.origin, encoding="utf-8") as source:
        assert "\ndef main(argv: Sequence[str] | None = None) -> int:" in source.read()


def test_a_recipe_gets_its_own_flags_and_gives_the_exit_code(called: list[list[str]]) -> None:
    assert main(["train", "tune", "--data", "a.jsonl", "words", "--out", "x y"]) == 3
    assert called == [[sys.executable, "-m", "recipes.tune", "--data", "a.jsonl", "words", "--out", "x y"]]


def test_evaluation_is_a_command_of_its_own_as_well(called: list[list[str]]) -> None:
    assert main(["evaluate", "--align", "--out", "x"]) == main(["train", "evaluate", "--align", "--out", "x"]) == 3
    assert called == [[sys.executable, "-m", "recipes.evaluate", "--align", "--out", "x"]] * 2


def test_help_of_a_stage_is_the_recipe_s(called: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "align", "--help"]) == 3
    assert called == [[sys.executable, "-m", "recipes.align", "--help"]]
    assert main(["train", "--help"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in STAGES)


def test_several_processes_are_torchrun_s(called: list[list[str]]) -> None:
    assert main(["train", "grpo", "--processes", "2", "--out", "x"]) == 3
    (command,) = called
    assert command[1:] == ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "recipes.grpo", "--out", "x"]
    assert main(["train", "grpo", "--processes", "0"]) == 2


def test_a_stage_that_is_not_shared_gets_the_processes_or_refuses_them(called: list[list[str]]) -> None:
    """Two runs of it would write into the same files."""
    assert main(["train", "align", "--processes", "2", "--out", "x"]) == 3
    assert called == [[sys.executable, "-m", "recipes.align", "--out", "x", "--processes", "2"]]
    with pytest.raises(SystemExit) as refused:
        build_parser().parse_args(["--model", "m", "--data", "a", "b", "--out", "x", "--processes", "2"])
    assert refused.value.code == 2


def test_an_unknown_stage_is_wrong_usage(called: list[list[str]]) -> None:
    assert main(["train", "brew"]) == 2
    assert not called


def test_a_real_recipe_answers() -> None:
    done = subprocess.run(command_line("plots", 1, ["--help"]), capture_output=True, check=False)
    assert done.returncode == 0
    assert b"frontier.png" in done.stdout
