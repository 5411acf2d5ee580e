"""The automaton: equal to the definition of back-off and to KenLM, saved and loaded, refused where it does not fit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from asr.errors import KernelUnavailable, LanguageModelError
from lm_fusion.arpa import NGrams, read_arpa, write_arpa
from lm_fusion.ngram import Automaton, build_automaton, log_probability, perplexity
from lm_fusion.ngram_units import Units
from tests.lm_fusion.ngram_cases import LETTERS, grams_of, letter_units, ngrams_of, random_ngrams, score

HERE = Path(__file__).resolve().parent
LN10 = math.log(10)
BACKENDS = ("reference", "numba")
FIXTURE = HERE / "lmplz.arpa"
TEXT = (HERE / "lmplz.txt").read_text(encoding="utf-8").splitlines()


def fixture_units(*, more: tuple[str, ...] = ()) -> Units:
    names = tuple(dict.fromkeys(" ".join(TEXT).split())) + more
    return Units("decoder", names, lambda text: [names.index(word) for word in text.split()], "")


def check_everywhere(automaton: Automaton, ngrams: NGrams, history: str, *, units: Units, begin: bool) -> None:
    """Every token and the end, behind every prefix of a history, against the definition."""
    grams = grams_of(ngrams)
    states = automaton.init_states(1) if begin else torch.zeros(1, dtype=torch.int64)
    context: tuple[str, ...] = ("<s>",) if begin else ()
    for word in (*history, ""):
        scores, targets = automaton.advance(states)
        expected = [LN10 * score(grams, context, token, ngrams.order) for token in units.names]
        assert scores[0].tolist() == pytest.approx(expected, abs=1e-4)
        end = LN10 * score(grams, context, "</s>", ngrams.order)
        assert float(automaton.final(states)) == pytest.approx(end, abs=1e-4)
        if word:
            token = units.names.index(word)
            one, states = automaton.advance_by(states, torch.tensor([token]))
            assert (float(one), int(states)) == (float(scores[0, token]), int(targets[0, token]))
            context = (*context, word)


@given(
    seed=st.integers(0, 2**31),
    order=st.integers(1, 7),
    unknown=st.booleans(),
    holes=st.booleans(),
    begin=st.booleans(),
    history=st.text(LETTERS, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_scores_are_those_of_the_definition(
    seed: int, order: int, unknown: bool, holes: bool, begin: bool, history: str
) -> None:
    ngrams = random_ngrams(np.random.default_rng(seed), order, unknown=unknown, holes=holes)
    units = letter_units()
    for backend in BACKENDS:
        automaton = build_automaton(ngrams, units, source="random").to("cpu", backend)
        check_everywhere(automaton, ngrams, history, units=replace(units), begin=begin)


@pytest.mark.parametrize("order", range(1, 8))
def test_along_the_models_own_ngrams(order: int) -> None:
    ngrams = random_ngrams(np.random.default_rng(order), order, holes=True)
    automaton = build_automaton(ngrams, letter_units(), source="random").to("cpu", "numba")
    for gram in grams_of(ngrams):
        letters = "".join(word if word in LETTERS else "h" for word in gram if word not in ("<s>", "</s>"))
        check_everywhere(automaton, ngrams, letters, units=letter_units(), begin=gram[0] == "<s>")


def test_known_answers() -> None:
    ngrams = ngrams_of(
        {"<s>": (-99, -0.5), "</s>": (-1, 0), "a": (-0.25, -0.125), "b": (-0.75, 0), "<s> a": (-0.5, 0)}
        | {"a b": (-0.0625, 0), "a </s>": (-2, 0)}
    )
    automaton = build_automaton(ngrams, letter_units("abc"), source="known").to("cpu")
    scores, states = automaton.advance(automaton.init_states(1))
    assert scores[0].tolist() == pytest.approx([-0.5 * LN10, -1.25 * LN10, -100.5 * LN10])  # no <unk>: -100
    assert float(automaton.final(automaton.init_states(1))) == pytest.approx(-1.5 * LN10)
    after_a = states[:, 0].long()
    assert automaton.advance(after_a)[0][0].tolist() == pytest.approx([-0.375 * LN10, -0.0625 * LN10, -100.125 * LN10])
    assert float(automaton.final(after_a)) == pytest.approx(-2 * LN10)
    assert states[0, 2] == 0  # after a word that is not known: no history
    total, predictions = log_probability(automaton, [[0, 1], [1]])
    assert predictions == 5
    assert total == pytest.approx(LN10 * (-0.5 - 0.0625 - 1 - 1.25 - 1))
    assert perplexity(automaton, [[0, 1], [1]]) == pytest.approx(math.exp(-total / 5))


def test_states_that_say_nothing_are_left_out() -> None:
    grams = {"<unk>": (-1, 0), "<s>": (-99, 0), "</s>": (-1, 0), "a": (-1, 0), "b": (-1, -0.5), "a a": (-1, 0)}
    automaton = build_automaton(ngrams_of(grams), letter_units("ab"), source="small")
    assert automaton.tables.states == 3  # the empty history, a (an n-gram goes on), b (its back-off weighs)
    assert automaton.begin == 0
    assert automaton.describe() == {
        "order": 2, "tokens": 2, "states": 3, "arcs": 1, "backend": "reference", "device": "cpu"
    }  # fmt: skip


def test_ngrams_with_words_that_are_no_tokens_are_left_out() -> None:
    grams: dict[str, tuple[float, float]] = dict.fromkeys("abcdefghijx", (-1.0, 0.0))
    grams |= {"</s>": (-1.0, 0.0), "a x": (-1.0, 0.0), "x a": (-1.0, 0.0), "a b": (-0.5, 0.0)}
    automaton = build_automaton(ngrams_of(grams), letter_units("abcdefghij"), source="small")
    assert len(automaton.tables.label) == 1
    with pytest.raises(LanguageModelError, match=r"small: of its 11 words 9 \(81\.8%\) are tokens"):
        build_automaton(ngrams_of(grams), letter_units("abcdefghi"), source="small")


def test_an_ngram_that_stands_twice() -> None:
    ngrams = ngrams_of({"a": (-1, 0), "b": (-1, 0), "a b": (-1, 0), "b b": (-1, 0)})
    twice = replace(ngrams, ids=(ngrams.ids[0], np.array([[0, 1], [0, 1]], dtype=np.int32)))
    with pytest.raises(LanguageModelError, match="one of the model's 2 2-grams stands twice"):
        build_automaton(twice, letter_units("ab"), source="twice")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_of_lmplz_scores_as_in_kenlm(backend: str) -> None:
    # tests/lm_fusion/README.md has the commands; scores by kenlm 0.3.0: Model.score(text), and with bos=eos=False.
    units = fixture_units(more=("é", "q", "z", "X"))
    automaton = Automaton.load(FIXTURE, units, backend=backend)
    known = {
        "t h e ▁ e n d .": (-7.310135841369629, -9.267744064331055),
        "q u i z": (-10.049586296081543, -8.005849838256836),
        "a": (-3.52810001373291, -1.2705938816070557),
        "é ▁ X": (-8.119319915771484, -6.075584888458252),
    }
    for text, (whole, inside) in known.items():
        ids = units.encode(text)
        total, _ = log_probability(automaton, [ids])
        assert total == pytest.approx(LN10 * whole, abs=1e-4)
        states, part = torch.zeros(1, dtype=torch.int64), 0.0
        for token in ids:
            scores, states = automaton.advance_by(states, torch.tensor([token]))
            part += float(scores)
        assert part == pytest.approx(LN10 * inside, abs=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ["lmplz", *range(8)])
def test_every_score_equals_kenlms(backend: str, case: str | int, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    path, units, text = FIXTURE, fixture_units(more=("é",)), TEXT[3].split()
    if isinstance(case, int):
        rng = np.random.default_rng(case)
        path, units, text = tmp_path / "random.arpa", letter_units(), rng.choice([*LETTERS], size=12).tolist()
        write_arpa(random_ngrams(rng, 2 + case % 5, unknown=case % 3 > 0), path)
    model = kenlm.Model(str(path))
    automaton = Automaton.load(path, units, backend=backend)
    states, state = automaton.init_states(1), kenlm.State()
    model.BeginSentenceWrite(state)
    for word in text:
        scores, _ = automaton.advance(states)
        expected = [LN10 * model.BaseScore(state, name, kenlm.State()) for name in units.names]
        assert scores[0].tolist() == pytest.approx(expected, abs=1e-4)
        end = LN10 * model.BaseScore(state, "</s>", kenlm.State())
        assert float(automaton.final(states)) == pytest.approx(end, abs=1e-4)
        after = kenlm.State()
        model.BaseScore(state, word, after)
        state = after
        _, states = automaton.advance_by(states, torch.tensor([units.names.index(word)]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_saved_is_loaded_and_right_from_the_first_call(tmp_path: Path, seed: int, backend: str) -> None:
    ngrams = random_ngrams(np.random.default_rng(seed), 3, holes=True)
    built = build_automaton(ngrams, letter_units(), source="random").to("cpu", "reference")
    built.save(tmp_path / "model.lm")
    states = torch.arange(built.tables.states)
    expected = built.advance(states)
    loaded = Automaton.load(tmp_path / "model.lm", letter_units(), backend=backend)
    for one, other in zip(loaded.advance(states), expected, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(loaded.final(states), built.final(states))
    assert (loaded.begin, loaded.order, loaded.backend) == (built.begin, 3, backend)
    assert loaded.vocabulary == len(LETTERS)


def test_the_backend_is_the_devices_or_the_one_that_was_named(tmp_path: Path) -> None:
    build_automaton(ngrams_of({"a": (-1, 0)}), letter_units("a"), source="small").save(tmp_path / "model.lm")
    assert Automaton.load(tmp_path / "model.lm", letter_units("a")).backend == "numba"
    with pytest.raises(
        KernelUnavailable, match=r"'ngram\.advance' has no backend 'fast'; it has cuda, numba, reference"
    ):
        Automaton.load(tmp_path / "model.lm", letter_units("a"), backend="fast")


def test_a_model_for_other_tokens_is_refused(tmp_path: Path) -> None:
    build_automaton(ngrams_of({"a": (-1, 0)}), letter_units("a"), source="small").save(tmp_path / "model.lm")
    with pytest.raises(LanguageModelError, match=r"model\.lm was made for other tokens \(1, \w+\) than the decoder"):
        Automaton.load(tmp_path / "model.lm", letter_units("ab"))


def damage(path: Path, change: dict[str, torch.Tensor], *, about: dict[str, Any] | None = None) -> None:
    facts = {"begin": 0, "order": 2, "depth": 1, "fingerprint": letter_units("ab").fingerprint} | (about or {})
    tensors = load_file(path) | change
    save_file(tensors, path, metadata={"earlybird_ngram": "1", "about": json.dumps(facts)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": torch.tensor([9], dtype=torch.int32)}, "a state or label is out of range"),
        ({"label": torch.tensor([-1], dtype=torch.int32)}, "a state or label is out of range"),
        ({"first_arc": torch.tensor([0, 0, 5])}, "a state or label is out of range"),
        ({"first_arc": torch.tensor([1, 0, 1])}, "the states' arcs are out of order"),
        ({"backoff_to": torch.tensor([0, 1], dtype=torch.int32)}, "back-off leads round in a circle"),
        ({"score": torch.zeros(2)}, "the arrays' sizes do not fit together"),
        ({"final_score": torch.zeros(3)}, "the arrays' sizes do not fit together"),
    ],
)
def test_a_damaged_file_is_refused_before_a_kernel_reads_it(
    tmp_path: Path, change: dict[str, torch.Tensor], message: str
) -> None:
    path = tmp_path / "model.lm"
    ngrams = ngrams_of({"a": (-1, -0.5), "b": (-1, 0), "a b": (-1, 0)})
    build_automaton(ngrams, letter_units("ab"), source="small").save(path)
    damage(path, {})
    assert Automaton.load(path, letter_units("ab")).tables.states == 2
    damage(path, change)
    with pytest.raises(LanguageModelError, match=rf"model\.lm is damaged: {message}"):
        Automaton.load(path, letter_units("ab"))


def test_what_is_no_automaton(tmp_path: Path) -> None:
    path = tmp_path / "model.lm"
    build_automaton(ngrams_of({"a": (-1, 0)}), letter_units("a"), source="small").save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(LanguageModelError, match=r"model\.lm is damaged or incomplete: SafetensorError"):
        Automaton.load(path, letter_units("a"))
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(LanguageModelError, match=r"not an n-gram automaton of format 1 \(got none\)"):
        Automaton.load(path, letter_units("a"))
    save_file({"x": torch.zeros(1)}, path, metadata={"earlybird_ngram": "2"})
    with pytest.raises(LanguageModelError, match=r"not an n-gram automaton of format 1 \(got 2\)"):
        Automaton.load(path, letter_units("a"))
    save_file({"x": torch.zeros(1)}, path, metadata={"earlybird_ngram": "1", "about": "{}"})
    with pytest.raises(LanguageModelError, match="damaged or incomplete: KeyError"):
        Automaton.load(path, letter_units("a"))
    path.write_text("hello")
    with pytest.raises(LanguageModelError, match=r"no \\data\\ header"):
        Automaton.load(path, letter_units("a"))


def test_perplexity_of_nothing() -> None:
    automaton = build_automaton(ngrams_of({"a": (-1, 0)}), letter_units("a"), source="small").to("cpu")
    assert log_probability(automaton, []) == (0.0, 0)
    with pytest.raises(LanguageModelError, match="perplexity needs at least one sentence"):
        perplexity(automaton, [])
    assert perplexity(automaton, [[]]) == pytest.approx(1e100, rel=1e-4)  # no </s>, no <unk>


def test_sentences_of_any_length_side_by_side() -> None:
    automaton = Automaton.load(FIXTURE, fixture_units())
    sentences = [fixture_units().encode(line) for line in TEXT] + [[]]
    together = log_probability(automaton, sentences)
    alone = [log_probability(automaton, [sentence]) for sentence in sentences]
    assert together[0] == pytest.approx(sum(total for total, _ in alone))
    assert together[1] == sum(count for _, count in alone)


def test_the_fixture_is_what_the_arrays_hold() -> None:
    assert read_arpa(FIXTURE).counts == (37, 238, 470, 58)


def test_a_model_without_an_end_ends_with_an_unknown_word() -> None:
    grams = {"<unk>": (-2.0, 0.0), "a": (-1.0, -0.5), "a a": (-1.0, 0.0)}
    automaton = build_automaton(ngrams_of(grams), letter_units("ab"), source="small").to("cpu", "reference")
    states = torch.tensor([0, int(automaton.advance(automaton.init_states(1))[1][0, 0])])
    assert automaton.final(states).tolist() == pytest.approx([-2 * LN10, -2.5 * LN10])
