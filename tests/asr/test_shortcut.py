"""The CTC shortcut: blocks that the head is sure of are written without the decoder, which reads them later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from asr.config import RowSettings
from asr.cross_recogniser import CrossRecogniser
from asr.decode import decode_block
from asr.drafting import CtcDrafter, Drafting
from asr.errors import ConfigError
from asr.model import Model
from asr.recogniser import WAIT
from asr.shortcut import CtcShortcut, Plan, shortcut_of
from asr.transcriber import transcribe
from asr.units import STEP_SAMPLES
from tests import tiny
from tests.tiny_model import bursts, tiny_ctc_model, tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return tiny_ctc_model(tmp_path)


def test_a_head_that_is_never_sure_changes_nothing(model: Model) -> None:
    audio = bursts(8).numpy()
    exact = transcribe(model, audio, delay_ms=160, chunk_ms=320)
    drafting = Drafting(mode="ctc-shortcut", most_entropy=0.0, least_probability=1.0)
    assert transcribe(model, audio, delay_ms=160, chunk_ms=320, drafting=drafting).words == exact.words


def test_a_head_that_is_always_sure_spares_the_decoder(model: Model) -> None:
    audio = bursts(8).numpy()
    exact = transcribe(model, audio, delay_ms=160, chunk_ms=320)
    drafting = Drafting(mode="ctc-shortcut", most_entropy=100.0)
    taken = transcribe(model, audio, delay_ms=160, chunk_ms=320, drafting=drafting)
    # Only the steps before the delay has passed have nothing to be sure of.
    assert taken.stats.decoder_calls <= 2 < exact.stats.decoder_calls
    assert taken.words != exact.words
    assert taken.settings["draft_most_entropy"] == 100.0


class Scripted(CtcShortcut):
    """A shortcut that takes given blocks with given pieces."""

    def __init__(self, blocks: dict[int, list[int]]) -> None:
        object.__setattr__(self, "blocks", blocks)
        object.__setattr__(self, "turns", [])

    def plan(self, model: object, steps: torch.Tensor, settings: RowSettings, state: object) -> Plan:
        self.turns.append(None)  # type: ignore[attr-defined]
        pieces = self.blocks.get(len(self.turns) - 1)  # type: ignore[attr-defined]
        tokens = torch.tensor([pieces or [WAIT] * int(steps.max())])
        heard = state.heard  # type: ignore[attr-defined]
        return Plan(torch.tensor([pieces is not None]), tokens, heard[:, None] - torch.ones_like(tokens), tokens * 0.0)


def test_the_decoder_reads_later_what_was_written_without_it() -> None:
    """After a block that was taken, the text goes on as if the decoder had written it."""
    chosen = tiny.settings(1, 2, 8, 4)
    sound, settings, lens = tiny.sound(8 * 2 * STEP_SAMPLES, 80), tiny.rows_of(chosen), torch.tensor([2 * STEP_SAMPLES])
    model = tiny.tiny_cross(gate=tiny.EverySecondStep())

    def states(shortcut: CtcShortcut | None, forced: dict[int, list[int]]) -> list[torch.Tensor]:
        state = model.init_state(1, max_chunk_steps=2, max_right=8, max_silence=4)
        found = []
        for turn, block in enumerate(sound.split(2 * STEP_SAMPLES)):
            if turn in forced:
                state = model.listen(block[None], lens, settings, state)
                for piece in forced[turn]:
                    output, state = model.row(torch.tensor([True]), settings, state)
                    output = type(output)(**{**vars(output), "frame": state.heard - 1})
                    state = model.accept(torch.tensor([True]), torch.tensor([piece]), output, state)
            else:
                outputs, state, _ = decode_block(model, block[None], lens, settings, state, shortcut=shortcut)
                assert len(outputs) == 2
            found.append(state.text[0, : int(state.count[0])])
        return found

    blocks = {3: [4, 12], 4: [5, WAIT]}
    # Both have the decoder see the same text over the same sound from block 5 on, but for what it saw it with.
    taken = states(Scripted(blocks), {})
    assert taken[4][-3:].tolist() == [4, 12, 5]
    assert len(taken[7]) > len(taken[4])
    assert states(None, blocks)[4].tolist() == taken[4].tolist()


def test_entropy_is_judged_where_words_are_due(model: Model) -> None:
    recogniser = model.recogniser
    assert isinstance(recogniser, CrossRecogniser)
    assert model.ctc_tokenizer is not None
    words = CtcDrafter(model.vocabulary, model.ctc_tokenizer)
    state = recogniser.init_state(1, max_chunk_steps=4, max_right=4, max_silence=6)
    chosen = model.settings(delay_ms=160, chunk_ms=320)
    settings, steps = RowSettings.stack([chosen]), torch.tensor([4])
    for block in bursts(4).split(4 * STEP_SAMPLES)[:6]:
        state = recogniser.listen(block[None], 4 * STEP_SAMPLES * torch.ones(1, dtype=torch.int64), settings, state)
    assert not bool(CtcShortcut(words, 100.0).plan(recogniser, steps, settings, state).taken)  # due too long ago
    state = replace(state, clock=torch.tensor([20]))
    assert bool(CtcShortcut(words, 100.0).plan(recogniser, steps, settings, state).taken)
    assert not bool(CtcShortcut(words, 1e-9).plan(recogniser, steps, settings, state).taken)
    assert not bool(CtcShortcut(words, 100.0).plan(recogniser, steps * 0, settings, state).taken)


def test_models_that_cannot_are_refused(tmp_path: Path, model: Model) -> None:
    assert shortcut_of(model, Drafting()) is None
    with pytest.raises(ConfigError, match="no CTC head"):
        shortcut_of(tiny_model(tmp_path), Drafting(mode="ctc-shortcut"))
    additive = tiny.tiny_additive()
    state = additive.init_state(1, max_chunk_steps=2, max_right=0, max_silence=0)
    with pytest.raises(ConfigError, match="a row for every output"):
        additive.take(torch.tensor([True]), torch.tensor([3]), torch.tensor([1]), state)
