"""ARPA files: what is read, and what each fault is called."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from asr.errors import LanguageModelError
from lm_fusion.arpa import KENLM_MAGIC, read_arpa, write_arpa
from tests.lm_fusion.ngram_cases import grams_of, ngrams_of, random_ngrams

BIGRAMS = """\\data\\
ngram 1=4
ngram 2=3

\\1-grams:
-1.5\t<unk>
-99\t<s>\t-0.5
-0.25\t</s>
-0.75\ta\t-0.125

\\2-grams:
-0.5\t<s> a
-1\ta a
-2\ta </s>

\\end\\
"""
GRAMS = {
    ("<unk>",): (-1.5, 0.0),
    ("<s>",): (-99.0, -0.5),
    ("</s>",): (-0.25, 0.0),
    ("a",): (-0.75, -0.125),
    ("<s>", "a"): (-0.5, 0.0),
    ("a", "a"): (-1.0, 0.0),
    ("a", "</s>"): (-2.0, 0.0),
}


def write(folder: Path, text: str) -> Path:
    path = folder / "model.arpa"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_what_it_says(tmp_path: Path) -> None:
    ngrams = read_arpa(write(tmp_path, BIGRAMS))
    assert (ngrams.order, ngrams.counts) == (2, (4, 3))
    assert ngrams.words == ("<unk>", "<s>", "</s>", "a")
    assert grams_of(ngrams) == GRAMS
    assert [ids.dtype for ids in ngrams.ids] == [np.int32, np.int32]


@pytest.mark.parametrize(
    "text",
    [
        BIGRAMS.replace("\n", "\r\n"),
        BIGRAMS.replace("\t", "  "),
        BIGRAMS.replace("\n\n", "\n"),
        "Trained on nothing.\nngram 1=7\n\n" + BIGRAMS,
        BIGRAMS.replace("ngram 1=4", "ngram  1 = 4"),
        BIGRAMS.removesuffix("\n") + "\n\nwhatever follows",
        BIGRAMS.replace("-99", "-inf"),
        BIGRAMS.replace("-1.5\t<unk>", "-1.5\t<unk>\t0"),
    ],
    ids=["CRLF", "spaces", "no blank lines", "preface", "loose header", "epilogue", "-inf", "back-off of 0"],
)
def test_the_same_in_other_clothes(tmp_path: Path, text: str) -> None:
    assert grams_of(read_arpa(write(tmp_path, text))) == GRAMS


def test_gzipped_whatever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    path.write_bytes(gzip.compress(BIGRAMS.encode()))
    assert grams_of(read_arpa(path)) == GRAMS
    path.write_bytes(gzip.compress(BIGRAMS.encode())[:-20])
    with pytest.raises(LanguageModelError, match=r"model\.arpa: the gzip file is damaged or cut off"):
        read_arpa(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ngram 2=3", "ngram 2=4", ":16: there are 3 2-grams, the header says 4"),
        ("ngram 1=4", "ngram 1=3", ":11: there are 4 1-grams, the header says 3"),
        ("ngram 2=3", "ngram 3=3", ":3: expected the count of 2-grams, got 'ngram 3=3'"),
        ("ngram 2=3\n", "", ":6: expected a probability and 1 words, got '-99\\t<s>\\t-0.5'"),
        ("ngram 1=4\nngram 2=3\n", "", ":3: the header has 0 orders; 1 to 7 can be used"),
        ("ngram 2=3", "".join(f"ngram {n}=1\n" for n in range(2, 9)), ":12: the header has 8 orders; 1 to 7"),
        ("\\2-grams:", "\\3-grams:", ":11: expected \\2-grams:, got '\\\\3-grams:'"),
        ("\\1-grams:", "", ":6: expected \\1-grams:, got '-1.5\\t<unk>'"),
        ("\\data\\", "data", ":16: no \\data\\ header; an ARPA file is needed"),
        ("\\end\\\n", "", ":14: expected \\end\\, got the end of the file"),
        ("-1\ta a\n-2\ta </s>\n\n\\end\\\n", "", ":12: there are 1 2-grams, the header says 3"),
        ("-1\ta a", "-1\ta b", ":13: the word 'b' is not among the 1-grams"),
        ("-1\ta a", "-1\ta", ":13: expected a probability and 2 words, got '-1\\ta'"),
        ("-1\ta a", "-1\ta a\t-0.5", ":13: expected a probability and 2 words, got '-1\\ta a\\t-0.5'"),
        ("-0.25\t</s>", "</s>", ":8: expected a probability and 1 words, with or without a back-off, got '</s>'"),
        ("-1\ta a", "x\ta a", ":13: expected numbers for probability and back-off, got 'x\\ta a'"),
        ("-0.125", "-0.1.5", ":9: expected numbers for probability and back-off, got '-0.75\\ta\\t-0.1.5'"),
        ("-1\ta a", "1\ta a", ":13: the log10 probability is 1.0 (at most 0), the back-off 0.0"),
        ("-1\ta a", "nan\ta a", ":13: the log10 probability is nan (at most 0)"),
        ("-0.125", "inf", ":9: the log10 probability is -0.75 (at most 0), the back-off inf"),
        ("-0.25\t</s>", "-0.25\t<s>", ":8: the 1-gram '<s>' stands twice"),
    ],
)
def test_faults_name_their_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in BIGRAMS
    with pytest.raises(LanguageModelError) as caught:
        read_arpa(write(tmp_path, BIGRAMS.replace(old, new, 1)))
    assert str(caught.value).startswith(f"{tmp_path / 'model.arpa'}{message}")


def test_what_is_no_arpa_file_at_all(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    path.write_bytes(KENLM_MAGIC + b" version 5\n\0")
    with pytest.raises(LanguageModelError, match=r"is a KenLM binary, which does not say .* give the ARPA file"):
        read_arpa(path)
    path.write_bytes(b"")
    with pytest.raises(LanguageModelError, match=r"model\.arpa:0: no \\data\\ header"):
        read_arpa(path)
    path.write_bytes(BIGRAMS.replace("\ta", "\t\u00e4").replace(" a", " \u00e4").encode("latin-1"))
    with pytest.raises(LanguageModelError, match=r"a word is not UTF-8: b'\\xe4'"):
        read_arpa(path)
    with pytest.raises(OSError, match="nowhere"):
        read_arpa(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
@pytest.mark.parametrize("order", [1, 3, 7])
def test_what_is_written_is_read(tmp_path: Path, name: str, order: int) -> None:
    ngrams = random_ngrams(np.random.default_rng(order), order, holes=True)
    write_arpa(ngrams, tmp_path / name)
    assert grams_of(read_arpa(tmp_path / name)) == grams_of(ngrams)
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b" if name.endswith("gz") else b"\\data\\\nngram 1=")


@pytest.mark.parametrize("word", ["", "a b", "a\u00a0b", "\n"])
def test_words_that_arpa_cannot_hold(tmp_path: Path, word: str) -> None:
    ngrams = ngrams_of({"a": (-1.0, 0.0)})
    bad = type(ngrams)(words=(word,), ids=ngrams.ids, log10=ngrams.log10, backoff=ngrams.backoff)
    with pytest.raises(LanguageModelError, match="ARPA cannot hold a word that is empty or has white space"):
        write_arpa(bad, tmp_path / "model.arpa")
