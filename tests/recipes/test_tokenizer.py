"""Training the CTC vocabulary."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from asr.ctc_tokenizer import CtcTokenizer
from asr.errors import ConfigError
from recipes.tokenizer import cost, main, read_lines, train_tokenizer

# Every stem with every ending: enough in common for pieces longer than a letter.
STEMS = "walk talk jump play stay turn burn help need want clean clear start part rest nest".split()
LINES = [f"The {stem} and {stem}s of {stem}ing, {stem}ed, {stem}er's" for stem in STEMS]


def test_sources_are_read_by_their_suffix(tmp_path: Path) -> None:
    plain, zipped, manifest = tmp_path / "a.txt", tmp_path / "a.txt.gz", tmp_path / "a.jsonl"
    plain.write_text("one\n")
    zipped.write_bytes(gzip.compress(b"two\n"))
    entry = {"audio": "x.opus", "duration": 1.0, "text": "Three", "source": "s", "licence": "l"}
    no_text = {"audio": "y.opus", "duration": 1.0, "source": "s", "licence": "l"}
    manifest.write_text(json.dumps(entry) + "\n" + json.dumps(no_text) + "\n")
    assert [list(read_lines(path)) for path in (plain, zipped, manifest)] == [["one\n"], ["two\n"], ["Three"]]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_every_letter_is_a_piece_and_the_size_is_exact(tmp_path: Path, model_type: str) -> None:
    path = train_tokenizer(iter(LINES), size=60, folder=tmp_path / model_type, model_type=model_type)  # type: ignore[arg-type]
    tokenizer = CtcTokenizer(path)
    assert len(tokenizer.pieces) == 60
    # "q" and "z" are in no line.
    assert tokenizer.decode(tokenizer.encode(["quiz"])[0]) == "quiz"
    assert any(len(piece.strip("▁")) > 1 for piece in tokenizer.pieces[1:])  # and words are not only spelled


def test_the_same_text_gives_the_same_pieces(tmp_path: Path) -> None:
    first, second = (CtcTokenizer(train_tokenizer(iter(LINES), size=40, folder=tmp_path / name)) for name in "ab")
    assert first.pieces == second.pieces


def test_text_that_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the text has no words of a-z"):
        train_tokenizer(iter(["123", "..."]), size=40, folder=tmp_path)
    with pytest.raises(ConfigError, match="sentencepiece cannot make 5000 pieces of 16 lines"):
        train_tokenizer(iter(LINES), size=5000, folder=tmp_path)


def test_what_a_size_costs(tmp_path: Path) -> None:
    text, manifest = tmp_path / "text.txt", tmp_path / "clips.jsonl"
    text.write_text("\n".join(LINES))
    known = {"source": "s", "licence": "l"}
    entries = [
        {"audio": "a", "duration": 1.0, "text": "Walk", **known},
        {"audio": "b", "duration": 4.0, "text": "q, Q!", **known},
    ]
    manifest.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    small, large = (CtcTokenizer(train_tokenizer(iter(LINES), size=n, folder=tmp_path / str(n))) for n in (32, 60))
    walk, letter = (len(small.encode([word])[0]) for word in ("walk", "q"))
    total = walk + 2 * letter
    assert cost(small, [manifest]).startswith(f"{total / 3:.2f} pieces a word, {total / 5:.1f} a second, {walk:.1f} in")
    assert "a second" not in cost(small, [text])
    assert float(cost(large, [text]).split()[0]) < float(cost(small, [text]).split()[0])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(LINES))
    assert main(["--text", str(text), "--size", "40", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(tmp_path / "out" / "tokenizer.model")
    assert said.err.startswith("40 pieces: ")
    assert main(["--text", str(text), "--size", "9000", "--out", str(tmp_path / "out")]) == 2
    assert "error: sentencepiece cannot make 9000 pieces" in capsys.readouterr().err
