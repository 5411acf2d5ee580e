"""Parts of several checkpoints in one."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from asr.checkpoint import load_checkpoint, save
from asr.config import GateConfig
from asr.errors import CheckpointError, ConfigError
from asr.model import CrossConfig, Model
from recipes.export import assemble, average, main, parse_chunk, parse_gate
from recipes.gate import with_learned_gate
from tests import tiny_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Model:
    model = tiny_model.tiny_model(tmp_path_factory.mktemp("base"))
    weights = {key: value.half().float() for key, value in model.recogniser.state_dict().items()}
    model.recogniser.load_state_dict(weights)
    return model


def test_the_gate_comes_from_the_donor_and_the_rest_from_the_base(base: Model) -> None:
    donor = with_learned_gate(base, hidden=8)
    made = assemble(base, {"gate": donor})
    weights, theirs, ours = (m.recogniser.state_dict() for m in (made, donor, base))
    assert set(weights) == set(theirs)
    assert all(torch.equal(weights[key], theirs[key]) for key in weights if key.startswith("gate."))
    assert all(torch.equal(weights[key], ours[key]) for key in ours)
    assert made.config.gate_hidden == 8  # type: ignore[union-attr]


def test_a_donor_without_the_part_is_refused(base: Model) -> None:
    with pytest.raises(ConfigError, match="has no gate"):
        assemble(base, {"gate": base})


def test_a_donor_trained_on_another_base_is_refused(base: Model) -> None:
    donor = with_learned_gate(base, hidden=8)
    with torch.no_grad():
        donor.recogniser.encoder_positions += 1  # type: ignore[operator,union-attr]
    with pytest.raises(CheckpointError, match=r"encoder_positions .* trained on another base"):
        assemble(base, {"gate": donor})


def test_the_command_writes_a_checkpoint_that_loads(base: Model, tmp_path: Path) -> None:
    save(base, tmp_path / "base", "base")
    save(replace(with_learned_gate(base, hidden=8), name="gated"), tmp_path / "gate", "gate")
    (tmp_path / "card.md").write_text("# both\n")
    arguments = ["--base", str(tmp_path / "base"), "--gate", str(tmp_path / "gate"), "--name", "both"]
    assert main([*arguments, "--card", str(tmp_path / "card.md"), "--out", str(tmp_path / "both")]) == 0
    loaded = load_checkpoint(tmp_path / "both")
    assert loaded.name == "both"
    assert loaded.config.gate_hidden == 8  # type: ignore[union-attr]
    assert (tmp_path / "both" / "MODEL_CARD.md").read_text() == "# both\n"


def shifted(base: Model, by: float) -> Model:
    """The base with another norm."""
    recogniser = copy.deepcopy(base.recogniser)
    recogniser.decoder.norm.weight.data += by
    return replace(base, recogniser=recogniser)


def test_the_mean_of_saves_of_one_run(base: Model) -> None:
    before = base.recogniser.decoder.norm.weight.clone()
    made = average([shifted(base, by) for by in (0.0, 0.5, 1.0)])
    torch.testing.assert_close(made.recogniser.decoder.norm.weight, before + 0.5)
    weights = made.recogniser.state_dict()
    same = [key for key, value in base.recogniser.state_dict().items() if torch.equal(value, weights[key])]
    assert set(weights) - set(same) == {"decoder.norm.weight"}
    assert torch.equal(base.recogniser.decoder.norm.weight, before)


def test_models_of_other_shapes_have_no_mean(base: Model) -> None:
    with pytest.raises(CheckpointError, match="another configuration or vocabulary"):
        average([base, with_learned_gate(base, hidden=8)])
    with pytest.raises(ConfigError, match="no checkpoint to average"):
        average([])


def test_the_command_averages_several_bases(base: Model, tmp_path: Path) -> None:
    for name, by in (("a", 0.0), ("b", 1.0)):
        save(shifted(base, by), tmp_path / name, "card")
    (tmp_path / "card.md").write_text("# mean\n")
    arguments = ["--base", str(tmp_path / "a"), str(tmp_path / "b"), "--name", "mean", "--out", str(tmp_path / "mean")]
    assert main([*arguments, "--card", str(tmp_path / "card.md")]) == 0
    mean = load_checkpoint(tmp_path / "mean").recogniser.decoder.norm.weight
    torch.testing.assert_close(mean, base.recogniser.decoder.norm.weight + 0.5, atol=2e-3, rtol=0)


def test_chunks_and_the_gate_s_numbers_are_set(base: Model, tmp_path: Path) -> None:
    save(base, tmp_path / "base", "# base\n")
    (tmp_path / "card.md").write_text("# card\n")
    words = ["--name", "made", "--card", str(tmp_path / "card.md"), "--out", str(tmp_path / "out")]
    main(
        [
            "--base",
            str(tmp_path / "base"),
            "--chunks",
            "1:4:0",
            "4:8:6",
            "--gate-numbers",
            "offset_frames=-2",
            "sure_probability=0.7",
            *words,
        ]
    )
    made = load_checkpoint(tmp_path / "out")
    assert isinstance(made.config, CrossConfig)
    assert made.config.limits.chunks == (parse_chunk("1:4:0"), parse_chunk("4:8:6"))
    assert (made.config.gate.offset_frames, made.config.gate.sure_probability) == (-2, 0.7)
    assert made.config.limits.delays == base.config.limits.delays
    for name, value in base.recogniser.state_dict().items():
        assert torch.equal(value.half(), made.recogniser.state_dict()[name].half()), name


@pytest.mark.parametrize("text", ["4", "4:8", "a:b:c", "4:-8:0", "4:8:0:1"])
def test_a_chunk_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="STEPS:RIGHT:SILENCE"):
        parse_chunk(text)


@pytest.mark.parametrize(
    ("text", "said"), [("speed=3", "the gate has the numbers"), ("offset_frames=x", "int is needed")]
)
def test_a_gate_s_number_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_gate(GateConfig(), [text])
