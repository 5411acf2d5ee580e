import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import asr
from asr import checkpoint
from asr.checkpoint import load_checkpoint, save
from asr.errors import CheckpointError, ConfigError
from asr.model import CrossConfig, Model
from recipes.mtp import with_mtp_heads
from tests.tiny_model import bursts, edit_config, tiny_additive_model, tiny_ctc_model, tiny_model

CARD = "# Tiny\n\nRandom weights.\n"


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return tiny_model(tmp_path)


@pytest.fixture
def folder(model: Model, tmp_path: Path) -> Path:
    save(model, tmp_path / "saved", CARD)
    return tmp_path / "saved"


@pytest.mark.parametrize("make", [tiny_model, tiny_additive_model])
def test_what_was_saved_comes_back(make: Callable[[Path], Model], tmp_path: Path) -> None:
    model = make(tmp_path)
    save(model, tmp_path / "saved", CARD)
    loaded = load_checkpoint(tmp_path / "saved")
    assert (loaded.name, loaded.config) == (model.name, model.config)
    assert type(loaded.recogniser) is type(model.recogniser)
    assert loaded.vocabulary.pieces == model.vocabulary.pieces
    assert not loaded.recogniser.training
    before, after = model.recogniser.state_dict(), loaded.recogniser.state_dict()
    assert before.keys() == after.keys()
    for key, value in after.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[key].half().float())
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == sorted(checkpoint.FILES)
    assert (tmp_path / "saved" / "MODEL_CARD.md").read_text() == CARD


def test_saving_what_was_loaded_changes_nothing(folder: Path, tmp_path: Path) -> None:
    save(load_checkpoint(folder), tmp_path / "again", CARD)
    for name in checkpoint.FILES:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    save(load_checkpoint(folder), folder, "another card")
    assert (folder / "MODEL_CARD.md").read_text() == "another card"
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_weights_are_stored_as_float16_and_come_as_asked(folder: Path) -> None:
    assert {value.dtype for value in load_file(folder / "model.safetensors").values()} == {torch.float16}
    loaded = load_checkpoint(folder, dtype=torch.bfloat16)
    assert {value.dtype for value in loaded.recogniser.state_dict().values()} == {torch.bfloat16}


def test_a_loaded_model_transcribes(folder: Path) -> None:
    transcript = asr.transcribe(asr.load(folder), bursts(1.0), delay_ms=80, chunk_ms=160)
    assert transcript.audio_samples == 16_000
    assert transcript.settings["model"] == "tiny"


def test_multi_token_heads_are_added_to_a_model_whose_own_file_stays(
    model: Model, folder: Path, tmp_path: Path
) -> None:
    save(with_mtp_heads(model, heads=2, pieces=20), tmp_path / "heads", CARD)
    own = "model.safetensors"
    assert (tmp_path / "heads" / own).read_bytes() == (folder / own).read_bytes()
    assert load_checkpoint(tmp_path / "heads").has_mtp_heads
    save(load_checkpoint(tmp_path / "heads"), tmp_path / "again", CARD)
    heads = checkpoint.MTP_FILE
    assert (tmp_path / "again" / heads).read_bytes() == (tmp_path / "heads" / heads).read_bytes()
    (tmp_path / "heads" / heads).unlink()
    with pytest.raises(CheckpointError, match=r"missing: mtp\."):
        load_checkpoint(tmp_path / "heads")
    save(model, tmp_path / "again", CARD)
    assert not (tmp_path / "again" / heads).exists()


