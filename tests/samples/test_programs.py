"""The short programs that show the API, run as a user runs them."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import soundfile

import asr
from asr.checkpoint import save
from server.cli import main
from tests.scripted import say, scripted_model
from tests.test_layers import ROOT
from tests.tiny_model import bursts, tiny_model

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


def test_the_command_writes_what_the_api_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny_model(tmp_path), tmp_path / "saved", "# Tiny")
    paths = [tmp_path / f"{name}.wav" for name in "abc"]
    for seed, path in enumerate(paths):
        soundfile.write(path, bursts(1.5 + seed / 3, seed).numpy(), 16_000, subtype="FLOAT")
    flags = ["--model", str(tmp_path / "saved"), "--delay-ms", "80", "--chunk-ms", "160", "--batch-size", "2"]
    assert main(["transcribe", *flags, "--threads", "1", "--format", "json", *map(str, paths)]) == 0
    results = {line["file"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    model = asr.load(tmp_path / "saved")
    for path in paths:
        expected = asr.transcribe(model, path, delay_ms=80, chunk_ms=160).to_json(str(path))
        (result,) = (line for name, line in results.items() if path.name in name)
        assert result["text"] == expected["text"]
        assert result["settings"] == expected["settings"]
        assert [word["start"] for word in result["words"]] == [word["start"] for word in expected["words"]]


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
