"""One scorer for all slots: rows keep to themselves, lists change at any time, old states stay good."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from asr.decode import TokenScorer
from asr.errors import ConfigError, LanguageModelError, PhraseError
from asr.model import Model
from kernels.dispatch import KernelUnavailable
from lm_fusion.fusion import MAX_LM_WEIGHT, NODE, Fusion, Steering
from lm_fusion.ngram import Automaton
from lm_fusion.ngram_units import decoder_units
from tests.tiny_model import tiny_model

ARPA = """\\data\\
ngram 1=5
ngram 2=2

\\1-grams:
-1.5\t<unk>
-99\t<s>\t-0.3
-1.0\t</s>
-0.7\tĠd\t-0.2
-1.2\to\t-0.1

\\2-grams:
-0.2\tĠd\to
-0.5\t<s>\tĠd

\\end\\
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def lm(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Automaton:
    path = tmp_path_factory.mktemp("lm") / "tiny.arpa"
    path.write_text(ARPA)
    return Automaton.load(path, decoder_units(model.vocabulary, model.config.vocabulary))


def text_scores(fusion: TokenScorer, tokens: list[int], row: int = 0) -> list[float]:
    """The score of each token of a text."""
    states, rows, found = fusion.init_states(1), torch.tensor([row]), []
    for token in tokens:
        found.append(float(fusion.scores(states, rows)[0, token]))
        states = fusion.advance(states, rows, torch.tensor([token]))
    return found


# A boost of 3: the pieces of "dog" have a letter each, and so a third of it.


def test_phrases_of_each_row(model: Model) -> None:
    fusion = Fusion.of(model, slots=3)
    fusion.steer(0, Steering(phrases=fusion.builder.build(["dog"], boost=3.0)))
    fusion.steer(1, Steering(phrases=fusion.builder.build(["dot"], boost=5.0)))
    dog, dot = model.vocabulary.encode(" dog"), model.vocabulary.encode(" dot")
    assert text_scores(fusion, dog, 0) == [1, 1, 1]
    assert text_scores(fusion, dot, 0) == [1, 1, -2]
    five = round(1024 * 5 / 3) / 1024
    assert text_scores(fusion, dog, 1) == [five, five, -2 * five]
    assert text_scores(fusion, dot, 1) == [five, five, five]
    assert text_scores(fusion, dog, 2) == [0, 0, 0]
    # Rows in one call, in any order and one of them twice: each as alone.
    rows = torch.tensor([2, 1, 0, 1])
    scores = fusion.scores(fusion.init_states(4), rows)
    for at, row in enumerate(rows):
        assert torch.equal(scores[at], fusion.scores(fusion.init_states(1), row[None])[0])


def test_nothing_steers_to_exactly_zero(model: Model, lm: Automaton) -> None:
    rows = torch.arange(2)
    for fusion in (Fusion.of(model, slots=2), Fusion.of(model, slots=2, lm=lm, lm_weight=0.0)):
        states = fusion.advance(fusion.init_states(2), rows, torch.tensor([5, 6]))
        scores = fusion.scores(states, rows)
        assert torch.equal(scores.view(torch.int32), torch.zeros_like(scores).view(torch.int32))


def test_rows_of_weight_zero_are_not_touched_by_their_neighbours(model: Model, lm: Automaton) -> None:
    fusion = Fusion.of(model, slots=2, lm=lm, lm_weight=0.0)
    fusion.steer(1, Steering(lm_weight=0.7))
    scores = fusion.scores(fusion.init_states(2), torch.arange(2))
    assert not scores[0].any()
    assert scores[1].all()


def test_the_ngram_and_phrases_add_up(model: Model, lm: Automaton) -> None:
    fusion = Fusion.of(model, slots=1, lm=lm, lm_weight=0.5, phrases=["dog"], boost=3.0)
    tokens = model.vocabulary.encode(" dog")
    states = lm.init_states(1)
    for token, score in zip(tokens, text_scores(fusion, tokens), strict=True):
        said, after = lm.advance(states)
        assert score == pytest.approx(1.0 + 0.5 * float(said[0, token]))
        states = after[:, token].long()


def test_a_list_changes_at_the_next_step_and_old_states_stay_good(model: Model) -> None:
    fusion = Fusion.of(model, slots=1)
    one, other = (fusion.builder.build([phrase], boost=3.0) for phrase in ("dog", "dot"))
    d, o, g = model.vocabulary.encode(" dog")
    rows = torch.tensor([0])
    fusion.steer(0, Steering(phrases=one))
    before = fusion.advance(fusion.init_states(1), rows, torch.tensor([d]))
    fusion.steer(0, Steering(phrases=other))
    assert not fusion.scores(before, rows)[0, [o, g]].any()  # " d" was of the other list: nothing is under way
    assert float(fusion.scores(before, rows)[0, d]) == 1
    after = fusion.advance(before, rows, torch.tensor([d]))
    assert float(fusion.scores(after, rows)[0, o]) == 1
    # A weight alone changes no list: what is under way goes on.
    fusion.steer(0, Steering(phrases=other, lm_weight=0.0))
    assert float(fusion.scores(after, rows)[0, o]) == 1


def test_a_list_set_after_a_border_knows_the_border(model: Model) -> None:
    fusion = Fusion.of(model, slots=1)
    rows = torch.tensor([0])
    quote, letter = (torch.tensor(model.vocabulary.encode(text)) for text in ("(", "a"))
    states = [fusion.advance(fusion.init_states(1), rows, token) for token in (quote, letter)]
    fusion.steer(0, Steering(phrases=fusion.builder.build(["dog"], boost=3.0)))
    bare = model.vocabulary.encode("dog")[0]
    assert [float(fusion.scores(state, rows)[0, bare]) for state in (fusion.init_states(1), *states)] == [1, 1, 0]


def test_a_row_that_nobody_steers_has_the_default(model: Model) -> None:
    fusion = Fusion.of(model, slots=2, phrases=["dog"], boost=3.0)
    dog = model.vocabulary.encode(" dog")
    fusion.steer(0, Steering())
    assert (text_scores(fusion, dog, 0), text_scores(fusion, dog, 1)) == ([0, 0, 0], [1, 1, 1])
    fusion.steer(0, None)
    assert text_scores(fusion, dog, 0) == [1, 1, 1]


def test_states_are_values(model: Model, lm: Automaton) -> None:
    fusion = Fusion.of(model, slots=2, lm=lm, phrases=["dog"])
    states, rows = fusion.init_states(2), torch.arange(2)
    kept = states.clone()
    after = fusion.advance(states, rows, torch.tensor(model.vocabulary.encode(" dog")[:2]))
    fusion.scores(after, rows)
    assert torch.equal(states, kept)
    assert not torch.equal(after[:, NODE], kept[:, NODE])
    assert (states.shape, states.dtype) == ((2, 4), torch.int64)


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_backends_are_equal_and_reported(model: Model, lm: Automaton, backend: str) -> None:
    chosen = Fusion.of(model, slots=1, lm=lm, phrases=["dog"])
    fusion = Fusion(slots=1, builder=chosen.builder, lm=lm, default=chosen.default, backend=backend)
    assert fusion.describe()["phrases_backend"] == backend
    dog = model.vocabulary.encode(" dogs")
    assert text_scores(fusion, dog) == text_scores(chosen, dog)
    with pytest.raises(KernelUnavailable, match="no backend 'fast'"):
        Fusion(slots=1, builder=chosen.builder, backend="fast")


def test_the_default_backend_is_the_devices(model: Model) -> None:
    assert Fusion.of(model, slots=1).describe() == {"phrases_backend": "numba", "lm": None}


def test_what_cannot_steer_is_refused(model: Model, lm: Automaton, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lm_weight is 0\.1, but there is no n-gram model"):
        Fusion.of(model, slots=1, lm_weight=0.1)
    for weight in (-0.1, MAX_LM_WEIGHT + 0.1, float("nan")):
        with pytest.raises(ConfigError, match=r"must be from 0 to 2\.0"):
            Steering(lm_weight=weight)
    with pytest.raises(PhraseError, match=r"must be from 0 to 5\.0"):
        Fusion.of(model, slots=1, phrases=["a"], boost=9)
    fewer = type("Fewer", (), {"opens": torch.zeros(3, dtype=torch.bool)})()
    builder = Fusion.of(model, slots=1).builder
    builder.spelling = fewer
    with pytest.raises(LanguageModelError, match="pieces, the recogniser has 3"):
        Fusion(slots=1, builder=builder, lm=lm)


def test_a_model_file_is_read(model: Model, lm: Automaton, tmp_path: Path) -> None:
    path = tmp_path / "tiny.lm"
    lm.save(path)
    fusion = Fusion.of(model, slots=1, lm=path, lm_weight=1.0)
    assert fusion.lm is not None
    said: Tensor = lm.advance(lm.init_states(1))[0]
    assert torch.equal(fusion.scores(fusion.init_states(1), torch.tensor([0])), said)
