"""A CTranslate2 Whisper folder of any size as an untrained streaming recogniser."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asr.errors import CheckpointError
from asr.importers.ctranslate2 import read_variables
from asr.vocabulary import Vocabulary

_NORM = {"gamma": "weight", "beta": "bias"}


def whisper_weights(folder: Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Weights under this toolkit's names, and the shape they imply.

    Returns:
        weights by parameter name, and {mel_bins, dim, heads, encoder_layers, decoder_layers, vocabulary,
        text_positions, max_frames, alignment_heads, prompt, end_id, banned, banned_first}.
    Raises:
        CheckpointError: if a file is missing or no Whisper model.
    """
    for name in ("model.bin", "config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} has no {name}; a CTranslate2 Whisper folder holds it")
    raw = read_variables(folder / "model.bin")
    if "encoder/conv1/weight" not in raw or "decoder/embeddings/weight" not in raw:
        raise CheckpointError(f"{folder}/model.bin is no Whisper model: it has no encoder/conv1 or decoder/embeddings")
    weights: dict[str, np.ndarray] = {
        "frontend.conv1.weight": raw["encoder/conv1/weight"],
        "frontend.conv1.bias": raw["encoder/conv1/bias"],
        "frontend.conv2.weight": raw["encoder/conv2/weight"],
        "frontend.conv2.bias": raw["encoder/conv2/bias"],
        "encoder_positions": raw["encoder/position_encodings/encodings"],
        "decoder.embedding.weight": raw["decoder/embeddings/weight"],
        "decoder.positions": raw["decoder/position_encodings/encodings"],
    }
    layers = {side: _layers(raw, side) for side in ("encoder", "decoder")}
    for side, count in layers.items():
        weights |= _norm(raw, f"{side}/layer_norm", f"{side}.norm")
        for i in range(count):
            there, here = f"{side}/layer_{i}", f"{side}.layers.{i}"
            weights |= _norm(raw, f"{there}/self_attention/layer_norm", f"{here}.attention_norm")
            weights |= _fused(raw, f"{there}/self_attention/linear_0", here + ".attention", ("query", "key", "value"))
            weights |= _linear(raw, f"{there}/self_attention/linear_1", f"{here}.attention.out")
            weights |= _norm(raw, f"{there}/ffn/layer_norm", f"{here}.feed_forward_norm")
            weights |= _linear(raw, f"{there}/ffn/linear_0", f"{here}.feed_forward.up")
            weights |= _linear(raw, f"{there}/ffn/linear_1", f"{here}.feed_forward.down")
            if side == "decoder":
                weights |= _norm(raw, f"{there}/attention/layer_norm", f"{here}.cross_norm")
                weights |= _linear(raw, f"{there}/attention/linear_0", f"{here}.cross.query")
                weights |= _fused(raw, f"{there}/attention/linear_1", f"{here}.cross", ("key", "value"))
                weights |= _linear(raw, f"{there}/attention/linear_2", f"{here}.cross.out")
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)).float() for name, value in weights.items()}
    return tensors, _shape(folder, tensors, layers)


def _shape(folder: Path, weights: dict[str, Tensor], layers: dict[str, int]) -> dict[str, object]:
    config = json.loads((folder / "config.json").read_text())
    vocabulary = Vocabulary(folder / "tokenizer.json")
    size, dim = weights["decoder.embedding.weight"].shape
    multilingual = size > 51864  # Whisper's English-only vocabularies have 51864 ids
    prompt = ["<|startoftranscript|>", *(["<|en|>", "<|transcribe|>"] if multilingual else []), "<|notimestamps|>"]
    end = vocabulary.special_from
    return {
        "mel_bins": weights["frontend.conv1.weight"].shape[1],
        "dim": dim,
        "heads": dim // 64,
        "encoder_layers": layers["encoder"],
        "decoder_layers": layers["decoder"],
        "vocabulary": size,
        "text_positions": weights["decoder.positions"].shape[0],
        "max_frames": weights["encoder_positions"].shape[0],
        "alignment_heads": [list(pair) for pair in config["alignment_heads"]],
        "prompt": [vocabulary.id(piece) for piece in prompt],
        "end_id": end,
        "banned": sorted({i for i in config["suppress_ids"] if 0 <= i < end}),
        "banned_first": sorted({i for i in config["suppress_ids_begin"] if 0 <= i < end}),
    }


def _layers(raw: dict[str, np.ndarray], side: str) -> int:
    count = 0
    while f"{side}/layer_{count}/ffn/linear_0/weight" in raw:
        count += 1
    return count


def _norm(raw: dict[str, np.ndarray], there: str, here: str) -> dict[str, np.ndarray]:
    return {f"{here}.{ours}": raw[f"{there}/{theirs}"] for theirs, ours in _NORM.items()}


def _linear(raw: dict[str, np.ndarray], there: str, here: str) -> dict[str, np.ndarray]:
    return {f"{here}.{part}": raw[f"{there}/{part}"] for part in ("weight", "bias")}


def _fused(raw: dict[str, np.ndarray], there: str, here: str, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Rows of a fused projection, apart; Whisper's key has no bias (stored as zeros)."""
    found: dict[str, np.ndarray] = {}
    for part in ("weight", "bias"):
        for name, rows in zip(names, np.split(raw[f"{there}/{part}"], len(names)), strict=True):
            if (name, part) != ("key", "bias"):
                found[f"{here}.{name}.{part}"] = rows
    return found
