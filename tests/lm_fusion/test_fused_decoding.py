"""Fusion in the decode loop of a whole recogniser: text alone moves its states, drafts and anchors leave no trace."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import asr
from asr.decode import choose, decode_block
from asr.drafting import Drafting
from asr.model import Model
from asr.recogniser import WAIT
from lm_fusion.fusion import Fusion, Steering
from lm_fusion.ngram import Automaton
from lm_fusion.ngram_units import decoder_units
from lm_fusion.phrases import MAX_BOOST
from tests import tiny
from tests.lm_fusion.test_fusion import ARPA
from tests.tiny_model import bursts, tiny_ctc_model

PHRASES = ["ta sa", "the don", *"abcdefg"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_ctc_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def lm(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Automaton:
    path = tmp_path_factory.mktemp("lm") / "tiny.arpa"
    path.write_text(ARPA)
    return Automaton.load(path, decoder_units(model.vocabulary, model.config.vocabulary))


def test_states_are_what_the_text_alone_makes_of_them(model: Model, lm: Automaton) -> None:
    fusion = Fusion.of(model, slots=2, phrases=PHRASES, boost=MAX_BOOST, lm=lm, lm_weight=0.3)
    fusion.steer(1, Steering())
    settings = model.settings(delay_ms=80, chunk_ms=160)
    chunk = settings.chunk
    recogniser = model.recogniser
    state = recogniser.init_state(2, max_chunk_steps=2, max_right=chunk.right_frames, max_silence=chunk.silence_frames)
    state = recogniser.reset(state, torch.arange(2))
    samples = torch.stack([bursts(3.2, seed=seed) for seed in (3, 5)])
    states, said = fusion.init_states(2), ([], [])  # type: tuple[torch.Tensor, tuple[list[int], list[int]]]
    rows = tiny.rows_of(settings, settings)
    for block in samples.split(2 * 1280, 1):
        lens = torch.full((2,), block.shape[1] // 1280 * 1280)
        outputs, state, after = decode_block(recogniser, block, lens, rows, state, fusion, states)
        assert after is not None
        states = after
        for output in outputs:
            for row in range(2):
                if int(output.tokens[row]) != WAIT:
                    said[row].append(int(output.tokens[row]))
    assert min(state.re_anchors.tolist()) > 0
    for row in range(2):
        expected = fusion.init_states(1)
        for token in said[row]:
            expected = fusion.advance(expected, torch.tensor([row]), torch.tensor([token]))
        assert torch.equal(states[row], expected[0])
        assert len(said[row]) > 5


def test_a_recogniser_says_where_scores_may_choose(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every second piece is a sign, or this model would hardly write one.
    index = torch.arange(model.config.vocabulary)
    monkeypatch.setitem(model.recogniser._buffers, "letters", index % 2 == 0)
    monkeypatch.setitem(model.recogniser._buffers, "begins_word", index % 8 == 0)
    recogniser, settings = model.recogniser, model.settings(delay_ms=80, chunk_ms=160)
    chunk = settings.chunk
    state = recogniser.init_state(1, max_chunk_steps=2, max_right=chunk.right_frames, max_silence=chunk.silence_frames)
    state = recogniser.reset(state, torch.arange(1))
    rows, active, kinds = tiny.rows_of(settings), torch.tensor([True]), set()
    for block in bursts(1.6, seed=3)[None].split(2 * 1280, 1):
        state = recogniser.listen(block, torch.tensor([block.shape[1] // 1280 * 1280]), rows, state)
        for _ in range(block.shape[1] // 1280):
            output, state = recogniser.row(active, rows, state)
            tokens, _, _ = choose(output, active, None, None)
            best = int(tokens[0])
            if best != WAIT:
                assert output.steerable is not None
                lettered = bool(recogniser.letters[best] | recogniser.begins_word[best])
                assert bool(output.steerable[0]) is lettered
                kinds.add(lettered)
            state = recogniser.accept(active, tokens, output, state)
    assert kinds == {True, False}


@pytest.mark.parametrize("drafter", ["wait", "ctc"])
def test_drafts_change_nothing_with_scores_either(model: Model, lm: Automaton, drafter: str) -> None:
    audio = bursts(1.5, seed=3).numpy()

    def text(name: str) -> tuple[str, int]:
        fusion = Fusion.of(model, slots=1, phrases=PHRASES, boost=MAX_BOOST, lm=lm, lm_weight=0.3)
        drafting = Drafting.of(name, "exact")
        found = asr.transcribe(model, audio, delay_ms=80, chunk_ms=160, drafting=drafting, scorer=fusion)
        return found.text, found.stats.decoder_calls

    expected, calls = text("none")
    drafted, fewer = text(drafter)
    assert drafted == expected != asr.transcribe(model, audio, delay_ms=80, chunk_ms=160).text
    assert fewer <= calls


@pytest.mark.slow
def test_silence_stays_silent_whatever_is_boosted() -> None:
    # The gate that came with the model, not the eager one of the other tests.
    model = asr.load("earlybird-en")
    silence = np.zeros(48_000, dtype=np.float32)
    fusion = Fusion.of(model, slots=1, phrases=[f"Kubernetes {n}" for n in range(100)], boost=MAX_BOOST)
    assert asr.transcribe(model, silence, scorer=fusion).text == ""
