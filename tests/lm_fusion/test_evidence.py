"""Only what the CTC head has heard is boosted: sums stay exact, rows keep to themselves, without a head all counts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from asr.cross_recogniser import CrossRecogniser
from asr.ctc_tokenizer import CtcTokenizer
from asr.model import Model
from asr.slots import HEARING_STEPS, StreamEngine
from asr.units import FRAMES_PER_STEP
from lm_fusion.fusion import Fusion, Steering
from lm_fusion.phrases import DEFAULT_BOOST, UNHEARD_BOOST, Phrase, PhraseList
from tests.lm_fusion.test_fusion import text_scores
from tests.tiny_model import bursts, tiny_ctc_model, tiny_model

NOTHING_SAID = ""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_ctc_model(tmp_path_factory.mktemp("model"))


def sound(model: Model, text: str) -> Tensor:
    """[W, V'+1] of a head that is sure to have heard a text."""
    head = model.ctc_tokenizer
    assert isinstance(head, CtcTokenizer)
    labels = [head.blank]
    for word in head.encode(text.split()):
        for label in word:
            labels += [label, head.blank]
    return (60 * torch.eye(head.blank + 1)[labels]).log_softmax(-1)


def test_a_phrase_that_was_not_heard_scores_exactly_nothing(model: Model) -> None:
    fusion = Fusion.of(model, slots=1, phrases=["dog", "cat"], boost=3.0)
    dog, cat = model.vocabulary.encode(" dog"), model.vocabulary.encode(" cat")
    assert text_scores(fusion, dog) == text_scores(fusion, cat) == [1, 1, 1]  # before anything is said of what is heard
    fusion.hear(0, sound(model, "a dog"))
    assert (text_scores(fusion, dog), text_scores(fusion, cat)) == ([1, 1, 1], [0, 0, 0])
    fusion.hear(0, sound(model, "a cat"))
    assert (text_scores(fusion, dog), text_scores(fusion, cat)) == ([0, 0, 0], [1, 1, 1])
    fusion.hear(0, sound(model, NOTHING_SAID))
    scores = fusion.scores(fusion.init_states(1), torch.tensor([0]))
    assert torch.equal(scores.view(torch.int32), torch.zeros_like(scores).view(torch.int32))


def test_what_was_paid_is_given_back_when_the_phrase_is_no_longer_heard(model: Model) -> None:
    fusion = Fusion.of(model, slots=1, phrases=["dog"], boost=3.0)
    d, o, g = model.vocabulary.encode(" dog")
    rows, found = torch.tensor([0]), []
    states = fusion.init_states(1)
    for token, heard in ((d, "dog"), (o, NOTHING_SAID), (g, "dog")):
        fusion.hear(0, sound(model, heard))
        found.append(float(fusion.scores(states, rows)[0, token]))
        states = fusion.advance(states, rows, torch.tensor([token]))
    assert found == [1, -1, 3]


@pytest.mark.parametrize("seed", range(8))
def test_a_text_has_earned_what_was_complete_and_heard(model: Model, seed: int) -> None:
    phrases, boost = ("dog", "dot", "cat dog", "odd"), 3.0
    fusion = Fusion.of(model, slots=1, phrases=phrases, boost=boost)
    draw, rows = random.Random(seed), torch.tensor([0])
    words = [draw.choice([*phrases, "do", "cat", "doc", "o"]) for _ in range(6)]
    text = model.vocabulary.encode("".join(f" {word}" for word in words))
    states, total, earned = fusion.init_states(1), 0.0, 0.0
    for at, token in enumerate([*text, *model.vocabulary.encode(".")]):
        heard = [phrase for phrase in phrases if draw.random() < 0.5]
        fusion.hear(0, sound(model, " a ".join(heard)))
        if "cat dog" in heard:
            heard = list({*heard, "dog"})
        total += float(fusion.scores(states, rows)[0, token])
        states = fusion.advance(states, rows, torch.tensor([token]))
        for phrase in heard:
            pieces = model.vocabulary.encode(f" {phrase}")
            if text[: at + 1][-len(pieces) :] == pieces and at < len(text):
                earned += sum(round(boost * float(fusion.builder.spelling.weights[piece])) for piece in pieces)
    assert total == earned


def test_each_row_hears_for_itself_even_of_one_list(model: Model) -> None:
    fusion = Fusion.of(model, slots=3, phrases=["dog", "cat"], boost=3.0)
    dog, cat = model.vocabulary.encode(" dog"), model.vocabulary.encode(" cat")
    fusion.hear(0, sound(model, "dog"))
    fusion.hear(1, sound(model, "cat"))
    fusion.hear(1, sound(model, "cat a"))
    found = [[text_scores(fusion, text, row) for text in (dog, cat)] for row in range(3)]
    assert found == [[[1, 1, 1], [0, 0, 0]], [[0, 0, 0], [1, 1, 1]], [[1, 1, 1], [1, 1, 1]]]
    states, rows = fusion.init_states(3), torch.tensor([2, 0, 1])
    scores = fusion.scores(states, rows)
    for at, row in enumerate(rows):
        assert torch.equal(scores[at], fusion.scores(states[:1], row[None])[0])


def test_a_new_list_is_listened_for_anew(model: Model) -> None:
    fusion = Fusion.of(model, slots=1, phrases=["dog"], boost=3.0)
    fusion.hear(0, sound(model, NOTHING_SAID))
    fusion.steer(0, Steering(phrases=fusion.builder.build(["cat"], boost=3.0)))
    fusion.hear(0, sound(model, "cat"))
    assert text_scores(fusion, model.vocabulary.encode(" cat")) == [1, 1, 1]


def test_what_the_head_cannot_spell_counts_always(model: Model) -> None:
    phrases = ["r2d2", Phrase(text="dog", boost=6), "東京", "dog"]
    built = Fusion.of(model, slots=1).builder.build(phrases, boost=3.0)
    assert built.sounds is not None
    assert [bool(labels) for labels in built.sounds] == [False, True, False, True]
    fusion = Fusion.of(model, slots=1, phrases=["r2d2", "dog"], boost=3.0)
    fusion.hear(0, sound(model, NOTHING_SAID))
    assert sum(text_scores(fusion, model.vocabulary.encode(" r2d2"))) > 0
    assert sum(text_scores(fusion, model.vocabulary.encode(" dog"))) == 0


def test_without_a_head_nobody_listens(tmp_path: Path) -> None:
    deaf = tiny_model(tmp_path)
    fusion = Fusion.of(deaf, slots=1, phrases=["dog"], boost=3.0)
    assert fusion.default.phrases is not None
    assert fusion.default.phrases.sounds is None
    settings = deaf.settings(delay_ms=80, chunk_ms=160)
    engine = StreamEngine(deaf, slots=1, scorer=fusion)
    engine.step({engine.acquire(settings): bursts(0.16).numpy()})
    assert text_scores(fusion, deaf.vocabulary.encode(" dog")) == [1, 1, 1]
    careful = Fusion.of(deaf, slots=1, phrases=["dog"])  # what cannot be told apart is boosted less by default
    assert text_scores(careful, deaf.vocabulary.encode(" dog")) == [UNHEARD_BOOST / 3] * 3


def test_with_a_head_the_default_boost_is_larger(model: Model) -> None:
    fusion = Fusion.of(model, slots=1, phrases=["dog"])
    assert text_scores(fusion, model.vocabulary.encode(" dog")) == [round(1024 * DEFAULT_BOOST / 3) / 1024] * 3


class Listener(Fusion):
    """A Fusion that keeps what it hears."""

    kept: list[tuple[int, Tensor]]

    def hear(self, row: int, log_probs: Tensor) -> None:
        self.kept.append((row, log_probs.clone()))
        super().hear(row, log_probs)


def test_an_engine_tells_of_each_block_and_of_what_came_before(model: Model) -> None:
    fusion = Listener.of(model, slots=2, phrases=["dog"])
    assert isinstance(fusion, Listener)
    fusion.kept = []
    settings = model.settings(delay_ms=80, chunk_ms=160)
    engine = StreamEngine(model, slots=2, scorer=fusion)
    engine.acquire(settings)
    row, blocks = engine.acquire(settings), 25
    audio = bursts(0.16 * blocks, seed=3).numpy()
    for at in range(blocks):
        result = engine.step({row: audio[at * 2560 : (at + 1) * 2560]})[row]
    assert [row for row, _ in fusion.kept] == [1] * blocks
    lens = [len(log_probs) for _, log_probs in fusion.kept]
    assert result.log_probs is not None
    recogniser = model.recogniser
    assert isinstance(recogniser, CrossRecogniser)
    before = min(HEARING_STEPS, recogniser.anchors.keep_frames // FRAMES_PER_STEP)
    assert lens == [min(2 * at, before + 2) for at in range(1, blocks + 1)]
    assert max(lens) < len(result.log_probs)  # an engine that remembers less tells as much
    newest = fusion.kept[-1][1]
    assert torch.equal(newest, result.log_probs[-len(newest) :])


def tokens(model: Model, rows: int, phrases: list[PhraseList | None], audio: list[Tensor]) -> list[list[int]]:
    """What streams of one engine write, each with its own list."""
    fusion = Fusion.of(model, slots=rows)
    settings = model.settings(delay_ms=80, chunk_ms=160)
    engine = StreamEngine(model, slots=rows, scorer=fusion)
    taken = [engine.acquire(settings, Steering(phrases=each)) for each in phrases]
    found: list[list[int]] = [[] for _ in taken]
    for at in range(0, len(audio[0]) - 2559, 2560):
        results = engine.step({row: audio[row][at : at + 2560].numpy() for row in taken})
        for row in taken:
            found[row] += [step.token for step in results[row].steps]
    return found


def test_streams_of_a_batch_write_what_they_write_alone(model: Model) -> None:
    builder = Fusion.of(model, slots=1).builder
    shared = builder.build(["ta sa", "the don", *"abcdefg"], boost=5.0)
    audio = [bursts(1.6, seed=seed) for seed in (3, 5, 7)]
    lists = [shared, None, shared]
    together = tokens(model, 3, lists, audio)
    assert together == [tokens(model, 1, [each], [part])[0] for each, part in zip(lists, audio, strict=True)]