def alter(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def test_missing_unexpected_and_misshapen_weights_are_named(folder: Path) -> None:
    def change(weights: dict[str, torch.Tensor]) -> None:
        del weights["decoder.norm.bias"]
        weights["ctc.weight"] = torch.zeros(2)
        weights["encoder.norm.weight"] = torch.zeros(5)

    alter(folder, change)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert "model.safetensors does not fit its config.json" in message
    assert "1 missing: decoder.norm.bias" in message
    assert "1 unexpected: ctc.weight" in message
    assert "1 of another shape: encoder.norm.weight [5], needed [16]" in message


def test_a_long_list_of_keys_is_cut(folder: Path) -> None:
    alter(folder, lambda weights: [weights.pop(key) for key in list(weights) if key.startswith("encoder.layers")])
    with pytest.raises(CheckpointError, match=r"\d+ missing: encoder\.layers.* and \d+ more"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", checkpoint.FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"has no {name}; a checkpoint holds config.json, model.safetensors"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "has format 2; this version reads format 1"),
        ({"format": None}, "has format None"),
        ({"family": "rnnt"}, "has family 'rnnt'; 'cross' and 'additive' are known"),
        ({"family": None}, "has family=None; a str is needed"),
        ({"name": 3}, "has name=3; a str is needed"),
        ({"model": []}, r"has model=\[\]; a dict is needed"),
        ({"extra": 1}, r"unknown keys \['extra'\]"),
        ({"model": {}}, r"config\.json: the configuration is incomplete"),
    ],
)
def test_a_configuration_that_cannot_be_used(folder: Path, changes: dict[str, object], message: str) -> None:
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_keys_of_the_models_own_configuration_are_strict(folder: Path) -> None:
    own = json.loads((folder / "config.json").read_text())["model"]
    edit_config(folder, model={**own, "colour": "red"})
    with pytest.raises(CheckpointError, match=r"unknown keys \['colour'\]; known are \["):
        load_checkpoint(folder)
    edit_config(folder, model={**own, "limits": {**own["limits"], "delays": [0]}})
    with pytest.raises(CheckpointError, match="delays >= 1 step"):
        load_checkpoint(folder)
    edit_config(folder, model={**own, "vocabulary": 100})
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has \d+ text pieces; the model has 100 ids"):
        load_checkpoint(folder)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_configuration_that_is_no_json_object(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json (is no JSON|holds a list)"):
        load_checkpoint(folder)


def test_a_damaged_weights_file(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        load_checkpoint(folder)


def test_what_cannot_be_saved(model: Model, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="model card is empty"):
        save(model, tmp_path / "a", " \n")
    with torch.no_grad():
        model.recogniser.encoder_positions[0, 0] = 1e6
    with pytest.raises(CheckpointError, match="encoder_positions holds values that are not finite as float16"):
        save(model, tmp_path / "b", CARD)
    assert not (tmp_path / "b").exists()


def test_half_a_checkpoint_is_none(model: Model, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        save(model, folder, CARD)
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_checkpoint(folder)


# -- names ---------------------------------------------------------------------------------------------------------


def test_installed_models_go_by_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rename(tmp_path / "earlybird-en")
    (tmp_path / "no-model").mkdir()
    monkeypatch.setattr(checkpoint, "INSTALLED", tmp_path)
    assert asr.installed() == ["earlybird-en"]
    assert asr.load().name == "tiny"
    assert asr.load("earlybird-en").name == "tiny"
    with pytest.raises(
        CheckpointError, match=r"no model is called 'klingon'.*installed: earlybird-en; .*whisper:FOLDER"
    ):
        asr.load("klingon")


def test_nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "INSTALLED", tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"no model is called 'earlybird-en'.*installed: none"):
        asr.load()


def test_a_folder_goes_by_path(folder: Path, tmp_path: Path) -> None:
    assert asr.load(str(folder)).name == asr.load(folder).name == "tiny"
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        asr.load(tmp_path)


@pytest.mark.parametrize("device", ["cuda:99", "tpu", "", "CPU"])
def test_a_device_that_is_not_there_is_refused(folder: Path, device: str) -> None:
    with pytest.raises(ConfigError, match=f"device is '{device}'; this machine has cpu"):
        asr.load(folder, device=device)
    with pytest.raises(ConfigError, match=f"device is '{device}'"):
        load_checkpoint(folder, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_there_is_no_fallback_from_cuda(folder: Path) -> None:
    with pytest.raises(ConfigError, match="device is 'cuda'; this machine has cpu"):
        asr.load(folder, device="cuda")


def test_a_folder_that_is_no_whisper(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no model\.bin; a CTranslate2 Whisper folder holds it"):
        asr.load(f"whisper:{tmp_path}")


@pytest.mark.slow
@pytest.mark.skipif(
    "EARLYBIRD_WHISPER" not in os.environ, reason="EARLYBIRD_WHISPER names no CTranslate2 Whisper folder"
)
def test_a_real_whisper_loads_and_is_silent_in_silence(tmp_path: Path) -> None:
    model = asr.load(f"whisper:{os.environ['EARLYBIRD_WHISPER']}")
    silence = np.zeros(5 * 16_000, dtype=np.float32)
    assert asr.transcribe(model, silence).text == ""
    save(model, tmp_path, CARD)
    again = asr.load(tmp_path)
    assert again.config == model.config
    assert asr.transcribe(again, silence).text == ""


# -- the CTC head's pieces -----------------------------------------------------------------------------------------


def test_a_ctc_head_comes_with_its_pieces(tmp_path: Path) -> None:
    model = tiny_ctc_model(tmp_path)
    save(model, tmp_path / "saved", "card")
    loaded = load_checkpoint(tmp_path / "saved")
    assert loaded.ctc_tokenizer is not None
    assert model.ctc_tokenizer is not None
    assert loaded.ctc_tokenizer.pieces == model.ctc_tokenizer.pieces
    assert loaded.ctc_tokenizer.path == tmp_path / "saved" / "ctc.model"
    save(loaded, tmp_path / "saved", "card")  # onto itself
    assert load_checkpoint(tmp_path / "saved").ctc_tokenizer is not None


def test_a_head_without_pieces_and_pieces_without_a_head_are_refused(tmp_path: Path) -> None:
    model = tiny_ctc_model(tmp_path)
    save(model, tmp_path / "saved", "card")
    (tmp_path / "saved" / "ctc.model").rename(tmp_path / "ctc.model")
    with pytest.raises(CheckpointError, match=r"has a CTC head and there is no ctc\.model"):
        load_checkpoint(tmp_path / "saved")
    save(tiny_model(tmp_path), tmp_path / "saved", "card")
    (tmp_path / "ctc.model").rename(tmp_path / "saved" / "ctc.model")
    with pytest.raises(CheckpointError, match=r"has no CTC head and ctc\.model is there"):
        load_checkpoint(tmp_path / "saved")
    save(tiny_model(tmp_path), tmp_path / "saved", "card")  # takes what is not its own away
    assert load_checkpoint(tmp_path / "saved").ctc_tokenizer is None


def test_a_model_s_head_and_pieces_must_agree(tmp_path: Path) -> None:
    model = tiny_ctc_model(tmp_path)
    with pytest.raises(CheckpointError, match="36 pieces for a CTC head, the CTC tokenizer has none"):
        replace(model, ctc_tokenizer=None)
    assert isinstance(model.config, CrossConfig)
    with pytest.raises(CheckpointError, match="37 pieces for a CTC head, the CTC tokenizer has 36 pieces"):
        replace(model, config=replace(model.config, ctc_pieces=37))
    with pytest.raises(CheckpointError, match="has none for a CTC head, the CTC tokenizer has 36 pieces"):
        replace(tiny_model(tmp_path), ctc_tokenizer=model.ctc_tokenizer)
