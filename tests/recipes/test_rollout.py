"""Rollouts: greedy ones are what a session writes, and drawn ones have the log-probabilities they were drawn with."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from asr.config import ChunkSetting, RowSettings, SessionSettings
from asr.cross_recogniser import CrossRecogniser
from asr.decode import decode_block
from asr.errors import ConfigError
from asr.gate import LearnedGate
from asr.model import CrossConfig, Model, build_cross
from asr.recogniser import WAIT, Recogniser
from asr.text import AssemblerState, StepText, WordAssembler, WordLog
from asr.units import STEP_SAMPLES
from recipes.rollout import AdditivePolicy, Heard, Policy, Rollouts, words_of
from recipes.rollout_cross import CrossPolicy, policy_of
from tests.tiny import randomised
from tests.tiny_model import CAUSAL_LIMITS, CHUNKS, bursts, tiny_additive_model, tiny_ctc_model, tiny_model

TAIL = 12


def open_minded(folder: Path, *, ctc: bool = False, seed: int = 0) -> Model:
    """A tiny cross model whose gate has odds of every size, and hears words in all sounds."""
    model = (tiny_ctc_model if ctc else tiny_model)(folder, seed=seed)
    assert isinstance(model.config, CrossConfig)
    gate = replace(
        model.config.gate,
        loud_frames=0,
        least_frames=1,
        offset_frames=-40,
        same_place_frames=1,
        stuck_frames=8,
        hold_frames=8,
    )
    anchors = replace(model.config.anchors, limit_frames=130, pause_after_frames=130, voiced_frames=999, text_limit=60)
    config = replace(model.config, gate=gate, anchors=anchors, gate_hidden=6, gate_corrects=True)
    recogniser = build_cross(config, model.vocabulary)
    recogniser.load_state_dict(model.recogniser.state_dict(), strict=False)
    assert isinstance(recogniser.gate, LearnedGate)
    randomised(recogniser.gate, seed)
    recogniser.gate.out.weight.mul_(3)
    return replace(model, config=config, recogniser=recogniser.eval().requires_grad_(False))


def additive(folder: Path) -> Model:
    model = tiny_additive_model(folder)
    model.recogniser.decoder.embedding.weight[-1] *= 2
    return model


@pytest.fixture(params=["cross", "ctc", "additive"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    if request.param == "additive":
        return additive(tmp_path)
    return open_minded(tmp_path, ctc=request.param == "ctc")


def chunk_of(model: Model, place: int) -> ChunkSetting:
    return (CHUNKS if isinstance(model.config, CrossConfig) else CAUSAL_LIMITS.chunks)[place]


def heard(policy: Policy, seconds: tuple[float, ...] = (0.7, 0.3), delays: tuple[int, ...] = (1, 2)) -> Heard:
    sounds = [bursts(length, seed) for seed, length in enumerate(seconds)]
    return Heard.of(sounds, delays, chunk_steps=policy.chunk.chunk_steps, tail_steps=TAIL)


def rolled(
    model: Model, place: int = 1, *, temperature: float = 1.0, group: int = 4, seed: int = 1
) -> tuple[Policy, Rollouts]:
    policy = policy_of(model, chunk_of(model, place), temperature=temperature)
    return policy, policy.roll(heard(policy), group, [seed, seed + 7])


def written(rollouts: Rollouts) -> int:
    return int((rollouts.tokens != WAIT).sum())


# -- the stream ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("delay", [1, 2])
def test_the_likeliest_rollout_is_what_a_stream_writes(model: Model, place: int, delay: int) -> None:
    policy = policy_of(model, chunk_of(model, place), temperature=0.0)
    given, chunk = heard(policy, (0.7,), (delay,)), policy.chunk
    rollouts = policy.roll(given, 2, [0])
    rows = RowSettings.stack([SessionSettings(chunk=chunk, delay_steps=delay)])
    state: Any = model.recogniser.init_state(
        1, max_chunk_steps=chunk.chunk_steps, max_right=chunk.right_frames, max_silence=chunk.silence_frames
    )
    said: list[int] = []
    with torch.inference_mode():
        for block in given.samples.split(chunk.chunk_steps * STEP_SAMPLES, 1):
            outputs, state, _ = decode_block(
                cast(Recogniser[Any], model.recogniser), block, torch.tensor([block.shape[1]]), rows, state
            )
            said += [int(output.tokens[0]) for output in outputs]
    assert rollouts.tokens.tolist() == [said] * 2
    assert written(rollouts) > 2


@pytest.mark.parametrize("seed", range(5))
def test_words_are_cut_and_timed_as_a_session_does(tmp_path: Path, seed: int) -> None:
    vocabulary = tiny_model(tmp_path).vocabulary
    rng = random.Random(seed)
    tokens = [WAIT if rng.random() < 0.4 else rng.randrange(vocabulary.special_from) for _ in range(60)]
    assembler, state, log = WordAssembler(vocabulary, vocabulary.size), AssemblerState(), WordLog()
    for start in range(0, 60, 4):
        steps = [StepText(token=token) for token in tokens[start : start + 4]]
        delta, state = assembler.step(steps, state, heard_ms=min(80 * (start + 4), 4000), last=start == 56)
        log.add(delta)
    letters = vocabulary.letters(vocabulary.size).tolist()
    words = words_of(tokens, vocabulary, letters, chunk_steps=4, audio_ms=4000)
    assert [(word.text, word.emitted_ms) for word in words] == [(word.text, word.emitted_ms) for word in log.words]
    assert [word.first for word in words] == sorted({word.first for word in words})
    assert all(word.first <= word.last for word in words)


def test_words_end_with_their_last_letter_and_the_audio(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    the, comma = model.vocabulary.encode(" the")[0], model.vocabulary.encode(",")[0]
    don, t = model.vocabulary.encode(" don't")[0], model.vocabulary.encode("'t")[0]
    letters = model.vocabulary.letters(model.vocabulary.size).tolist()
    tokens = [WAIT, the, WAIT, comma, don, t]
    words = words_of(tokens, model.vocabulary, letters, chunk_steps=2, audio_ms=430)
    assert [(word.text, word.first, word.last, word.emitted_ms) for word in words] == [
        ("the,", 1, 3, 160),  # "the" in step 1, heard with its chunk of two steps; the comma adds no delay
        ("don't", 4, 5, 430),
    ]
    assert words_of([WAIT] * 3, model.vocabulary, letters, chunk_steps=1, audio_ms=9) == ()


def test_recordings_are_padded_to_chunks_with_their_tail() -> None:
    given = Heard.of([torch.ones(STEP_SAMPLES + 1), torch.ones(10)], [1, 2], chunk_steps=4, tail_steps=3)
    assert given.samples.shape == (2, 8 * STEP_SAMPLES)
    assert given.steps.tolist() == [8, 4]
    assert given.audio_ms == (80, 0)
    assert given.samples.sum(1).tolist() == [STEP_SAMPLES + 1, 10]


# -- what is drawn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_teacher_forced_forward_has_the_log_probabilities_of_the_stream(
    model: Model, place: int, temperature: float
) -> None:
    policy, rollouts = rolled(model, place, temperature=temperature)
    assert written(rollouts) > 8
    with torch.no_grad():
        again = policy.log_probs(rollouts)
    torch.testing.assert_close(again, rollouts.log_probs, atol=2e-4, rtol=1e-4)
    assert (again[~rollouts.free] == 0).all()
    assert (again <= 1e-6).all()
    assert not (rollouts.free & ~rollouts.active).any()


def test_rollouts_of_a_recording_differ_and_a_seed_repeats_them(model: Model) -> None:
    _, first = rolled(model)
    _, again = rolled(model)
    _, other = rolled(model, seed=2)
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)
    assert len({tuple(row) for row in first.tokens[:4].tolist()}) > 1


def test_nothing_is_written_behind_a_row_s_end(model: Model) -> None:
    _, rollouts = rolled(model, 2)
    steps = rollouts.heard.steps.repeat_interleave(rollouts.group)
    behind = torch.arange(rollouts.tokens.shape[1]) >= steps[:, None]
    assert behind.any()
    assert (rollouts.tokens[behind] == WAIT).all()
    assert torch.equal(rollouts.active, ~behind)


def test_a_recording_s_rollouts_do_not_depend_on_its_neighbours(model: Model) -> None:
    policy = policy_of(model, chunk_of(model, 1), temperature=1.0)
    both = policy.roll(heard(policy), 2, [5, 6])
    for b, (seconds, delay) in enumerate([(0.7, 1), (0.3, 2)]):
        given = Heard.of([bursts(seconds, b)], [delay], chunk_steps=policy.chunk.chunk_steps, tail_steps=TAIL)
        alone = policy.roll(given, 2, [5 + b])
        count = alone.tokens.shape[1]
        assert torch.equal(both.tokens[2 * b : 2 * b + 2, :count], alone.tokens)


def test_a_decision_is_drawn_as_often_as_its_probability_says(model: Model) -> None:
    policy = policy_of(model, chunk_of(model, 0), temperature=8.0)
    given = Heard.of([bursts(0.3, 1)], [1], chunk_steps=policy.chunk.chunk_steps, tail_steps=2)
    rollouts = policy.roll(given, 500, [3])
    column = int(rollouts.free[0].int().argmax())
    assert rollouts.free[:, column].all()
    outcomes: dict[int, list[float]] = {}
    for token, log_prob in zip(
        rollouts.tokens[:, column].tolist(), rollouts.log_probs[:, column].tolist(), strict=True
    ):
        outcomes.setdefault(token, []).append(log_prob)
    assert len(outcomes) > 1
    for log_probs in outcomes.values():
        assert max(log_probs) - min(log_probs) < 1e-4
        share, probability = len(log_probs) / 500, float(torch.tensor(log_probs[0]).exp())
        assert abs(share - probability) < 4 * (probability * (1 - probability) / 500) ** 0.5 + 1 / 500


def test_colder_rollouts_are_likelier(model: Model) -> None:
    policy, _ = rolled(model)
    means = []
    for temperature in (1.0, 0.2):
        cold = policy_of(model, policy.chunk, temperature=temperature)
        rollouts = cold.roll(heard(cold), 16, [1, 2])
        means.append(float(rollouts.log_probs.exp()[rollouts.free].mean()))
    assert means[1] > means[0]


# -- learning --------------------------------------------------------------------------------------------------------


def grads(model: Model, policy: Policy, rollouts: Rollouts) -> dict[str, Tensor]:
    model.recogniser.requires_grad_(True)
    policy.log_probs(rollouts).sum().backward()
    found = {name: p.grad for name, p in model.recogniser.named_parameters() if p.grad is not None}
    model.recogniser.requires_grad_(False).zero_grad()
    return {name: grad for name, grad in found.items() if grad.abs().sum() > 0}


def test_gradients_reach_the_decoder_and_the_gate_but_not_the_encoder(model: Model) -> None:
    policy, rollouts = rolled(model)
    parts = {name.split(".")[0] for name in grads(model, policy, rollouts)}
    if isinstance(model.recogniser, CrossRecogniser):
        assert parts == {"decoder", "gate"}
    else:
        assert {"decoder", "adapter"} <= parts


def test_another_recogniser_s_log_probabilities_of_the_same_rollouts(model: Model) -> None:
    policy, rollouts = rolled(model)
    other = copy.deepcopy(model.recogniser)
    with torch.no_grad():
        assert torch.equal(policy.log_probs(rollouts, other), policy.log_probs(rollouts))
        other.decoder.norm.weight.mul_(0.5)
        moved = policy.log_probs(rollouts, other)
    assert not torch.allclose(moved, policy.log_probs(rollouts), atol=1e-3)


def test_silence_all_over_has_log_probabilities_too(tmp_path: Path) -> None:
    model = open_minded(tmp_path)
    gate = model.recogniser.gate  # type: ignore[union-attr]
    assert isinstance(gate, LearnedGate)
    gate.out.bias.fill_(-1e3)
    model.recogniser.gate.config = replace(gate.config, hold_frames=10_000)  # type: ignore[union-attr]
    policy, rollouts = rolled(model)
    assert written(rollouts) == 0
    assert rollouts.words == ((),) * 8
    assert policy.log_probs(rollouts).shape == rollouts.tokens.shape


# -- what cannot be --------------------------------------------------------------------------------------------------


def test_gate_and_anchors_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_minded(tmp_path)
    recogniser = model.recogniser
    assert isinstance(recogniser, CrossRecogniser)
    before = recogniser.gate, recogniser.anchors
    rolled(model)
    assert (recogniser.gate, recogniser.anchors) == before

    def fails(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(recogniser, "row", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        rolled(model)
    assert (recogniser.gate, recogniser.anchors) == before


def test_what_cannot_be_rolled_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="temperature is -1"):
        AdditivePolicy(additive(tmp_path), CAUSAL_LIMITS.chunks[0], temperature=-1.0)
    with pytest.raises(ConfigError, match="the gate of tiny has nothing to learn"):
        CrossPolicy(tiny_model(tmp_path), CHUNKS[0], temperature=1.0)
    policy = CrossPolicy(open_minded(tmp_path), CHUNKS[0], temperature=1.0)
    with pytest.raises(ConfigError, match="a recording of 2880 ms, its silence included, does not fit"):
        policy.roll(heard(policy, (1.9,), (1,)), 1, [0])
