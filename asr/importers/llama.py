"""A Llama-shaped language model in a GGUF file (SmolLM2, say): decoder layers, embedding and vocabulary.

Needs the package `gguf`. Layout: llama.cpp's convert_hf_to_gguf.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.errors import CheckpointError

__all__ = ["Llama", "half_split", "read_llama"]

NORMAL_PIECE = 1
END = "<|endoftext|>"
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}],
    "gpt-2": [],
}
"""What comes before GPT-2's own splitting, by the file's name for it."""
LAYER = {
    "attn_norm": "attention_norm",
    "attn_q": "attention.query",
    "attn_k": "attention.key",
    "attn_v": "attention.value",
    "attn_output": "attention.out",
    "ffn_norm": "feed_forward_norm",
    "ffn_gate": "feed_forward.gate",
    "ffn_up": "feed_forward.up",
    "ffn_down": "feed_forward.down",
}


@dataclass(frozen=True)
class Llama:
    """A language model's parts under this toolkit's names.

    Attributes:
        weights: `embedding.weight` [V, C], `layers.i.…`, `norm.weight`, float32.
        dim, heads, kv_heads, head_dim, hidden, theta: the shape.
        tokenizer: a tokenizer file's content; text pieces come first, in the file's order, then `<|endoftext|>`.
        name, licence: as the file states them.
    """

    weights: dict[str, Tensor]
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    theta: float
    tokenizer: dict[str, Any]
    name: str
    licence: str


def half_split(weight: Tensor, *, heads: int) -> Tensor:
    """A query or key projection [heads * D, C] from GGUF's order, whose rotary pairs are neighbours, to ours, whose
    pairs are half a head apart.

    >>> half_split(torch.tensor([[0.0], [2.0], [1.0], [3.0]]), heads=1)[:, 0].tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def read_llama(path: Path, *, layers: int) -> Llama:
    """The first `layers` layers of the model in a GGUF file, its weights taken out of their quantisation.

    Raises:
        CheckpointError: if the package `gguf` is missing, or the file is none of a Llama with GPT-2's pieces, has fewer
            layers, or has an embedding for its output of its own.
    """
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(f"{path} needs the package gguf: pip install gguf") from error
    if not path.is_file():
        raise CheckpointError(f"{path} is no file")
    try:
        reader = gguf.GGUFReader(path)
    except ValueError as error:
        raise CheckpointError(f"{path} is no GGUF file: {error}") from error

    def value(key: str) -> Any:
        field = reader.get_field(key)
        if field is None:
            raise CheckpointError(f"{path} states no {key}")
        return field.contents()

    if value("general.architecture") != "llama" or value("tokenizer.ggml.model") != "gpt2":
        raise CheckpointError(
            f"{path} holds a {value('general.architecture')} with pieces of {value('tokenizer.ggml.model')}; a llama "
            "with pieces of gpt2 can be read"
        )
    there = int(value("llama.block_count"))
    if not 1 <= layers <= there:
        raise CheckpointError(f"{path} has {there} layers; {layers} cannot be taken")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "output.weight" in tensors:
        raise CheckpointError(f"{path} has an output of its own; one tied to the embedding is needed")

    def weight(name: str) -> Tensor:
        if name not in tensors:
            raise CheckpointError(f"{path} has no {name}")
        tensor = tensors[name]
        values: np.ndarray = gguf.dequantize(tensor.data, tensor.tensor_type)
        return torch.from_numpy(values.astype(np.float32))

    heads, kv_heads = int(value("llama.attention.head_count")), int(value("llama.attention.head_count_kv"))
    dim = int(value("llama.embedding_length"))
    weights = {"norm.weight": weight("output_norm.weight")}
    for i in range(layers):
        for theirs, ours in LAYER.items():
            weights[f"layers.{i}.{ours}.weight"] = weight(f"blk.{i}.{theirs}.weight")
        for part, count in (("query", heads), ("key", kv_heads)):
            name = f"layers.{i}.attention.{part}.weight"
            weights[name] = half_split(weights[name], heads=count)
    tokenizer, order = _tokenizer(
        value("tokenizer.ggml.tokens"),
        value("tokenizer.ggml.token_type"),
        value("tokenizer.ggml.merges"),
        splitting=value("tokenizer.ggml.pre"),
        path=path,
    )
    weights["embedding.weight"] = weight("token_embd.weight")[torch.tensor(order)]
    return Llama(
        weights=weights,
        dim=dim,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=weights["layers.0.attention.query.weight"].shape[0] // heads,
        hidden=int(value("llama.feed_forward_length")),
        theta=float(value("llama.rope.freq_base")),
        tokenizer=tokenizer,
        name=str(value("general.name")),
        licence=str(value("general.license")),
    )


def _tokenizer(
    pieces: list[str], kinds: list[int], merges: list[str], *, splitting: str, path: Path
) -> tuple[dict[str, Any], list[int]]:
    """A tokenizer file's content, and the file's ids in its order."""
    if splitting not in PRE_TOKENIZERS:
        raise CheckpointError(f"{path} splits text as {splitting!r}; {sorted(PRE_TOKENIZERS)} are known")
    if END not in pieces:
        raise CheckpointError(f"{path} has no piece {END}")
    text = [index for index, kind in enumerate(kinds) if kind == NORMAL_PIECE and pieces[index] != END]
    order = [*text, pieces.index(END)]
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": len(text),
                "content": END,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*PRE_TOKENIZERS[splitting], split]},
        "post_processor": None,
        "decoder": split,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {pieces[index]: place for place, index in enumerate(text)},
            "merges": merges,
        },
    }
    return json.loads(json.dumps(spec)), order
