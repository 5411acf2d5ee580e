"""Training of the learned gate: the schedule, the rows and labels of a forced stream, and a toy."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.checkpoint import load_checkpoint, save
from asr.config import GateConfig, SessionSettings
from asr.cross_recogniser import CrossRecogniser
from asr.delay_targets import due_step
from asr.errors import ConfigError
from asr.gate import AttentionGate, GateView, LearnedGate, Reading, read
from asr.model import CrossConfig, Model
from recipes import gate as recipe
from recipes.gate import Examples, fit, record, with_learned_gate
from recipes.teacher import TaughtWord
from tests.tiny_model import CHUNKS, bursts, tiny_additive_model, tiny_ctc_model, tiny_model

WORDS = [
    TaughtWord(text="the", pieces=(40, 41), start_ms=100, end_ms=320),
    TaughtWord(text="a", pieces=(42,), start_ms=320, end_ms=330),
    TaughtWord(text="don't", pieces=(43, 44, 45), start_ms=600, end_ms=900),
]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return with_learned_gate(tiny_model(tmp_path), hidden=6)


def parts(model: Model) -> tuple[CrossRecogniser, LearnedGate]:
    assert isinstance(model.recogniser, CrossRecogniser)
    gate = model.recogniser.gate
    assert isinstance(gate, LearnedGate)
    return model.recogniser, gate


# -- the schedule --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("delay", [1, 6])
def test_no_piece_is_written_before_its_word_is_due(delay: int, seed: int) -> None:
    items = recipe._schedule(WORDS, delay, 200, random.Random(seed))
    assert [piece for piece, _, _ in items] == [40, 41, 42, 43, 44, 45]
    ends = [320, 320, 330, 900, 900, 900]
    for (_, first, at), end in zip(items, ends, strict=True):
        assert due_step(end, delay) <= first <= at
    steps = [at for _, _, at in items]
    assert steps == sorted(set(steps))


def test_words_are_now_and_then_late_and_by_up_to_five_steps() -> None:
    late = set()
    for seed in range(200):
        items = recipe._schedule(WORDS[:1], 2, 200, random.Random(seed))
        late.add(items[0][2] - items[0][1])
    assert late == {0, 1, 2, 3, 4, 5}


def test_what_lies_behind_the_end_is_left_out() -> None:
    assert [piece for piece, _, _ in recipe._schedule(WORDS[:1], 1, 5, random.Random(0))] == [40]
    assert recipe._schedule([], 1, 5, random.Random(1)) == []


# -- rows ----------------------------------------------------------------------------------------------------------


def chosen(delay: int) -> SessionSettings:
    return SessionSettings(chunk=CHUNKS[1], delay_steps=delay)


def unbarred(view: GateView, config: GateConfig) -> Reading:
    reading = read(view, config)
    return replace(reading, barred=torch.zeros_like(reading.barred))


def test_a_row_is_due_from_its_step_until_the_piece_is_written(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "read", unbarred)
    monkeypatch.setattr(recipe, "HOLD_STEPS", 0)  # whatever the decoder says
    recogniser, gate = parts(model)
    examples = record(recogniser, gate, [(bursts(1.0, 3), WORDS)], [chosen(2)], random.Random(5))
    steps = 13 + recipe.TAIL_STEPS
    items = recipe._schedule(WORDS, 2, steps + 1, random.Random(5))
    expected, place = [], 0
    for step in range(steps):
        expected.append(float(place < len(items) and step >= items[place][1]))
        place += place < len(items) and step >= items[place][2]
    assert examples.due.tolist() == expected
    assert place == 6
    assert examples.hidden.shape == examples.around.shape == (steps, 16)
    assert examples.hidden.dtype == torch.float16
    assert examples.facts.shape == (steps, len(gate.ages) + 10)


def test_a_piece_that_the_decoder_does_not_say_may_be_held(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "read", unbarred)
    recogniser, gate = parts(model)
    never = replace(WORDS[0], pieces=(10,))  # a control character, which the model may not write
    settings, rng = [chosen(2)], random.Random(0)
    items = recipe._schedule([never], 2, 33, random.Random(0))
    examples = record(recogniser, gate, [(bursts(1.0, 3), [never])], settings, rng)
    assert examples.due.tolist() == [float(items[0][1] + recipe.HOLD_STEPS <= s <= items[0][2]) for s in range(33)]


def test_barred_rows_are_no_examples_and_clips_end_on_their_own(model: Model) -> None:
    recogniser, gate = parts(model)
    clips = [(bursts(1.0, 3), WORDS), (bursts(0.4, 4), WORDS[:1])]
    examples = record(recogniser, gate, clips, [chosen(2), chosen(6)], random.Random(5))
    rows = examples.due.shape[0]
    assert 0 < rows < 13 + 5 + 2 * recipe.TAIL_STEPS
    assert all(len(part) == rows for part in (examples.hidden, examples.around, examples.facts))
    assert bool(torch.isfinite(examples.facts).all())


def test_the_recogniser_s_gate_is_put_back(model: Model) -> None:
    recogniser, gate = parts(model)
    record(recogniser, gate, [(bursts(0.3), [])], [chosen(1)], random.Random(0))
    assert recogniser.gate is gate


def test_the_recogniser_s_gate_is_put_back_when_it_fails(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no memory")

    recogniser, gate = parts(model)
    monkeypatch.setattr(recogniser, "listen", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        record(recogniser, gate, [(bursts(0.3), [])], [chosen(1)], random.Random(0))
    assert recogniser.gate is gate


# -- learning ------------------------------------------------------------------------------------------------------


def toy(rows: int, dim: int, due: Callable[[Examples], Any]) -> Examples:
    torch.manual_seed(3)
    hidden, around = (torch.randn(rows, dim).half() for _ in range(2))
    examples = Examples(hidden, around, torch.randn(rows, len(LearnedGate.ages) + 10), torch.zeros(rows))
    return replace(examples, due=due(examples))


@pytest.mark.parametrize(
    "due",
    [
        lambda rows: (rows.facts[:, 2] > 0.5).float(),
        lambda rows: (rows.hidden[:, 1] + rows.around[:, 0] > 0).float(),
    ],
    ids=["facts", "vectors"],
)
def test_a_tiny_gate_learns_a_separable_toy(due: Callable[[Examples], Any]) -> None:
    torch.manual_seed(0)
    gate = LearnedGate(GateConfig(), dim=6, hidden=24)
    told = list(fit(gate, toy(10_000, 6, due), epochs=120, seed=1))
    assert [metrics["epoch"] for metrics in told] == list(range(120))
    assert told[-1]["loss"] < 0.5 * told[0]["loss"]
    assert told[-1]["held_out_right"] > 0.85
    assert 0.2 < told[-1]["due_share"] < 0.6


def test_fewer_rows_than_a_batch_teach_nothing_but_are_measured() -> None:
    gate = LearnedGate(GateConfig(), dim=6, hidden=4)
    before = {name: value.clone() for name, value in gate.state_dict().items()}
    (told,) = fit(gate, toy(100, 6, lambda rows: (rows.facts[:, 2] > 0).float()), epochs=1, seed=1)
    assert told["loss"] == 0
    assert all(torch.equal(value, before[name]) for name, value in gate.state_dict().items())


# -- models --------------------------------------------------------------------------------------------------------


def test_everything_but_the_gate_stays_and_it_is_saved_with_its_head(tmp_path: Path) -> None:
    model = tiny_ctc_model(tmp_path)
    learned = with_learned_gate(model, hidden=6)
    assert isinstance(learned.config, CrossConfig)
    assert learned.config.gate_hidden == 6
    after = learned.recogniser.state_dict()
    assert all(torch.equal(after[name], value) for name, value in model.recogniser.state_dict().items())
    save(learned, tmp_path / "saved", "card")
    loaded = load_checkpoint(tmp_path / "saved")
    assert isinstance(parts(loaded)[1], LearnedGate)
    assert loaded.ctc_tokenizer is not None
    assert not isinstance(parts(learned)[1], AttentionGate)


def test_the_additive_family_has_no_gate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tiny additive is no cross-family model"):
        with_learned_gate(tiny_additive_model(tmp_path), hidden=6)


def test_another_level_and_a_little_noise() -> None:
    sound = bursts(0.2)
    varied = [recipe._varied(sound, random.Random(seed)) for seed in range(9)]
    seen = {round(float(x.abs().mean()), 5) for x in varied}
    assert len(seen) == 9
    assert max(float(recipe._varied(sound * 9, random.Random(seed)).abs().max()) for seed in range(9)) <= 1.0
    assert recipe._varied(sound, random.Random(1)).shape == (len(sound),) == (int(0.2 * 16_000),)
