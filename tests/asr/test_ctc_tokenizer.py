"""The CTC vocabulary: words in, pieces and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.ctc_tokenizer import CtcTokenizer, ctc_words
from asr.errors import CheckpointError, ConfigError
from recipes.tokenizer import train_tokenizer

# Every stem with every ending: enough in common for pieces longer than a letter.
STEMS = "walk talk jump play stay turn burn help need want clean clear start part rest nest".split()
LINES = [f"The {stem} and {stem}s of {stem}ing, {stem}ed, {stem}er's" for stem in STEMS]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CtcTokenizer:
    return CtcTokenizer(train_tokenizer(iter(LINES), size=48, folder=tmp_path_factory.mktemp("tokenizer")))


def test_labels_are_the_pieces_and_then_the_blank(tokenizer: CtcTokenizer) -> None:
    assert len(tokenizer.pieces) == tokenizer.blank == 48
    assert len(set(tokenizer.pieces)) == 48


WORDS = st.from_regex(r"[a-z]([a-z']{0,8}[a-z])?", fullmatch=True)


@given(words=st.lists(WORDS, max_size=5))
@settings(max_examples=100, deadline=None)
def test_round_trip_of_any_words(tokenizer: CtcTokenizer, words: list[str]) -> None:
    encoded = tokenizer.encode(words)
    assert len(encoded) == len(words)
    assert tokenizer.decode([i for ids in encoded for i in ids]) == " ".join(words)
    for ids in encoded:
        # The first piece opens the word and no other does, so that words can be told apart in a row of labels.
        assert [tokenizer.starts_word(i) for i in ids] == [True] + [False] * (len(ids) - 1)


def test_decode_leaves_blanks_out_and_refuses_what_is_no_piece(tokenizer: CtcTokenizer) -> None:
    (ids,) = tokenizer.encode(["cat"])
    assert tokenizer.decode([tokenizer.blank, *ids, tokenizer.blank]) == "cat"
    assert tokenizer.decode([]) == ""
    for wrong in (-1, tokenizer.blank + 1):
        with pytest.raises(ConfigError, match=r"ids must be of 0\.\.47 or the blank"):
            tokenizer.decode([wrong])


@pytest.mark.parametrize("word", ["café", "7", "", "Cat"])
def test_words_that_no_piece_spells_are_refused(tokenizer: CtcTokenizer, word: str) -> None:
    with pytest.raises(ConfigError, match="no pieces for"):
        tokenizer.encode(["cat", word])


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.model"
    broken.write_bytes(b"not a model")
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: not a sentencepiece model"):
        CtcTokenizer(broken)
    with pytest.raises(CheckpointError, match=r"absent\.model: not a sentencepiece model"):
        CtcTokenizer(tmp_path / "absent.model")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("HELLO, World!", ["hello", "world"]),
        ("It’s Jim's 'dog'", ["it's", "jim's", "dog"]),
        ("24 hours - mid-air", ["hours", "mid", "air"]),
        ("'' -", []),
    ],
)
def test_words_for_the_head(text: str, words: list[str]) -> None:
    assert ctc_words(text) == words
