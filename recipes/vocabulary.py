"""Cuts a decoder's vocabulary to the pieces that a language needs.

A row of the embedding that English never uses costs memory, a column of every softmax, and a chance of being wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.errors import CheckpointError
from asr.vocabulary import Vocabulary

SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|startofprev|>", "<|notimestamps|>")


def needed_pieces(vocabulary: Vocabulary, texts: Iterable[str], *, min_count: int) -> set[int]:
    """Text pieces that the texts use at least `min_count` times as written, in lower case or with a capital, with all
    pieces that their merges pass through, every single byte, and every number of up to four digits.
    """
    counts: dict[int, int] = {}
    for text in texts:
        for form in {text, text.lower(), text.lower().capitalize()}:
            for index in vocabulary.encode(" " + form):
                counts[index] = counts.get(index, 0) + 1
    keep = {index for index, count in counts.items() if count >= min_count}
    for index in range(vocabulary.special_from):
        piece = vocabulary.pieces[index]
        if len(piece) == 1 or re.fullmatch(rb" ?[0-9]{1,4}", piece) or re.fullmatch(rb" ?[A-Za-z]{1,2}", piece):
            keep.add(index)
    return _with_parts(vocabulary, keep)


def _with_parts(vocabulary: Vocabulary, keep: set[int]) -> set[int]:
    """`keep` closed under "the two pieces that a merge joins"."""
    spec = json.loads(vocabulary.tokenizer.to_str())["model"]
    ids: dict[str, int] = spec["vocab"]
    parts: dict[int, tuple[int, int]] = {}
    for merge in spec["merges"]:
        first, second = merge.split(" ") if isinstance(merge, str) else merge
        joined = ids.get(first + second)
        if joined is not None and joined not in parts:
            parts[joined] = (ids[first], ids[second])
    todo, closed = list(keep), set(keep)
    while todo:
        for part in parts.get(todo.pop(), ()):
            if part not in closed:
                closed.add(part)
                todo.append(part)
    return closed


def cut_vocabulary(
    vocabulary: Vocabulary, keep: set[int], weights: dict[str, Tensor], shape: dict[str, Any], tokenizer_out: Path
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and shape with only the pieces of `keep` and the special ones that a prompt needs.

    Args:
        weights, shape: as `asr.importers.whisper.whisper_weights` gives them.
        tokenizer_out: where the cut tokenizer file is written.

    Raises:
        CheckpointError: if a piece of the prompt is not kept.
    """
    old = sorted(keep)
    special = [(piece, found) for piece in SPECIAL if (found := vocabulary.tokenizer.token_to_id(piece)) is not None]
    order = old + [index for _, index in special]
    new_id = {index: place for place, index in enumerate(order)}
    if missing := [index for index in shape["prompt"] if index not in new_id]:
        raise CheckpointError(f"the prompt's pieces {missing} are not among the special pieces kept {SPECIAL}")
    spec = json.loads(vocabulary.tokenizer.to_str())
    spec["model"]["vocab"] = {p: new_id[i] for p, i in spec["model"]["vocab"].items() if i in keep}
    spec["model"]["merges"] = [merge for merge in spec["model"]["merges"] if _joins_kept(merge, spec["model"]["vocab"])]
    spec["added_tokens"] = [
        {**token, "id": new_id[token["id"]]} for token in spec["added_tokens"] if token["content"] in dict(special)
    ]
    spec["post_processor"] = None
    tokenizer_out.write_text(json.dumps(spec, ensure_ascii=False, separators=(",", ":")))
    cut = {**weights, "decoder.embedding.weight": weights["decoder.embedding.weight"][torch.tensor(order)]}
    return cut, {
        **shape,
        "vocabulary": len(order),
        "prompt": [new_id[i] for i in shape["prompt"]],
        "end_id": new_id[shape["end_id"]],
        "banned": sorted(new_id[i] for i in shape["banned"] if i in new_id),
        "banned_first": sorted(new_id[i] for i in shape["banned_first"] if i in new_id),
    }


def _joins_kept(merge: str | list[str], vocab: dict[str, int]) -> bool:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first in vocab and second in vocab and first + second in vocab
