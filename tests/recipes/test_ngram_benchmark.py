"""The benchmark of the n-gram kernels: what it compares is the same, and its ratios are of medians."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from asr.errors import ConfigError
from lm_fusion.arpa import write_arpa
from lm_fusion.ngram import Automaton, build_automaton
from recipes import ngram_benchmark
from recipes.ngram_benchmark import KenlmLoop, entries, main, measure, rows_of, table
from tests.lm_fusion.ngram_cases import letter_units, random_ngrams


def automaton(seed: int = 0) -> Automaton:
    return build_automaton(random_ngrams(np.random.default_rng(seed), 3), letter_units(), source="random")


def test_rows_are_the_places_of_the_text() -> None:
    model = automaton()
    rows = rows_of(model, [[0, 1], [], [2, 3, 4]], 4)
    assert rows.histories == ((), (0,), (), (2,))
    assert rows.states[0] == rows.states[2] == model.begin
    assert rows.states[3] == model.advance(model.init_states(1))[1][0, 2]
    with pytest.raises(ConfigError, match="the text has 5 tokens, 6 are needed"):
        rows_of(model, [[0, 1], [], [2, 3, 4]], 6)


def test_all_run_in_turn_and_the_median_counts() -> None:
    model = automaton()
    rows = rows_of(model, [[0, 1, 2]], 2)
    ticks = iter([0, 4, 4, 5, 10, 16, 16, 18, 20, 25, 25, 34])  # reference 4, 6, 5; numba 1, 2, 9
    seconds, difference = measure(model, rows, ["reference", "numba"], None, repeats=3, clock=lambda: next(ticks))
    assert seconds == {"reference": [4, 6, 5], "numba": [1, 2, 9]}
    assert difference is None
    first, second = entries(2, seconds, None)
    assert (first["contestant"], first["times_as_long"], first["as"]) == ("reference", 2.5, "numba")
    assert (second["median_microseconds"], second["least_microseconds"]) == (2e6, 1e6)
    assert table([first, second]).splitlines()[1].split() == ["2", "reference", "5000000.0", "2.5x"]


def test_the_only_kernel_is_its_own_measure() -> None:
    (only,) = entries(1, {"reference": [3.0]}, None)
    assert (only["times_as_long"], only["as"]) == (1.0, "reference")


def test_scores_that_differ_stop_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = automaton()
    rows = rows_of(model, [[0, 1, 2]], 2)
    calls = count()
    monkeypatch.setattr(Automaton, "advance", lambda self, states: (torch.full((2, 8), float(next(calls))), states))
    with pytest.raises(ConfigError, match="the scores of reference, numba are not the same"):
        measure(model, rows, ["reference", "numba"], None)


def test_kenlm_is_asked_about_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    model = automaton(3)
    write_arpa(random_ngrams(np.random.default_rng(3), 3), tmp_path / "right.arpa")
    write_arpa(random_ngrams(np.random.default_rng(4), 3), tmp_path / "wrong.arpa")
    rows = rows_of(model, [[0, 1, 2], [3, 4]], 5)
    seconds, difference = measure(model, rows, ["numba"], KenlmLoop(tmp_path / "right.arpa", "abcdefgh"), repeats=2)
    assert list(seconds) == ["numba", "kenlm"]
    assert difference is not None
    assert difference < 1e-4
    with pytest.raises(ConfigError, match=r"from kenlm's, more than 0\.0001"):
        measure(model, rows, ["numba"], KenlmLoop(tmp_path / "wrong.arpa", "abcdefgh"), repeats=1)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ngram_benchmark, "units_of", lambda name, kind: letter_units())
    write_arpa(random_ngrams(np.random.default_rng(3), 3), tmp_path / "model.arpa")
    (tmp_path / "text.txt").write_text("abc\ndef\n")
    flags = ["--arpa", str(tmp_path / "model.arpa"), "--text", str(tmp_path / "text.txt"), "--no-kenlm"]
    assert main([*flags, "--batch", "1", "6", "--repeats", "2"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(entry["batch"], entry["contestant"]) for entry in found] == [
        (1, "reference"), (1, "numba"), (6, "reference"), (6, "numba")
    ]  # fmt: skip
    assert found[0]["order"] == 3
    assert main([*flags, "--batch", "7"]) == 2
    assert "the text has 6 tokens, 7 are needed" in capsys.readouterr().err
