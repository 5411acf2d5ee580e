"""A made-up Whisper folder becomes a checkpoint with a smaller vocabulary."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

import asr
from asr.importers.untrained_whisper import UNTRAINED_LIMITS
from asr.model import CrossConfig
from recipes.convert import main, text_lines
from tests.asr.importers.test_untrained_whisper import VOCABULARY, write_whisper
from tests.tiny_model import bursts


def test_lines_of_every_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n two \n")
    with gzip.open(tmp_path / "b.gz", "wt", encoding="utf-8") as lines:
        lines.write("drei\nvier ü\n")
    entries = [{"text": "five"}, {"text": None}, {"audio": "x"}]
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps(entry) for entry in entries))
    paths = [tmp_path / name for name in ("a.txt", "b.gz", "c.jsonl")]
    assert list(text_lines(paths)) == ["one", "two", "drei", "vier ü", "five"]


def test_a_checkpoint_that_loads_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = write_whisper(tmp_path / "toy")
    (tmp_path / "text.txt").write_text("the don't\n" * 3)
    out = tmp_path / "out"
    arguments = ["--whisper", str(tmp_path / "toy"), "--text", str(tmp_path / "text.txt"), "--out", str(out)]
    assert main([*arguments, "--name", "cut", "--min-count", "3"]) == 0
    model = asr.load(out)
    assert isinstance(model.config, CrossConfig)
    assert (model.name, model.config.limits) == ("cut", UNTRAINED_LIMITS)
    assert model.config.vocabulary < VOCABULARY
    assert f"{model.config.vocabulary} pieces" in capsys.readouterr().err
    assert model.vocabulary.decode(model.vocabulary.encode(" the don't")) == " the don't"
    piece = model.vocabulary.encode(" the")
    row = model.recogniser.state_dict()["decoder.embedding.weight"][piece[0]]
    old = json.loads((tmp_path / "toy" / "tokenizer.json").read_text())["model"]["vocab"]
    expected = torch.from_numpy(arrays["decoder/embeddings/weight"][old["Ġthe"]])
    torch.testing.assert_close(row, expected, rtol=0, atol=1e-3)  # stored as float16
    assert len(piece) == 1
    assert asr.transcribe(model, bursts(0.5), delay_ms=480, chunk_ms=320).audio_samples == 8000
    assert "Untrained: toy" in (out / "MODEL_CARD.md").read_text()
