"""The heads learn what is behind the next piece, from a text that says so."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from asr.checkpoint import load_checkpoint, save
from asr.cross_recogniser import CrossRecogniser
from asr.errors import ConfigError
from asr.model import Model
from asr.mtp import WINDOWS, MtpHeads
from recipes.mtp import NO_TARGET, MtpSettings, Rows, Taught, head_loss, right_share, targets_of, train, with_mtp_heads
from recipes.settings import read_settings
from tests.tiny_model import tiny_additive_model, tiny_model

CONFIG = Path(__file__).parents[2] / "recipes" / "configs" / "mtp.yaml"


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return with_mtp_heads(tiny_model(tmp_path), heads=2, pieces=280)


def clips(count: int) -> list[Taught]:
    """Texts that count in circles of 5 pieces, from any of them on."""
    generator = torch.Generator().manual_seed(1)
    return [
        Taught(torch.randn(40, 16, generator=generator).half(), tuple(270 + (start + i) % 5 for i in range(12)))
        for start in range(count)
    ]


def test_targets_are_the_pieces_behind_the_next_one() -> None:
    found = targets_of([90, 91, 5, 6, 7, 8, 92], first=1, heads=3, pieces=8)
    # Piece 8 and the end are not among the first 8.
    assert found.tolist() == [[6, 7, NO_TARGET], [7, NO_TARGET, NO_TARGET], *[[NO_TARGET] * 3] * 3]


def test_the_loss_weighs_heads_by_their_distance() -> None:
    # Both heads are uniform over 4 pieces where they have a target; the second counts half.
    logits = torch.zeros(3, 2, 4)
    targets = torch.tensor([[0, NO_TARGET], [1, 3], [NO_TARGET, NO_TARGET]])
    assert float(head_loss(logits, targets, decay=0.5)) == pytest.approx(math.log(4))
    logits[:, 1, 3] = 100.0  # the second head is right
    assert float(head_loss(logits, targets, decay=0.5)) == pytest.approx(math.log(4) * 2 / 3)


def test_a_head_is_judged_where_the_heads_before_it_are_right() -> None:
    # Fresh heads say what the state says: piece 2.
    heads = MtpHeads(dim=4, heads=2, pieces=4)
    hidden, ahead = torch.eye(4)[2].repeat(3, 1), torch.zeros(3, WINDOWS * 4)
    rows = Rows(hidden.half(), ahead.half(), torch.tensor([[2, 2], [2, 1], [0, 2]]))
    assert right_share(heads, rows, torch.eye(4)) == pytest.approx([2 / 3, 1 / 2])


def test_heads_alone_learn_and_leave_the_model_as_it_was(model: Model, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in model.recogniser.state_dict().items()}
    settings = MtpSettings(heads=2, batch_rows=32, head_epochs=40, head_rate=0.03, held_out=0.1, dropout=0.0)
    metrics = list(train(model, clips(20), settings))
    assert metrics[-1]["loss"] < 0.7 * metrics[0]["loss"]  # type: ignore[operator]
    for name, value in model.recogniser.state_dict().items():
        assert torch.equal(value, before[name]) != name.startswith("mtp."), name
    save(model, tmp_path / "checkpoint", "a card")
    loaded = load_checkpoint(tmp_path / "checkpoint")
    assert loaded.has_mtp_heads
    assert isinstance(loaded.recogniser, CrossRecogniser)
    assert loaded.recogniser.mtp is not None
    assert loaded.recogniser.mtp.count == 2


def test_joint_training_moves_the_decoder_and_nothing_else(model: Model) -> None:
    before = {name: value.clone() for name, value in model.recogniser.state_dict().items()}
    settings = MtpSettings(heads=2, head_epochs=1, joint_epochs=6, joint_rate=1e-3, held_out=0.2)
    metrics = [entry for entry in train(model, clips(6), settings) if entry["stage"] == "joint"]
    assert metrics[-1]["decoder_loss"] < metrics[0]["decoder_loss"]  # type: ignore[operator]
    moved = {name for name, value in model.recogniser.state_dict().items() if not torch.equal(value, before[name])}
    assert any(name.startswith("decoder.") for name in moved)
    assert all(name.startswith(("decoder.", "mtp.")) for name in moved)


def test_the_same_seed_gives_the_same_heads(tmp_path: Path) -> None:
    made = []
    for run in range(2):
        torch.manual_seed(3)
        folder = tmp_path / str(run)
        folder.mkdir()
        model = with_mtp_heads(tiny_model(folder), heads=2, pieces=280)
        list(train(model, clips(4), MtpSettings(heads=2, head_epochs=2)))
        made.append(model.recogniser.state_dict())
    assert all(torch.equal(value, made[1][name]) for name, value in made[0].items())


def test_the_shipped_settings_are_read_and_wrong_ones_refused(tmp_path: Path) -> None:
    assert asdict(read_settings(MtpSettings, CONFIG))["heads"] == 5
    for wrong in ({"heads": 0}, {"held_out": 1.0}, {"head_decay": 0.0}):
        with pytest.raises(ConfigError):
            MtpSettings(**wrong)  # type: ignore[arg-type]


def test_models_that_cannot_have_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no cross-family model"):
        with_mtp_heads(tiny_additive_model(tmp_path), heads=2, pieces=10)
    with pytest.raises(ConfigError, match="pieces is 100000"):
        with_mtp_heads(tiny_model(tmp_path), heads=2, pieces=100_000)
    with pytest.raises(ConfigError, match="two or more"):
        list(train(with_mtp_heads(tiny_model(tmp_path), heads=2, pieces=10), clips(1), MtpSettings()))
