"""Whatever is drafted, the outputs are those of the loop that runs one row after another.

Both families, ragged batches, across re-anchorings, behind a scorer, and past the end of the decoder's window.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asr.answers import Draft
from asr.config import SessionSettings
from asr.decode import decode_block
from asr.errors import SpeculationBudgetExceeded
from asr.recogniser import WAIT
from asr.units import STEP_SAMPLES
from tests import tiny
from tests.contracts.draft_laws import Bigram, Liar, by_chance, check_exact, right, run

CROSS = (tiny.settings(1, 4, 8, 4), tiny.settings(2, 3, 4, 0), tiny.settings(1, 1))
ADDITIVE = (tiny.settings(2, 4), tiny.settings(5, 3), tiny.settings(2, 1))


def cross() -> Any:
    return tiny.tiny_cross(gate=tiny.EverySecondStep())


def sounds(chosen: tuple[SessionSettings, ...], steps: int) -> list[torch.Tensor]:
    """Of about so many steps a row, whole chunks and one block that is shorter."""
    return [
        tiny.sound(STEP_SAMPLES * (steps // one.chunk.chunk_steps * one.chunk.chunk_steps + 1), 60 + row)
        for row, one in enumerate(chosen)
    ]


FAMILIES = pytest.mark.parametrize(("model", "chosen"), [(cross(), CROSS), (tiny.tiny_additive(), ADDITIVE)])


@FAMILIES
def test_no_draft_changes_an_output_alone_or_in_a_ragged_batch(model: Any, chosen: tuple[SessionSettings, ...]) -> None:
    together = check_exact(model, sounds(chosen, 36), chosen)["none"]
    for row, (sound, one) in enumerate(zip(sounds(chosen, 36), chosen, strict=True)):
        alone = check_exact(model, [sound], [one])
        assert alone["none"].said[0] == together.said[row]
    if model.waits_take_rows:
        return
    assert int(together.state.re_anchors.min()) >= 1


@FAMILIES
def test_no_draft_changes_an_output_behind_a_scorer(model: Any, chosen: tuple[SessionSettings, ...]) -> None:
    found = check_exact(model, sounds(chosen, 16), chosen, scorer=Bigram())
    assert found["none"].said != run(model, sounds(chosen, 16), chosen).said


@FAMILIES
def test_no_draft_survives_a_new_anchor_that_was_asked_for(model: Any, chosen: tuple[SessionSettings, ...]) -> None:
    found = check_exact(model, sounds(chosen, 16), chosen, asked=3)
    assert int(found["none"].state.re_anchors[0]) >= 1


@pytest.mark.parametrize("chunk", [6, 13])
def test_a_rejected_draft_may_run_past_the_window(chunk: int) -> None:
    # The decoder sees 6 rows: a draft of 13 overwrites every slot that a shorter ring would still need.
    model = tiny.tiny_additive()
    for seed in range(3):
        check_exact(model, [tiny.sound(STEP_SAMPLES * 28, 70 + seed)], [tiny.settings(2, chunk)])


def test_a_right_draft_needs_a_call_a_block_and_a_wrong_one_a_row_a_step() -> None:
    one = tiny.settings(2, 8)
    found = check_exact(tiny.tiny_additive(), [tiny.sound(STEP_SAMPLES * 40, 70)], [one])
    assert (found["none"].calls, found["none"].rows) == (40, 40)
    assert (found["right"].calls, found["right"].rows) == (5, 40)
    # Of 8 steps that are all drafted wrong 8, 7, … 1 rows are run.
    assert (found["wrong"].calls, found["wrong"].rows) == (40, 5 * 36)


def test_in_the_cross_family_a_draft_is_right_however_early_or_late() -> None:
    one = tiny.settings(1, 6, 8, 4)
    model = cross()
    found = check_exact(model, [tiny.sound(STEP_SAMPLES * 48, 71)], [one])
    spoken = sum(token != WAIT for token, _, _ in found["none"].said[0])
    assert spoken > 15
    # A block of 6 steps speaks thrice at the most: a call for the first piece, none for the others.
    assert found["right"].calls == found["late"].calls == 8
    assert found["none"].calls > 2 * found["right"].calls


def test_a_draft_stops_at_the_last_text_position() -> None:
    model = tiny.tiny_cross(gate=tiny.EverySecondStep(), text_positions=6)
    check_exact(model, [tiny.sound(STEP_SAMPLES * 24, 72)], [tiny.settings(1, 6)])


def test_a_draft_longer_than_the_memory_can_take_back_is_refused() -> None:
    decoder = tiny.tiny_additive_decoder()
    state = decoder.init_state(1, max_rows=3).advance(torch.tensor([40]))
    audio = torch.zeros(1, 4, tiny.DIM)
    with pytest.raises(SpeculationBudgetExceeded, match="block of 4 positions"):
        decoder.rows(torch.zeros(1, 4, dtype=torch.int64), audio, torch.tensor([2]), torch.tensor([4]), state)


@FAMILIES
def test_a_stream_that_needs_no_call_keeps_its_answers_while_others_call(
    model: Any, chosen: tuple[SessionSettings, ...]
) -> None:
    """Row 0 is drafted right, row 1 wrong: row 0 makes no call that it would not make alone."""
    pair = (chosen[0], chosen[0])
    both = [tiny.sound(STEP_SAMPLES * 16, 73), tiny.sound(STEP_SAMPLES * 16, 74)]
    truth = [[token for token, _, _ in row] for row in run(model, both, pair).said]
    lies = [truth[0], [(token + 1) % 18 for token in truth[1]]]
    together = run(model, both, pair, Liar(lies, right))
    assert [[token for token, _, _ in row] for row in together.said] == truth
    alone = [run(model, [both[row]], [chosen[0]], Liar([lies[row]], right)) for row in (0, 1)]
    assert together.rows == alone[0].rows + alone[1].rows


@FAMILIES
def test_going_back_to_the_state_before_a_draft_leaves_no_trace(
    model: Any, chosen: tuple[SessionSettings, ...]
) -> None:
    """A block is decoded with drafts and forgotten, again and again."""
    chunk, settings = chosen[0].chunk, tiny.rows_of(chosen[0])
    sound = tiny.sound(STEP_SAMPLES * 4 * 9, 75)
    plain = run(model, [sound], [chosen[0]])
    truth = [[token for token, _, _ in plain.said[0]]]
    state = model.init_state(
        1, max_chunk_steps=chunk.chunk_steps, max_right=chunk.right_frames, max_silence=chunk.silence_frames
    )
    said = []
    for number, block in enumerate(sound.split(STEP_SAMPLES * chunk.chunk_steps)):
        lens = torch.tensor([len(block)])
        decode_block(model, block[None], lens, settings, state, drafter=Liar(truth, by_chance, seed=number))
        outputs, state, _ = decode_block(model, block[None], lens, settings, state, drafter=Liar(truth, right))
        said += [int(output.tokens[0]) for output in outputs]
    assert said == truth[0]


def test_an_empty_draft_is_none() -> None:
    packed = Draft.pack([[], []], torch.device("cpu"))
    assert packed.outputs.shape == (2, 0)
    assert packed.lens.tolist() == [0, 0]
