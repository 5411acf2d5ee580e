"""The words that a window of CTC labels spells."""

from __future__ import annotations

import pytest

from asr.ctc_tokenizer import CtcTokenizer
from asr.preview import PreviewWord, preview_words
from tests.tiny_model import write_ctc_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CtcTokenizer:
    return write_ctc_tokenizer(tmp_path_factory.mktemp("ctc"))


def window(tokenizer: CtcTokenizer, said: list[str]) -> list[int]:
    """Labels of pieces by their text; "" is the blank."""
    return [tokenizer.pieces.index(piece) if piece else tokenizer.blank for piece in said]


def words(tokenizer: CtcTokenizer, *said: str) -> list[tuple[str, int, int]]:
    return [(word.text, word.first, word.last) for word in preview_words(window(tokenizer, list(said)), tokenizer)]


def test_repeats_are_one_piece_and_blanks_none(tokenizer: CtcTokenizer) -> None:
    cat = "▁cat"
    assert words(tokenizer, "", cat, cat, "", "s", "s", "", cat) == [("cats", 1, 5), ("cat", 7, 7)]
    assert words(tokenizer, cat, "", cat, cat) == [("cat", 0, 0), ("cat", 2, 3)]
    assert words(tokenizer, cat, "s", "", "s") == [("catss", 0, 3)]


def test_a_word_that_began_before_the_window_is_not_shown(tokenizer: CtcTokenizer) -> None:
    assert words(tokenizer, "s", "", "s", "▁cat") == [("cat", 3, 3)]
    assert words(tokenizer, "s", "s") == []
    assert words(tokenizer) == words(tokenizer, "", "") == []


def test_words_are_records(tokenizer: CtcTokenizer) -> None:
    assert preview_words(window(tokenizer, ["▁cat"]), tokenizer) == [PreviewWord(text="cat", first=0, last=0)]
