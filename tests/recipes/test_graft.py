"""A language model on a Whisper's ears: what is taken, what is new, and that it can be trained and loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import asr
from asr.additive_config import AdditiveConfig
from asr.additive_recogniser import AdditiveRecogniser
from asr.checkpoint import save
from asr.cross_recogniser import CrossRecogniser
from asr.delay_targets import TimedPieces
from asr.errors import ConfigError
from asr.importers.llama import read_llama
from recipes.examples import Example
from recipes.graft import main
from recipes.sft import SftConfig, Trainer
from tests.asr.importers.test_llama import write_llama
from tests.tiny_model import bursts, tiny_additive_model, tiny_model


def arguments(folder: Path, encoder: str = "ears") -> list[str]:
    write_llama(folder / "toy.gguf")
    (folder / "text.txt").write_text("the\nthe then\n")
    given = {"llm": "toy.gguf", "encoder": encoder, "text": "text.txt", "out": "out"}
    flags = [word for name, value in given.items() for word in (f"--{name}", str(folder / value))]
    return [*flags, "--layers", "2", "--name", "grafted", "--min-count", "2"]


def test_encoder_and_layers_are_taken_and_the_rest_is_neutral(tmp_path: Path) -> None:
    ears = tiny_model(tmp_path)
    save(ears, tmp_path / "ears", "a card")
    assert main(arguments(tmp_path)) == 0
    model = asr.load(tmp_path / "out")
    assert isinstance(model.config, AdditiveConfig)
    assert isinstance(model.recogniser, AdditiveRecogniser)
    assert (model.config.encoder_kind, model.config.layers, model.name) == ("whisper", 2, "grafted")
    llama, mine = read_llama(tmp_path / "toy.gguf", layers=2), model.recogniser.state_dict()
    theirs = asr.load(tmp_path / "ears").recogniser.state_dict()
    for name in mine:
        if name.startswith(("encoder.", "frontend.")):
            torch.testing.assert_close(mine[name], theirs[name], rtol=0, atol=0)
        if name.startswith("decoder.layers.") and "condition" not in name:
            expected = llama.weights[name.removeprefix("decoder.")]
            torch.testing.assert_close(mine[name], expected.half().float(), rtol=0, atol=0)
    assert not any(value.any() for name, value in mine.items() if name.endswith("condition.second.weight"))
    rows = mine["decoder.embedding.weight"]
    torch.testing.assert_close(rows[-1], rows[:-1].mean(0), rtol=0, atol=1e-3)
    assert (
        rows.shape[0] == model.config.vocabulary + 1 == len(llama.weights["embedding.weight"])
    )  # one piece gone, the wait new
    assert model.vocabulary.decode(model.vocabulary.encode(" the")) == " the"


def test_what_is_new_learns_and_the_encoder_comes_nearer_to_its_teacher(tmp_path: Path) -> None:
    save(tiny_model(tmp_path), tmp_path / "ears", "a card")
    assert main(arguments(tmp_path)) == 0
    model, teacher = asr.load(tmp_path / "out"), asr.load(tmp_path / "ears").recogniser
    assert isinstance(model.recogniser, AdditiveRecogniser)
    assert isinstance(teacher, CrossRecogniser)
    config = SftConfig(steps=40, batch_size=1, delay_max=3, warmup_steps=1, learning_rate=3e-3, feature_weight=1.0)
    the = tuple(model.vocabulary.encode(" the"))
    example = Example(samples=bursts(1.0), words=(TimedPieces(pieces=the, end_ms=400),))
    trainer = Trainer(model.recogniser, [example], config, teacher=teacher.requires_grad_(False))
    metrics = [trainer.step() for _ in range(config.steps)]
    assert metrics[-1]["features"] < 0.8 * metrics[0]["features"]
    assert metrics[-1]["cross_entropy"] < metrics[0]["cross_entropy"]
    assert metrics[-1]["loss"] > metrics[-1]["features"]
    again = asr.transcribe(replace(model, recogniser=model.recogniser.eval()), bursts(1.0), delay_ms=160, chunk_ms=320)
    assert again.audio_samples == 16_000


def test_a_teacher_is_needed_exactly_where_its_frames_count(tmp_path: Path) -> None:
    save(tiny_model(tmp_path), tmp_path / "ears", "a card")
    assert main(arguments(tmp_path)) == 0
    recogniser, teacher = asr.load(tmp_path / "out").recogniser, asr.load(tmp_path / "ears").recogniser
    assert isinstance(recogniser, AdditiveRecogniser)
    assert isinstance(teacher, CrossRecogniser)
    example = Example(samples=bursts(1.0), words=(TimedPieces(pieces=(1,), end_ms=400),))
    for weight, given in ((1.0, None), (0.0, teacher)):
        with pytest.raises(ConfigError, match=f"feature_weight is {weight}: a teacher is needed exactly if"):
            Trainer(recogniser, [example], SftConfig(feature_weight=weight), teacher=given)


def test_what_cannot_be_joined_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny_additive_model(tmp_path), tmp_path / "ears", "a card")
    assert main(arguments(tmp_path)) == 2
    assert "is no cross-family model; its encoder cannot be taken" in capsys.readouterr().err
    assert main(arguments(tmp_path, encoder="nowhere")) == 2
