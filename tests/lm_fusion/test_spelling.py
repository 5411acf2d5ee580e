"""Plain text to pieces: casings, spaces, scripts, what the model never writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from asr.vocabulary import Vocabulary
from lm_fusion.spelling import CtcSpelling, DecoderSpelling, casings, tidy
from tests.tiny_model import tiny_model, write_ctc_tokenizer, write_tokenizer


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(write_tokenizer(tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"))


def spelling_of(vocabulary: Vocabulary, never: str = "") -> DecoderSpelling:
    writable = torch.ones(vocabulary.size, dtype=torch.bool)
    for token, piece in enumerate(vocabulary.pieces):
        writable[token] = not any(sign.encode() in piece for sign in never)
    return DecoderSpelling(vocabulary, writable)


def written(spelling: DecoderSpelling, vocabulary: Vocabulary, text: str) -> dict[str, bool]:
    """Each way to write a text, and whether it may begin anywhere."""
    return {vocabulary.decode(list(way.tokens)): way.anywhere for way in spelling.spell(text)[0]}


def test_every_casing_with_its_space_and_without(vocabulary: Vocabulary) -> None:
    expected = {}
    for form in ("new york", "NEW YORK", "New york", "New York"):
        # Without its space it may begin a text, or follow a quotation mark; inside a word it may not.
        expected |= {f" {form}": True, form: False}
    # Of a capital this vocabulary has no piece with a space: the space is a piece of its own, and what follows it
    # is the form without one.
    for form in ("NEW YORK", "New york", "New York"):
        del expected[f" {form}"]
    assert written(spelling_of(vocabulary), vocabulary, "new york") == expected
    ways, remark = spelling_of(vocabulary).spell("new york")
    assert vocabulary.decode(list(ways[0].tokens)) == " new york"
    assert remark == ""


@pytest.mark.parametrize("given", ["Kubernetes", "KUBERNETES", "kubernetes"])
def test_any_casing_finds_the_usual_ones(vocabulary: Vocabulary, given: str) -> None:
    forms = {form.strip() for form in written(spelling_of(vocabulary), vocabulary, given)}
    assert forms == {"Kubernetes", "KUBERNETES", "kubernetes"}


def test_own_capitals_are_kept_beside_the_usual_ones() -> None:
    assert casings("iPhone") == ["iPhone", "iphone", "IPHONE", "IPhone", "Iphone"]


def test_a_script_without_spaces_may_begin_inside_text(vocabulary: Vocabulary) -> None:
    # The space before it is a piece of its own: the form without one is found behind that as well.
    assert written(spelling_of(vocabulary), vocabulary, "東京") == {"東京": True}
    assert written(spelling_of(vocabulary), vocabulary, "Ωmega")["ωmega"] is False


def test_text_is_composed_and_spaces_are_single() -> None:
    assert tidy("\ufeffZoe\u0308\t and \u00a0 Co\r\n") == "Zo\u00eb and Co"


def test_signs_that_the_model_never_writes_are_left_out_and_named(vocabulary: Vocabulary) -> None:
    spelling = spelling_of(vocabulary, never="/+")
    ways, remark = spelling.spell("AC/DC")
    found = {vocabulary.decode(list(way.tokens)).strip() for way in ways}
    assert found == {"AC DC", "ac dc", "Ac dc", "Ac Dc"}
    assert remark == "boosted as 'AC DC': the model never writes /"
    assert spelling_of(vocabulary).spell("AC/DC")[1] == ""
    assert spelling.spell("C++") == ([], "the model never writes +")  # every C would be boosted


def test_letters_that_the_model_never_writes_are_refused(vocabulary: Vocabulary) -> None:
    assert spelling_of(vocabulary, never="xX").spell("xerox") == ([], "the model never writes it")


def test_special_pieces_are_never_boosted(vocabulary: Vocabulary) -> None:
    special = "<|endoftext|>"
    assert vocabulary.encode(special) == [vocabulary.special_from]
    assert all(max(way.tokens) < vocabulary.special_from for way in spelling_of(vocabulary).spell(special)[0])


def test_any_phrase_may_begin_behind_a_space_or_an_opening_sign(vocabulary: Vocabulary) -> None:
    opens = spelling_of(vocabulary).opens
    for text, expected in (
        (" ", True),
        ("(", True),
        ('"', True),
        ("-", False),
        ("'", False),
        ("a", False),
        ("é", False),
    ):
        assert bool(opens[vocabulary.encode(text)[-1]]) is expected, text


def test_a_piece_has_a_third_of_the_boost_for_each_letter(vocabulary: Vocabulary, tmp_path: Path) -> None:
    weights = spelling_of(vocabulary).weights
    for text, expected in ((" ", 0), ("-", 0), ("a", 1 / 3), (" a", 1 / 3), ("he", 2 / 3), (" the", 1), (" don", 1)):
        (token,) = vocabulary.encode(text)
        assert float(weights[token]) == pytest.approx(expected), text
    tokenizer = write_ctc_tokenizer(tmp_path)
    head = CtcSpelling(tokenizer).weights
    for token, piece in enumerate(tokenizer.pieces):
        assert float(head[token]) == pytest.approx(min(3, sum(map(str.isalpha, piece))) / 3)
    assert float(head[tokenizer.blank]) == 0


def test_a_models_own_spelling_knows_what_it_may_write(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    spelling = DecoderSpelling.of(model)
    assert spelling.opens.shape == (model.config.vocabulary,)
    assert spelling.spell("OH")[0][0].tokens == tuple(model.vocabulary.encode(" oh"))  # it writes no capital O
    assert spelling.piece(model.vocabulary.encode(" oh")[0]) == " o"


def test_the_ctc_head_spells_lower_case(tmp_path: Path) -> None:
    tokenizer = write_ctc_tokenizer(tmp_path)
    spelling = CtcSpelling(tokenizer)
    ways, remark = spelling.spell("The CAT’s dog")
    assert [tokenizer.decode(way.tokens) for way in ways] == ["the cat's dog"]
    assert (remark, ways[0].anywhere) == ("", True)
    assert spelling.piece(ways[0].tokens[0]).startswith("▁")
    assert spelling.opens.shape == (tokenizer.blank + 1,)
    assert spelling.spell("R2") == ([], "the CTC head spells only a to z, not 2")
    assert spelling.spell("...") == ([], "the CTC head spells only a to z, not '...'")
    (ways, remark) = spelling.spell("naïve")
    assert (ways, remark) == ([], "the CTC head spells only a to z, not ï")
