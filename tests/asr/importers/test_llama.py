"""A Llama-shaped model in a GGUF file: weights, the order of its rotary pairs, its vocabulary, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from torch import Tensor

from asr.additive import AdditiveDecoder
from asr.errors import CheckpointError
from asr.importers.llama import LAYER, half_split, read_llama

DIM, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, LAYERS = 16, 2, 1, 8, 24, 3
PIECES = ["<|endoftext|>", "<|im_start|>", *"abcdehnot", "Ġ", "1", "9", "he", "Ġt", "Ġthe", "no", "not"]
KINDS = [3, 3] + [1] * (len(PIECES) - 2)
MERGES = ["h e", "Ġ t", "Ġt he", "n o", "no t"]
SHAPES = {
    "attn_norm": (DIM,),
    "attn_q": (HEADS * HEAD_DIM, DIM),
    "attn_k": (KV_HEADS * HEAD_DIM, DIM),
    "attn_v": (KV_HEADS * HEAD_DIM, DIM),
    "attn_output": (DIM, HEADS * HEAD_DIM),
    "ffn_norm": (DIM,),
    "ffn_gate": (HIDDEN, DIM),
    "ffn_up": (HIDDEN, DIM),
    "ffn_down": (DIM, HIDDEN),
}


def write_llama(
    path: Path, *, architecture: str = "llama", pre: str = "smollm", without: str = "", output: bool = False
) -> dict[str, np.ndarray]:
    """A GGUF file of random weights, and the weights."""
    rng = np.random.default_rng(3)
    arrays = {"token_embd.weight": rng.normal(size=(len(PIECES), DIM)), "output_norm.weight": rng.normal(size=DIM)}
    for i in range(LAYERS):
        arrays |= {f"blk.{i}.{name}.weight": rng.normal(size=shape) for name, shape in SHAPES.items()}
    if output:
        arrays["output.weight"] = arrays["token_embd.weight"]
    arrays = {name: value.astype(np.float32) for name, value in arrays.items() if name != without}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("toy")
    writer.add_license("apache-2.0")
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(PIECES)
    writer.add_token_types(KINDS)
    writer.add_token_merges(MERGES)
    for name, value in arrays.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return arrays


def test_shape_and_weights_are_the_file_s(tmp_path: Path) -> None:
    arrays = write_llama(tmp_path / "toy.gguf")
    llama = read_llama(tmp_path / "toy.gguf", layers=2)
    assert (llama.dim, llama.heads, llama.kv_heads, llama.head_dim, llama.hidden) == (DIM, HEADS, KV_HEADS, 8, HIDDEN)
    assert (llama.theta, llama.name, llama.licence) == (100.0, "toy", "apache-2.0")
    assert len(llama.weights) == 2 + 2 * len(LAYER)
    for theirs, ours in LAYER.items():
        if ours not in ("attention.query", "attention.key"):
            expected = torch.from_numpy(arrays[f"blk.1.{theirs}.weight"])
            torch.testing.assert_close(llama.weights[f"layers.1.{ours}.weight"], expected, rtol=0, atol=0)


def neighbours_rotated(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """llama.cpp's rotary embedding: pairs (0, 1), (2, 3), … of x [T, D] by positions [T]."""
    frequency = theta ** -(torch.arange(0, x.shape[1], 2) / x.shape[1])
    turned = torch.polar(torch.ones(1), positions[:, None] * frequency) * torch.view_as_complex(
        x.view(x.shape[0], -1, 2).contiguous()
    )
    return torch.view_as_real(turned).flatten(1)


def test_attention_is_what_llama_cpp_computes_from_the_file_s_order(tmp_path: Path) -> None:
    arrays = write_llama(tmp_path / "toy.gguf")
    llama = read_llama(tmp_path / "toy.gguf", layers=1)
    decoder = AdditiveDecoder(
        outputs=len(PIECES) - 1,
        layers=1,
        dim=DIM,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        hidden=HIDDEN,
        theta=llama.theta,
        window_steps=9,
        condition_dim=2,
    )
    missing, unexpected = decoder.load_state_dict(llama.weights, strict=False)
    assert not unexpected
    assert all("condition" in name for name in missing)
    attention = decoder._layers()[0].attention
    x, positions = torch.randn(1, 5, DIM), torch.arange(5)
    key, _ = attention.keys_values(x, positions[None])
    query = attention.queries(x, positions[None])
    stored = {n: torch.from_numpy(arrays[f"blk.0.attn_{n}.weight"]) for n in ("q", "k")}
    theirs = neighbours_rotated(x[0] @ stored["k"].T, positions, llama.theta)
    for head in range(HEADS):
        rows = stored["q"][head * HEAD_DIM : (head + 1) * HEAD_DIM]
        expected = neighbours_rotated(x[0] @ rows.T, positions, llama.theta) @ theirs.T
        torch.testing.assert_close(query[0, head] @ key[0, 0].T, expected, rtol=1e-4, atol=1e-4)


def test_half_split_takes_each_head_by_itself() -> None:
    both = half_split(torch.arange(8.0)[:, None], heads=2)[:, 0]
    assert both.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_text_pieces_come_first_and_rows_move_with_them(tmp_path: Path) -> None:
    arrays = write_llama(tmp_path / "toy.gguf")
    llama = read_llama(tmp_path / "toy.gguf", layers=1)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(llama.tokenizer))
    found = tokenizer.encode(" the 19", add_special_tokens=False)
    assert found.tokens == ["Ġthe", "Ġ", "1", "9"]
    assert tokenizer.decode(found.ids) == " the 19"
    rows = llama.weights["embedding.weight"][torch.tensor(found.ids)].numpy()
    np.testing.assert_array_equal(rows, arrays["token_embd.weight"][[PIECES.index(piece) for piece in found.tokens]])
    assert tokenizer.token_to_id("<|endoftext|>") == len(PIECES) - 2
    assert tokenizer.token_to_id("<|im_start|>") is None


@pytest.mark.parametrize(
    ("change", "layers", "message"),
    [
        ({"architecture": "gpt2"}, 1, "holds a gpt2 with pieces of gpt2"),
        ({"pre": "qwen2"}, 1, r"splits text as 'qwen2'; \['gpt-2', 'smollm'\] are known"),
        ({"without": "blk.0.ffn_up.weight"}, 1, r"has no blk\.0\.ffn_up\.weight"),
        ({"output": True}, 1, "has an output of its own"),
        ({}, 4, "has 3 layers; 4 cannot be taken"),
        ({}, 0, "has 3 layers; 0 cannot be taken"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], layers: int, message: str) -> None:
    write_llama(tmp_path / "toy.gguf", **change)
    with pytest.raises(CheckpointError, match=message):
        read_llama(tmp_path / "toy.gguf", layers=layers)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.gguf is no file"):
        read_llama(tmp_path / "none.gguf", layers=1)
    (tmp_path / "text.gguf").write_text("not a model, but long enough to be looked at")
    with pytest.raises(CheckpointError, match=r"text\.gguf is no GGUF file"):
        read_llama(tmp_path / "text.gguf", layers=1)
