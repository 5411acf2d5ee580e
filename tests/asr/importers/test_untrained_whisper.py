"""A made-up CTranslate2 Whisper folder, loaded and run; tests/asr/test_checkpoint.py can do it with a real one."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import asr
from asr.errors import CheckpointError
from asr.importers.untrained_whisper import UNTRAINED_LIMITS, untrained_whisper
from tests.tiny_model import bursts, write_tokenizer

DIM, MEL, VOCABULARY, FRAMES, TEXT = 64, 80, 292, 1500, 448


def linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/weight": (outputs, inputs), f"{name}/bias": (outputs,)}


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}/gamma": (DIM,), f"{name}/beta": (DIM,)}


def shapes(encoder_layers: int, decoder_layers: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes as ctranslate2/specs/whisper_spec.py has them."""
    found: dict[str, tuple[int, ...]] = {
        "encoder/conv1/weight": (DIM, MEL, 3),
        "encoder/conv1/bias": (DIM,),
        "encoder/conv2/weight": (DIM, DIM, 3),
        "encoder/conv2/bias": (DIM,),
        "encoder/position_encodings/encodings": (FRAMES, DIM),
        "decoder/embeddings/weight": (VOCABULARY, DIM),
        "decoder/position_encodings/encodings": (TEXT, DIM),
    }
    for side, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        found |= norm(f"{side}/layer_norm")
        for i in range(layers):
            layer = f"{side}/layer_{i}"
            found |= norm(f"{layer}/self_attention/layer_norm") | norm(f"{layer}/ffn/layer_norm")
            found |= linear(f"{layer}/self_attention/linear_0", DIM, 3 * DIM)
            found |= linear(f"{layer}/self_attention/linear_1", DIM, DIM)
            found |= linear(f"{layer}/ffn/linear_0", DIM, 4 * DIM) | linear(f"{layer}/ffn/linear_1", 4 * DIM, DIM)
            if side == "decoder":
                found |= norm(f"{layer}/attention/layer_norm") | linear(f"{layer}/attention/linear_0", DIM, DIM)
                found |= linear(f"{layer}/attention/linear_1", DIM, 2 * DIM)
                found |= linear(f"{layer}/attention/linear_2", DIM, DIM)
    return found


def write_whisper(folder: Path, *, encoder_layers: int = 1, decoder_layers: int = 2) -> dict[str, np.ndarray]:
    """A folder with random weights; gives them by their CTranslate2 names."""
    random = np.random.default_rng(0)
    arrays = {
        name: (random.standard_normal(shape) * 0.1).astype(np.float32)
        for name, shape in shapes(encoder_layers, decoder_layers).items()
    }
    data = struct.pack("<I", 6) + string("WhisperSpec") + struct.pack("<II", 3, len(arrays))
    for name, array in arrays.items():
        data += string(name) + struct.pack("<B", array.ndim) + struct.pack(f"<{array.ndim}I", *array.shape)
        data += struct.pack("<BI", 0, array.nbytes) + array.tobytes()
    folder.mkdir(exist_ok=True)
    (folder / "model.bin").write_bytes(data)
    write_tokenizer(folder / "tokenizer.json")
    config = {"alignment_heads": [[1, 0]], "suppress_ids": [1, 2, 500, -1], "suppress_ids_begin": [5, 289]}
    (folder / "config.json").write_text(json.dumps(config))
    return arrays


def string(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def test_weights_and_shape_are_found(tmp_path: Path) -> None:
    arrays = write_whisper(tmp_path / "whisper-toy", encoder_layers=3, decoder_layers=2)
    model = untrained_whisper(tmp_path / "whisper-toy")
    assert model.name == "whisper:whisper-toy"
    config = model.config
    assert (config.dim, config.heads, config.encoder_layers, config.decoder_layers) == (64, 1, 3, 2)
    assert (config.vocabulary, config.max_frames, config.text_positions) == (VOCABULARY, FRAMES, TEXT)
    assert config.alignment_heads == ((1, 0),)
    assert (config.banned, config.banned_first) == ((1, 2), (5,))
    assert config.limits == UNTRAINED_LIMITS
    assert not model.recogniser.training
    fused = arrays["decoder/layer_1/attention/linear_1/weight"]
    state = model.recogniser.state_dict()
    assert torch.equal(state["decoder.layers.1.cross.value.weight"], torch.from_numpy(fused[DIM:]))
    assert torch.equal(state["decoder.embedding.weight"], torch.from_numpy(arrays["decoder/embeddings/weight"]))


def test_it_runs_by_name_at_every_chunk(tmp_path: Path) -> None:
    write_whisper(tmp_path / "toy")
    model = asr.load(f"whisper:{tmp_path / 'toy'}")
    assert {80, 160, 320, 640, 1280, 4000} <= {80 * chunk.chunk_steps for chunk in UNTRAINED_LIMITS.chunks}
    for chunk in UNTRAINED_LIMITS.chunks:
        transcript = asr.transcribe(model, bursts(0.5), delay_ms=160, chunk_ms=80 * chunk.chunk_steps)
        assert transcript.audio_samples == 8000
        assert transcript.settings["right_context_ms"] == 20 * chunk.right_frames
        assert transcript.settings["silence_ms"] == 20 * chunk.silence_frames


@pytest.mark.parametrize("name", ["model.bin", "config.json", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write_whisper(tmp_path / "toy")
    (tmp_path / "toy" / name).unlink()
    with pytest.raises(CheckpointError, match=f"has no {name}"):
        untrained_whisper(tmp_path / "toy")


@pytest.mark.parametrize("share", [0.001, 0.5, 0.99])
def test_a_cut_file_is_an_error(tmp_path: Path, share: float) -> None:
    write_whisper(tmp_path / "toy")
    data = (tmp_path / "toy" / "model.bin").read_bytes()
    (tmp_path / "toy" / "model.bin").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match=r"ends at byte \d+, \d+ were needed"):
        untrained_whisper(tmp_path / "toy")
