"""The short programs that show the API, run as a user runs them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import soundfile

from asr.checkpoint import save
from tests.scripted import say, scripted_model
from tests.test_layers import ROOT
from tests.tiny_model import tiny_model

PROGRAMS = ("transcribe_file", "live_session")


def program(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", ROOT / "samples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_prints_the_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = scripted_model(tmp_path)
    soundfile.write(tmp_path / "a.wav", say(model, "the don't a"), 16_000, subtype="FLOAT")
    module = program(name, monkeypatch)
    monkeypatch.setattr(module.asr, "load", lambda *_: model)
    assert module.main([str(tmp_path / "a.wav"), "any"]) == 0
    out = capsys.readouterr().out
    assert "the don't a" in out
    assert "committed" in out


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_runs_with_a_checkpoint_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tiny_model(tmp_path), tmp_path / "saved", "# Tiny")
    soundfile.write(tmp_path / "a.wav", [0.0] * 32_000, 16_000)
    assert program(name, monkeypatch).main([str(tmp_path / "a.wav"), str(tmp_path / "saved")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_says_what_is_wrong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = program(name, monkeypatch)
    assert module.main([]) == 2
    assert f"usage: {name}.py AUDIO [MODEL]" in capsys.readouterr().err
    assert module.main(["a.wav", str(tmp_path / "nowhere")]) == 2
    assert "error: no model is called" in capsys.readouterr().err
    save(tiny_model(tmp_path), tmp_path / "saved", "# Tiny")
    assert module.main([str(tmp_path / "missing.wav"), str(tmp_path / "saved")]) == 2
    assert "missing.wav" in capsys.readouterr().err
