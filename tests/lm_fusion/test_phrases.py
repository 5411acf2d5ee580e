"""Phrase lists: every phrase is answered, limits hold, equal lists are built once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from asr.errors import PhraseError
from asr.vocabulary import Vocabulary
from lm_fusion import phrases
from lm_fusion.phrases import MAX_BOOST, MAX_PHRASES, Phrase, PhraseBuilder, read_phrases
from lm_fusion.spelling import DecoderSpelling
from tests.tiny_model import write_tokenizer


@pytest.fixture
def builder(tmp_path: Path) -> PhraseBuilder:
    vocabulary = Vocabulary(write_tokenizer(tmp_path / "tokenizer.json"))
    writable = torch.ones(vocabulary.size, dtype=torch.bool)
    writable[vocabulary.encode("|")] = False
    return PhraseBuilder(DecoderSpelling(vocabulary, writable))


def test_every_phrase_is_answered_in_order(builder: PhraseBuilder) -> None:
    given = ["the dog", "", "🙂", "a" * 65, "x" * 600, "a|b", Phrase(text="dog", boost=9), Phrase(text="cat", boost=2)]
    answers = builder.build(given).answers
    assert [answer.text for answer in answers] == [p if isinstance(p, str) else p.text for p in given]
    assert [answer.accepted for answer in answers] == [True, False, False, False, False, True, False, True]
    assert answers[0].pieces == (" the", " d", "o", "g")
    reasons = [answer.reason for answer in answers]
    assert reasons[1] == reasons[2] == "it has no letter and no digit"
    assert reasons[3] == "it takes more than 64 pieces; say it shorter"
    assert reasons[4] == "it has 600 characters; at most 512 are possible"
    assert reasons[5] == "boosted as 'a b': the model never writes |"
    assert reasons[6] == "its boost is 9; it must be a number from 0 to 5.0"
    assert reasons[7] == ""
    assert answers[6].to_json() == {"text": "dog", "accepted": False, "pieces": [], "reason": reasons[6]}
    assert [answer.text for answer in builder.build(given).rejected] == ["", "🙂", "a" * 65, "x" * 600, "dog"]


def test_a_list_has_limits(builder: PhraseBuilder) -> None:
    with pytest.raises(PhraseError, match="20001 phrases; at most 20000"):
        builder.build(["a"] * (MAX_PHRASES + 1))
    for boost in (-0.1, MAX_BOOST + 0.1, float("nan")):
        with pytest.raises(PhraseError, match=r"must be from 0 to 5.0 nats"):
            builder.build(["a"], boost=boost)


def test_a_boost_of_zero_scores_nothing(builder: PhraseBuilder) -> None:
    assert builder.build(["the dog"], boost=0).graph.nodes == 2
    own = builder.build([Phrase(text="a", boost=3.0)], boost=0).graph
    assert own.credit.max() == 1.0  # the list's boost is for those that have none


def test_phrases_have_the_lists_boost_or_their_own(builder: PhraseBuilder) -> None:
    graph = builder.build([Phrase(text="a", boost=0.75), "b", "the"], boost=3.0).graph
    credit = {int(label): graph.credit[target] for label, target in zip(graph.label, graph.target, strict=True)}
    encode = builder.spelling.spell
    assert credit[encode("a")[0][0].tokens[0]] == 0.25
    assert credit[encode("b")[0][0].tokens[0]] == 1.0
    assert credit[encode("the")[0][0].tokens[0]] == 3.0  # three letters in one piece have all of the boost


def test_equal_lists_are_built_once(builder: PhraseBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    one = builder.build(["the dog", Phrase(text="cat", boost=2)])
    assert builder.build(("the dog", Phrase(text="cat", boost=2))) is one
    assert builder.builds == 1
    assert builder.build(["the dog", "cat"]) is not one
    assert builder.build(["the dog", Phrase(text="cat", boost=2)], boost=1.0) is not one
    assert builder.builds == 3
    monkeypatch.setattr(phrases, "CACHED_LISTS", 2)
    builder.build(["the dog", Phrase(text="cat", boost=2)])  # the newest again
    builder.build(["another"])
    assert builder.build(["the dog", Phrase(text="cat", boost=2)]) is one
    builder.build(["the dog", "cat"])
    assert builder.builds == 5


def test_a_file_holds_a_phrase_a_line(tmp_path: Path) -> None:
    path = tmp_path / "phrases.txt"
    path.write_bytes("\ufeffAC/DC\t2.5\r\n\r\n  \nNew York\nZoë\tmuch\n".encode())
    first, second, third = read_phrases(path)
    assert (first, second) == (Phrase(text="AC/DC", boost=2.5), Phrase(text="New York"))
    assert (third.text, str(third.boost)) == ("Zoë", "nan")


def test_a_boost_that_is_no_number_is_answered(tmp_path: Path, builder: PhraseBuilder) -> None:
    path = tmp_path / "phrases.txt"
    path.write_text("dog\tmuch\n")
    (answer,) = builder.build(read_phrases(path)).answers
    assert (answer.accepted, answer.reason) == (False, "its boost is nan; it must be a number from 0 to 5.0")


def test_a_file_that_is_no_utf8_is_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "phrases.txt"
    path.write_bytes("ok\n東京\n".encode("gbk"))
    with pytest.raises(PhraseError, match="byte 3 is not UTF-8; save the list as UTF-8"):
        read_phrases(path)
    with pytest.raises(PhraseError, match="No such file"):
        read_phrases(tmp_path / "none.txt")
