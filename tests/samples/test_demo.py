import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import soundfile

from tests.server.fake_engine import FakeEngine, engine
from tests.test_layers import ROOT

__all__ = ["engine"]


@pytest.fixture
def demo(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """samples/demo.py with the fake recogniser."""
    spec = importlib.util.spec_from_file_location("demo_under_test", ROOT / "samples" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.setenv("COLUMNS", "120")
    spec.loader.exec_module(module)
    return module


def manifest(folder: Path, *texts: str) -> Path:
    path = folder / "transcripts.jsonl"
    lines = []
    for index, text in enumerate(texts):
        soundfile.write(folder / f"{index}.wav", np.full(48_000, 0.1), 16_000)
        entry = {"audio": f"{index}.wav", "text": text, "speaker": "Ann", "source": "here", "licence": "CC0"}
        lines.append(json.dumps(entry))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_words_times_delays_and_totals(tmp_path: Path, demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifest(tmp_path, "wa wb wc", "WA, other wc and more")
    assert demo.main(["--manifest", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "0.wav · Ann · 0 of 3 words wrong" in out
    assert "1.wav · Ann · 3 of 5 words wrong" in out
    assert "│ 1.00 s │ 1.50 s │ 1.98 s │ 480 ms │ wb │" in out
    assert "2 clips, 6.0 s of speech" in out
    assert "37.5 % (1 substituted, 2 deleted, 0 inserted, of 8 words)" in out
    assert "median 480 ms, 90 % within 480 ms (6 words)" in out
    assert "real-time factor" in out


def test_settings_reach_the_model_and_clips_can_be_fewer(
    tmp_path: Path, demo: ModuleType, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest(tmp_path, "wa wb wc", "wa")
    flags = ["--manifest", str(path), "--model", "m", "--delay-ms", "160", "--chunk-ms", "80", "--clips", "1"]
    assert demo.main(flags) == 0
    assert engine.loads == [("m", "cpu")]
    assert engine.calls == [{"delay_ms": 160, "chunk_ms": 80, "batch_size": 1}]
    assert "1.wav" not in capsys.readouterr().out


def test_it_says_why_it_cannot_run(tmp_path: Path, demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifest(tmp_path, "wa")
    assert demo.main(["--manifest", str(path), "--model", "missing"]) == 2
    assert "CheckpointError: no model is called" in capsys.readouterr().err
    (tmp_path / "0.wav").write_bytes(b"")
    assert demo.main(["--manifest", str(path)]) == 2
    assert "EmptyAudio" in capsys.readouterr().err
    path.write_text("\n")
    assert demo.main(["--manifest", str(path)]) == 2
    assert "lists no clip" in capsys.readouterr().err


def test_audio_arrives_in_steps(tmp_path: Path, demo: ModuleType) -> None:
    manifest(tmp_path, "wa")
    pieces = [len(piece) for piece in demo.arriving(tmp_path / "0.wav")]
    assert pieces == [1_280] * 37 + [640]
