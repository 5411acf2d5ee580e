"""Training of the CTC head: it learns a toy, and what is saved loads with its pieces."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import asr
from asr.checkpoint import save
from asr.ctc import CtcHead
from asr.ctc_tokenizer import CtcTokenizer
from asr.errors import ConfigError
from recipes.ctc import batches, greedy_words, main, train, with_ctc_head, word_errors
from tests.tiny_model import tiny_additive_model, tiny_ctc_model, tiny_model, write_ctc_tokenizer

DIM = 12
WORDS = ("cat", "dog", "sit", "a")
Item = tuple[Tensor, list[int]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CtcTokenizer:
    return write_ctc_tokenizer(tmp_path_factory.mktemp("ctc"))


def toy(tokenizer: CtcTokenizer, count: int, seed: int = 0) -> list[Item]:
    """Sentences whose pieces each sound for a step, with a step of something else behind it."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(0)
    sounds = torch.randn(len(tokenizer.pieces) + 1, DIM, generator=generator)
    items = []
    for _ in range(count):
        labels = [piece for word in tokenizer.encode(rng.choices(WORDS, k=rng.randint(1, 3))) for piece in word]
        steps = [step for label in labels for step in (label, tokenizer.blank)]
        items.append((sounds[steps].repeat_interleave(4, 0).half(), labels))
    return items


def test_batches_hold_every_item_once_without_its_padding(tokenizer: CtcTokenizer) -> None:
    items = toy(tokenizer, 30)
    found = []
    for x, steps, labels, counts in batches(items, 200, random.Random(1)):
        assert x.shape[0] * x.shape[1] <= 200 + 4 * 50
        assert x.shape[1] == 4 * int(steps.max())
        parts = labels.split(counts.tolist())
        found += [(row[: 4 * n].half(), part.tolist()) for row, n, part in zip(x, steps.tolist(), parts, strict=True)]
        assert all(bool((row[4 * n :] == 0).all()) for row, n in zip(x, steps.tolist(), strict=True))
    assert len(found) == len(items)
    for features, labels_of in items:
        assert any(labels_of == said and torch.equal(features, heard) for heard, said in found)


def test_frames_that_are_no_whole_step_are_left_out(tokenizer: CtcTokenizer) -> None:
    ((x, steps, _, _),) = batches([(torch.ones(11, DIM), [1])], 100, random.Random(0))
    assert (x.shape[1], steps.tolist()) == (8, [2])


def test_it_overfits_a_toy(tokenizer: CtcTokenizer) -> None:
    torch.manual_seed(0)
    head = CtcHead(dim=DIM, hidden=24, pieces=len(tokenizer.pieces))
    items = toy(tokenizer, 12)
    groups = list(batches(items, 12_000, random.Random(0)))
    before = word_errors(head, groups, tokenizer).rate()
    told = list(train(head, items, tokenizer, minutes=60.0, seed=1, most_steps=200))
    losses = [metrics["loss"] for metrics in told if "loss" in metrics]
    assert len(losses) == 2
    assert losses[1] < 0.2 * losses[0]
    assert (told[-1]["step"], told[-1]["held_out_clips"]) == (200, 1)
    assert before > 0.9
    assert word_errors(head.eval(), groups, tokenizer).rate() < 0.05


def test_greedy_words_end_where_the_row_ends(tokenizer: CtcTokenizer) -> None:
    cat, dog = (tokenizer.encode([word])[0] for word in ("cat", "dog"))
    labels = [*cat, tokenizer.blank, *dog]
    log_probs = torch.full((2, len(labels), tokenizer.blank + 1), -9.0)
    for step, label in enumerate(labels):
        log_probs[:, step, label] = 0.0
    assert greedy_words(log_probs, torch.tensor([len(labels), len(cat)]), tokenizer) == ["cat dog", "cat"]


# -- models --------------------------------------------------------------------------------------------------------


def test_everything_but_the_head_stays(tokenizer: CtcTokenizer, tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    with_head = with_ctc_head(model, tokenizer, hidden=8)
    after = with_head.recogniser.state_dict()
    assert all(torch.equal(after[name], value) for name, value in model.recogniser.state_dict().items())
    assert {name.split(".")[0] for name in after.keys() - model.recogniser.state_dict().keys()} == {"ctc"}
    assert with_head.ctc_tokenizer is tokenizer


def test_a_head_of_another_size_is_replaced(tokenizer: CtcTokenizer, tmp_path: Path) -> None:
    again = with_ctc_head(tiny_ctc_model(tmp_path), tokenizer, hidden=5)
    assert isinstance(again.recogniser.ctc, CtcHead)
    assert again.recogniser.ctc.hidden == 5


def test_the_additive_family_has_no_head(tokenizer: CtcTokenizer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tiny additive is no cross-family model"):
        with_ctc_head(tiny_additive_model(tmp_path), tokenizer, hidden=8)


def test_the_command_saves_a_model_that_loads_with_its_pieces(
    tokenizer: CtcTokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tiny_model(tmp_path), tmp_path / "model", "card")
    texts = {"a.wav": "A cat!", "b.wav": "the dog sat", "c.wav": "12"}
    entries = [{"audio": a, "duration": 1.0, "text": t, "source": "s", "licence": "l"} for a, t in texts.items()]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    save_file({a: torch.randn(80, 16).half() for a in texts}, tmp_path / "features-00000.safetensors")
    options = {"model": "model", "features": ".", "manifest": "m.jsonl", "out": "out"}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(tmp_path / value))]
    arguments += ["--tokenizer", str(tokenizer.path), "--hidden", "8", "--minutes", "0.002"]
    assert main(arguments) == 0
    assert "2 clips, 0.00 h" in capsys.readouterr().err  # the third has no words of a-z
    loaded = asr.load(tmp_path / "out")
    assert loaded.ctc_tokenizer is not None
    assert loaded.ctc_tokenizer.pieces == tokenizer.pieces
