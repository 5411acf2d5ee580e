"""The command `earlybird lm`: what it writes and what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from asr.checkpoint import save
from asr.errors import ConfigError
from asr.model import Model
from lm_fusion.arpa import read_arpa, write_arpa
from lm_fusion.ngram import Automaton
from server import lm_cli
from server.cli import main
from server.lm_cli import app, load_units, parse_prune
from tests.lm_fusion.ngram_cases import letter_units, random_ngrams
from tests.tiny_model import tiny_ctc_model, tiny_model

FLAGS = {
    "build": {"texts", "--out", "--order", "--prune", "--model", "--units", "--arpa", "--dev"},
    "convert": {"source", "--out", "--model", "--units"},
    "mix": {"first", "second", "--out", "--weight", "--model", "--units", "--arpa"},
}


def test_the_flags_are_those_that_are_documented() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert {name: {o for p in commands[name].params for o in p.opts} for name in FLAGS} == FLAGS


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Letters are the tokens of every model; gives what was asked for."""
    asked: list[tuple[str, str]] = []

    def load(model: str, units: str) -> object:
        asked.append((model, units))
        return letter_units()

    monkeypatch.setattr(lm_cli, "load_units", load)
    return asked


def text_file(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text("abc abd\nABC\n\nbad cab\n")
    return path


def test_build(tmp_path: Path, letters: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    out, arpa = tmp_path / "token.lm", tmp_path / "token.arpa"
    text = text_file(tmp_path)
    flags = f"--out {out} --order 3 --prune 0,0,1 --arpa {arpa} --dev {text} --model other --units ctc"
    assert main(["lm", "build", str(text), str(text), *flags.split()]) == 0
    assert letters == [("other", "ctc")]
    said, warned = capsys.readouterr()
    assert said.startswith(f"{out}: 6 sentences, 30 tokens, 7 + ")
    assert f"\n{text}: perplexity " in said
    assert said.endswith(" a token, 3 sentences\n")
    assert warned.startswith("warning: the discounts of order 1")
    automaton = Automaton.load(out, letter_units())
    assert (automaton.order, read_arpa(arpa).order) == (3, 3)
    states = automaton.init_states(1)
    from_arpa = Automaton.load(arpa, letter_units())
    assert automaton.advance(states)[0].tolist() == from_arpa.advance(from_arpa.init_states(1))[0].tolist()


def test_convert(tmp_path: Path, letters: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    arpa, out = tmp_path / "token.arpa.gz", tmp_path / "token.lm"
    ngrams = random_ngrams(np.random.default_rng(0), 3)
    write_arpa(ngrams, arpa)
    assert main(["lm", "convert", str(arpa), "--out", str(out)]) == 0
    assert capsys.readouterr() == (f"{out}: {' + '.join(map(str, ngrams.counts))} n-grams\n", "")
    assert Automaton.load(out, letter_units()).order == 3
    assert letters == [("earlybird-en", "decoder")]


@pytest.mark.usefixtures("letters")
def test_convert_asks_kenlm_about_its_binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ngrams = random_ngrams(np.random.default_rng(1), 2)
    monkeypatch.setattr("lm_fusion.ngram_kenlm.read_kenlm", lambda path, units: ngrams)
    (tmp_path / "token.bin").write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0")
    assert main(["lm", "convert", str(tmp_path / "token.bin"), "--out", str(tmp_path / "token.lm")]) == 0
    assert Automaton.load(tmp_path / "token.lm", letter_units()).order == 2


@pytest.mark.usefixtures("letters")
def test_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = text_file(tmp_path)
    other = tmp_path / "other.txt"
    other.write_text("hhh\nhgh\n")
    for path in (text, other):
        assert main(["lm", "build", str(path), "--out", f"{path}.lm", "--order", "2", "--arpa", f"{path}.arpa"]) == 0
    out = tmp_path / "mixed.lm"
    flags = f"--out {out} --weight 0.9 --arpa {tmp_path / 'mixed.arpa'}"
    assert main(["lm", "mix", f"{text}.arpa", f"{other}.arpa", *flags.split()]) == 0
    assert f"{out}: " in capsys.readouterr().out
    scores, _ = Automaton.load(out, letter_units()).advance(Automaton.load(out, letter_units()).init_states(1))
    assert float(scores[0, 0]) > float(scores[0, 7])  # mostly the first: more a than h
    assert {"a", "h"} <= set(read_arpa(tmp_path / "mixed.arpa").words)


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "TEXT", "--out", "OUT", "--prune", "0,x"], "ConfigError: --prune is '0,x'; it must be numbers"),
        (["build", "TEXT", "--out", "OUT", "--order", "9"], "LanguageModelError: the order is 9; 2 to 6"),
        (["convert", "TEXT", "--out", "OUT"], "no \\data\\ header; an ARPA file is needed"),
        (["mix", "TEXT", "TEXT", "--out", "OUT", "--weight", "2"], "no \\data\\ header"),
    ],
)
def test_what_cannot_be_done_is_said_and_exits_with_2(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"TEXT": str(text_file(tmp_path)), "OUT": str(tmp_path / "out.lm")}
    assert main(["lm", *(paths.get(argument, argument) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.lm").exists()


def saved(make: Callable[[Path], Model], folder: Path) -> Model:
    (folder / "made").mkdir(parents=True)
    model = make(folder / "made")
    save(model, folder, "A model for tests.")
    return model


def test_the_units_are_a_models(tmp_path: Path) -> None:
    model = saved(tiny_ctc_model, tmp_path / "ctc")
    assert model.ctc_tokenizer is not None
    assert load_units(str(tmp_path / "ctc"), "ctc").names == model.ctc_tokenizer.pieces
    assert len(load_units(str(tmp_path / "ctc"), "decoder").names) == model.config.vocabulary
    saved(tiny_model, tmp_path / "plain")
    with pytest.raises(ConfigError, match="has no CTC head"):
        load_units(str(tmp_path / "plain"), "ctc")
    with pytest.raises(ConfigError, match="--units is 'words'; it must be decoder or ctc"):
        load_units(str(tmp_path / "plain"), "words")


@pytest.mark.parametrize("prune", ["", "0,", "-1", "1.5", "²"])
def test_numbers_that_are_none(prune: str) -> None:
    with pytest.raises(ConfigError, match="it must be numbers between commas"):
        parse_prune(prune)
