"""Text to sentences of tokens to a model."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from asr.errors import LanguageModelError
from lm_fusion.build import build_ngrams, read_lines, sentence_case
from lm_fusion.ngram import build_automaton, perplexity
from tests.lm_fusion.ngram_cases import grams_of, letter_units


def test_lines_of_each_kind(tmp_path: Path) -> None:
    text = "One line.\n\n \t\nÜber alles \n"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (tmp_path / "a.gz").write_bytes(gzip.compress(text.encode()))
    entries = [{"text": "One line."}, {"audio": "x"}, {"text": None}, {"text": ""}, {"text": " Über alles"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    for name in ("a.txt", "a.gz", "a.jsonl"):
        assert list(read_lines(tmp_path / name)) == ["One line.", "Über alles"]


def test_files_that_cannot_be_read_name_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(LanguageModelError, match=r"a\.jsonl:2: cannot be read as text"):
        list(read_lines(tmp_path / "a.jsonl"))
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n["text"]\n')
    with pytest.raises(LanguageModelError, match=r"a\.jsonl:2: cannot be read as text"):
        list(read_lines(tmp_path / "a.jsonl"))
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\n")
    with pytest.raises(LanguageModelError, match=r"a\.txt:1: cannot be read as text"):
        list(read_lines(tmp_path / "a.txt"))
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:-9])
    with pytest.raises(LanguageModelError, match=r"a\.gz:\d: cannot be read as text"):
        list(read_lines(tmp_path / "a.gz"))
    (tmp_path / "a.gz").write_bytes(b"one\n")
    with pytest.raises(LanguageModelError, match=r"a\.gz:1: cannot be read as text"):
        list(read_lines(tmp_path / "a.gz"))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("I SAW IT'S MINE AND I'LL GO", "I saw it's mine and I'll go"),
        ("THIS IS IN ÅRHUS", "this is in århus"),
        ("He saw the BBC.", "He saw the BBC."),
        ("already small", "already small"),
        ("I", "I"),
        ("42", "42"),
        ("A 1", "A 1"),
    ],
)
def test_only_text_in_capitals_alone_becomes_small(text: str, written: str) -> None:
    assert sentence_case(text) == written


def test_a_model_of_text_knows_its_text() -> None:
    units = letter_units()
    lines = ["abc abc", "ABC", "abd", "a"]
    found = build_ngrams(lines, units, order=3)
    assert (found.sentences, found.tokens) == (4, 10 + 3)
    assert ("a", "b", "c") in grams_of(found.ngrams)
    automaton = build_automaton(found.ngrams, units, source="text").to("cpu")
    known, unlike = ([units.encode(text)] for text in ("abcabc", "hgfdcb"))
    assert perplexity(automaton, known) < 4 < 10 < perplexity(automaton, unlike)


def test_thresholds_reach_the_estimator() -> None:
    lines = ["ab", "ab", "cd"]
    assert ("c", "d") in grams_of(build_ngrams(lines, letter_units(), order=2).ngrams)
    assert ("c", "d") not in grams_of(build_ngrams(lines, letter_units(), order=2, prune=(0, 1)).ngrams)
    with pytest.raises(LanguageModelError, match="no text to estimate from"):
        build_ngrams([], letter_units(), order=2)
