"""Tokens and their names; models over other units are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import asr.checkpoint
from asr.ctc_tokenizer import CtcTokenizer
from asr.errors import LanguageModelError
from asr.vocabulary import Vocabulary
from lm_fusion.ngram_units import Units, check_units, ctc_units, decoder_units
from tests.lm_fusion.ngram_cases import ngrams_of

MODEL = asr.checkpoint.INSTALLED / "earlybird-en"


def decoder() -> Units:
    vocabulary = Vocabulary(MODEL / "tokenizer.json")
    return decoder_units(vocabulary, vocabulary.size)


def test_the_decoders_pieces() -> None:
    units = decoder()
    ids = units.encode("Hello there, naïve Zoë. ")
    assert [units.names[i] for i in ids[:3]] == ["ĠHello", "Ġthere", ","]
    assert ids == units.encode(" Hello there, naïve Zoë.")
    assert len(units.names) == Vocabulary(MODEL / "tokenizer.json").size
    assert units.names[-1] == ""  # a special piece is no token of text
    assert all(units.ids[units.names[i]] == i for i in ids)


def test_more_scores_than_pieces() -> None:
    vocabulary = Vocabulary(MODEL / "tokenizer.json")
    assert decoder_units(vocabulary, vocabulary.size + 3).names[-4:] == ("", "", "", "")
    assert len(decoder_units(vocabulary, 5).names) == 5


def test_the_ctc_heads_pieces() -> None:
    units = ctc_units(CtcTokenizer(MODEL / "ctc.model"))
    ids = units.encode("It’s THE end, 42!")
    assert "".join(units.names[i] for i in ids) == "▁it's▁the▁end"
    assert len(units.names) == 512
    assert "<unk>" not in units.ids
    assert len(units.ids) == 511


def test_fingerprints_are_equal_for_equal_tokens_alone() -> None:
    def units(*names: str) -> Units:
        return Units("decoder", names, lambda text: [], "")

    assert units("a", "b").fingerprint == units("a", "b").fingerprint
    assert len({units("a", "b").fingerprint, units("b", "a").fingerprint, units("a").fingerprint}) == 3
    with pytest.raises(LanguageModelError, match="two tokens of the decoder vocabulary have the same name"):
        units("a", "b", "a")
    assert units("a", "", "", "<s>", "<s>").ids == {"a": 0}


def words(*names: str) -> dict[str, tuple[float, float]]:
    return dict.fromkeys(("<unk>", "<s>", "</s>", *names), (-1.0, 0.0))


def test_a_model_over_whole_words_is_refused_with_the_share() -> None:
    model = ngrams_of(words("the", "on", "is", "anthropomorphic", "Żółć", "phlegmatically", "gobbledegook"))
    message = (
        r"word\.arpa: of its 7 words 3 \(42\.9%\) are tokens of the decoder vocabulary, at least 90% must be: "
        r"is it over whole words\? a model over the decoder vocabulary's 26\d{3} tokens is needed; "
        r"`earlybird lm build` makes one"
    )
    with pytest.raises(LanguageModelError, match=message):
        check_units(model, decoder(), source="word.arpa")


def test_words_that_all_happen_to_be_pieces_are_refused_too() -> None:
    model = ngrams_of(words("the", "is", "on", "and"))
    with pytest.raises(LanguageModelError, match=r"4 of its 4 words \(100\.0%\) .* none begins a word \(with 'Ġ'\)"):
        check_units(model, decoder(), source="word.arpa")


def test_a_model_over_the_tokens_passes_with_few_strangers() -> None:
    names = ["Ġthe", "Ġis", "Ġon", "Ġand", ",", ".", "s", "ing", "Ġa"]
    check_units(ngrams_of(words(*names, "stranger")), decoder(), source="token.arpa")
    with pytest.raises(LanguageModelError, match=r"9 \(81\.8%\)"):
        check_units(ngrams_of(words(*names, "stranger", "strangest")), decoder(), source="token.arpa")
    check_units(ngrams_of(words(*names, "stranger", "strangest")), decoder(), source="token.arpa", least_known=0.8)


def test_a_model_of_marks_alone() -> None:
    with pytest.raises(LanguageModelError, match=r"of its 0 words 0 \(0\.0%\)"):
        check_units(ngrams_of(words()), decoder(), source=str(Path("empty.arpa")))
