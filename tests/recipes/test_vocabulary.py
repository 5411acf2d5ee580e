"""The cut of a vocabulary keeps texts, and the rows of the pieces that are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.errors import CheckpointError
from asr.vocabulary import Vocabulary
from recipes.vocabulary import cut_vocabulary, needed_pieces
from tests.tiny_model import SPECIAL, write_tokenizer

TEXTS = ["the don't", "he"]


@pytest.fixture
def vocabulary(tmp_path: Path) -> Vocabulary:
    return Vocabulary(write_tokenizer(tmp_path / "tokenizer.json"))


def shape_of(vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "dim": 3,
        "vocabulary": vocabulary.size,
        "prompt": [vocabulary.id(SPECIAL[1]), vocabulary.id(SPECIAL[2])],
        "end_id": vocabulary.special_from,
        "banned": [1, id_of(vocabulary, " $")],
        "banned_first": [5],
    }


def id_of(vocabulary: Vocabulary, piece: str) -> int:
    return vocabulary.pieces.index(piece.encode())


def cut(
    vocabulary: Vocabulary, keep: set[int], folder: Path, **changes: Any
) -> tuple[Vocabulary, dict[str, Tensor], dict[str, Any]]:
    weights = {"decoder.embedding.weight": torch.arange(vocabulary.size * 3.0).view(-1, 3), "other": torch.ones(2)}
    shape = shape_of(vocabulary) | changes
    found, smaller = cut_vocabulary(vocabulary, keep, weights, shape, folder / "cut.json")
    return Vocabulary(folder / "cut.json"), found, smaller


def test_what_is_used_is_kept_with_the_pieces_that_its_merges_join(vocabulary: Vocabulary) -> None:
    keep = needed_pieces(vocabulary, TEXTS, min_count=1)
    assert {id_of(vocabulary, piece) for piece in (" the", "he", " t", " don", " d", "on", "'t")} <= keep
    assert {vocabulary.pieces.index(bytes([byte])) for byte in range(256)} <= keep
    assert id_of(vocabulary, " 5") in keep  # a number
    assert id_of(vocabulary, " $") not in keep
    assert max(keep) < vocabulary.special_from


def test_a_piece_that_a_merge_passes_through_is_kept_though_no_text_has_it(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "tokenizer.json")
    spec = json.loads(path.read_text())
    ids, space = spec["model"]["vocab"], "Ġ"
    ids["re"] = ids.pop(space + "z")  # ids have no room at the end: two pieces become others
    ids[space + "there"] = ids.pop(space + "y")
    gone = [[space, "z"], [space, "y"], f"{space} z", f"{space} y"]
    merges = [merge for merge in spec["model"]["merges"] if merge not in gone]
    as_text = isinstance(merges[0], str)
    new = [["r", "e"], [space + "the", "re"]]
    spec["model"]["merges"] = merges + [" ".join(pair) if as_text else pair for pair in new]
    path.write_text(json.dumps(spec))
    vocabulary = Vocabulary(path)
    assert vocabulary.encode(" there") == [id_of(vocabulary, " there")]
    keep = needed_pieces(vocabulary, ["there"], min_count=1)
    assert {id_of(vocabulary, piece) for piece in (" there", " the", "re")} <= keep


def test_pieces_that_are_used_too_seldom_go(vocabulary: Vocabulary) -> None:
    often = needed_pieces(vocabulary, ["the"] * 5, min_count=5)
    assert id_of(vocabulary, " the") in often
    assert id_of(vocabulary, " the") not in needed_pieces(vocabulary, ["the"] * 2, min_count=5)


@pytest.mark.parametrize("text", [" the don't he", " weird TEXT, 5 $ — ü", "on the\nnote"])
def test_every_text_comes_back(vocabulary: Vocabulary, tmp_path: Path, text: str) -> None:
    smaller, _, shape = cut(vocabulary, needed_pieces(vocabulary, TEXTS, min_count=1), tmp_path)
    ids = smaller.encode(text)
    assert smaller.decode(ids) == text
    assert max(ids) < smaller.special_from == shape["end_id"]


def test_what_is_kept_is_spelt_as_before_with_its_own_rows(vocabulary: Vocabulary, tmp_path: Path) -> None:
    keep = needed_pieces(vocabulary, TEXTS, min_count=1)
    smaller, weights, shape = cut(vocabulary, keep, tmp_path)
    old, new = vocabulary.encode(" the don't he"), smaller.encode(" the don't he")
    assert [vocabulary.pieces[i] for i in old] == [smaller.pieces[i] for i in new]
    assert len(old) < 8
    rows = weights["decoder.embedding.weight"]
    assert rows.shape == (len(keep) + len(SPECIAL), 3)
    assert rows[new, 0].tolist() == [3 * i for i in old]
    assert torch.equal(weights["other"], torch.ones(2))
    assert (shape["vocabulary"], shape["dim"]) == (len(rows), 3)


def test_no_merge_leads_out_of_the_kept_pieces(vocabulary: Vocabulary, tmp_path: Path) -> None:
    cut(vocabulary, needed_pieces(vocabulary, TEXTS, min_count=1), tmp_path)
    model = json.loads((tmp_path / "cut.json").read_text())["model"]
    for merge in model["merges"]:
        first, second = merge.split(" ") if isinstance(merge, str) else merge
        assert {first, second, first + second} <= set(model["vocab"])
    assert sorted(model["vocab"].values()) == list(range(len(model["vocab"])))


def test_prompt_end_and_bans_are_renumbered(vocabulary: Vocabulary, tmp_path: Path) -> None:
    smaller, _, shape = cut(vocabulary, needed_pieces(vocabulary, TEXTS, min_count=1), tmp_path)
    assert shape["prompt"] == [smaller.id(SPECIAL[1]), smaller.id(SPECIAL[2])]
    assert shape["end_id"] == smaller.id(SPECIAL[0])
    assert [smaller.pieces[i] for i in shape["banned"]] == [vocabulary.pieces[1]]  # " $" is gone
    assert [smaller.pieces[i] for i in shape["banned_first"]] == [vocabulary.pieces[5]]


def test_a_prompt_that_would_be_cut_is_refused(vocabulary: Vocabulary, tmp_path: Path) -> None:
    gone = id_of(vocabulary, " $")
    with pytest.raises(CheckpointError, match=rf"the prompt's pieces \[{gone}\] are not among"):
        cut(vocabulary, needed_pieces(vocabulary, TEXTS, min_count=1), tmp_path, prompt=[gone])
