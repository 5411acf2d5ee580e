"""N-grams out of KenLM by asking: the same scores as from the ARPA file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from asr.errors import LanguageModelError
from lm_fusion.arpa import read_arpa, write_arpa
from lm_fusion.ngram import build_automaton
from lm_fusion.ngram_kenlm import read_kenlm
from lm_fusion.ngram_units import Units
from tests.lm_fusion.ngram_cases import grams_of, letter_units, random_ngrams

FIXTURE = Path(__file__).resolve().parent / "lmplz.arpa"


def fixture_units() -> Units:
    words = tuple(word for word in read_arpa(FIXTURE).words if word not in ("<unk>", "<s>", "</s>"))
    return Units("decoder", words, lambda text: [words.index(word) for word in text.split()], "")


def test_the_fixture_by_asking() -> None:
    pytest.importorskip("kenlm")
    asked, read = read_kenlm(FIXTURE, fixture_units()), read_arpa(FIXTURE)
    assert asked.counts == read.counts
    first, second = grams_of(asked), grams_of(read)
    assert first.keys() == second.keys()
    differences = [abs(a - b) for gram in first for a, b in zip(first[gram], second[gram], strict=True)]
    assert max(differences) < 1e-5


@pytest.mark.parametrize("seed", range(6))
def test_the_automaton_by_asking(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("kenlm")
    path = tmp_path / "random.arpa"
    ngrams = random_ngrams(np.random.default_rng(seed), 2 + seed % 4, unknown=seed % 2 == 0)
    write_arpa(ngrams, path)
    asked = build_automaton(read_kenlm(path, letter_units()), letter_units(), source="asked").to("cpu")
    read = build_automaton(ngrams, letter_units(), source="read").to("cpu")
    states = [asked.init_states(1), read.init_states(1)]
    for token in np.random.default_rng(seed).integers(8, size=20).tolist():
        scores = [automaton.advance(state)[0] for automaton, state in zip((asked, read), states, strict=True)]
        torch.testing.assert_close(*scores, atol=1e-4, rtol=0)
        ends = [automaton.final(state) for automaton, state in zip((asked, read), states, strict=True)]
        torch.testing.assert_close(*ends, atol=1e-4, rtol=0)
        states = [
            automaton.advance_by(state, torch.tensor([token]))[1]
            for automaton, state in zip((asked, read), states, strict=True)
        ]


def test_a_model_that_is_too_large_is_refused() -> None:
    pytest.importorskip("kenlm")
    with pytest.raises(
        LanguageModelError, match=r"takes 1369 queries or more, at most 1000 are made; give the ARPA file"
    ):
        read_kenlm(FIXTURE, fixture_units(), most_queries=1000)


def test_a_file_that_kenlm_cannot_read(tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    (tmp_path / "model.bin").write_bytes(b"nothing")
    with pytest.raises(LanguageModelError, match=r"model\.bin: Cannot read model"):
        read_kenlm(tmp_path / "model.bin", letter_units())


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(LanguageModelError, match=r"model\.bin needs the package kenlm .* or give the ARPA file"):
        read_kenlm("model.bin", letter_units())
