"""The cross recogniser: re-anchoring, its bounds, and what may be written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from asr.config import RowSettings, SessionSettings
from asr.cross_recogniser import CrossRecogniser, CrossState
from asr.decode import StepOutput, decode_block
from asr.gate import Gate
from asr.recogniser import WAIT, RowOutput
from asr.units import FRAMES_PER_STEP, STEP_SAMPLES
from tests import tiny, tiny_model

SETTINGS = tiny.settings(1, 2, 8, 4)
GATES = pytest.mark.parametrize("gate", [None, tiny.EverySecondStep()], ids=["attention", "every second step"])


def fresh(model: CrossRecogniser, chosen: SessionSettings = SETTINGS) -> CrossState:
    chunk = chosen.chunk
    return model.init_state(
        1, max_chunk_steps=chunk.chunk_steps, max_right=chunk.right_frames, max_silence=chunk.silence_frames
    )


def stream(
    model: CrossRecogniser, blocks: int, chosen: SessionSettings = SETTINGS, seed: int = 100
) -> Iterator[tuple[CrossState, list[StepOutput], CrossState]]:
    """The state before each block, its outputs, and the state after it."""
    state, size = fresh(model, chosen), STEP_SAMPLES * chosen.chunk.chunk_steps
    for block in tiny.sound(blocks * size, seed).split(size):
        outputs, after, _ = decode_block(model, block[None], torch.tensor([size]), tiny.rows_of(chosen), state)
        yield state, outputs, after
        state = after


def test_text_and_frames_grow_with_what_is_said() -> None:
    model = tiny.tiny_cross(gate=tiny.EverySecondStep())
    said: list[tuple[int, int]] = []
    blocks = list(stream(model, 6))
    for _, outputs, _ in blocks:
        said += [(int(o.tokens[0]), int(o.frame[0])) for o in outputs if int(o.tokens[0]) != WAIT]
    state = blocks[-1][2]
    assert int(state.re_anchors[0]) == 0
    assert int(state.count[0]) == len(said) > 3
    count = len(said)
    assert state.text[0, :count].tolist() == [token for token, _ in said]
    assert state.text_frames[0, :count].tolist() == [frame for _, frame in said]
    # The prompt and all tokens but the last are remembered; the last one is the next row.
    assert int(state.decoder.length[0]) == len(tiny.PROMPT) + count - 1
    assert (int(state.pending_lens[0]), int(state.pending[0, 0])) == (1, said[-1][0])


@GATES
@pytest.mark.parametrize("chosen", [SETTINGS, tiny.settings(1, 1), tiny.settings(2, 4, 8, 8)])
def test_positions_and_memories_stay_within_their_bounds(gate: Gate | None, chosen: SessionSettings) -> None:
    model = tiny.tiny_cross(gate=gate)
    anchors, chunk = tiny.ANCHORS, chosen.chunk
    newest = 0
    for before, _, state in stream(model, 112 // chunk.chunk_steps, chosen):
        span = int(state.heard[0] - state.anchor[0])
        assert 0 < span <= anchors.limit_frames
        assert span + chunk.silence_frames <= model.max_frames
        assert int(state.memory.frames[0]) == span + chunk.silence_frames <= state.memory.capacity
        assert int(state.memory.final[0]) == int(state.encoder.length[0]) == max(0, span - chunk.right_frames)
        assert int(state.count[0]) <= anchors.text_limit + chunk.chunk_steps
        assert int(state.decoder.length[0] + state.pending_lens[0]) <= model.decoder.text_positions
        assert int(state.heard[0]) == int(before.heard[0]) + FRAMES_PER_STEP * chunk.chunk_steps
        assert int(state.clock[0]) * FRAMES_PER_STEP == int(state.heard[0])
        if int(state.re_anchors[0]) > newest:
            newest = int(state.re_anchors[0])
            assert int(state.anchor[0]) > int(before.anchor[0])
            # What is encoded again is what `keep_frames` and the block allow.
            assert span <= anchors.keep_frames + FRAMES_PER_STEP * chunk.chunk_steps
    assert newest >= 1


def re_anchored(model: CrossRecogniser) -> Iterator[tuple[CrossState, CrossState]]:
    """States before and just after the `listen` of every block that re-anchored."""
    size = STEP_SAMPLES * SETTINGS.chunk.chunk_steps
    x, rows, lens = tiny.sound(70 * size, 101), tiny.rows_of(SETTINGS), torch.tensor([size])
    state = fresh(model)
    for block in x.split(size):
        heard = model.listen(block[None], lens, rows, state)
        if int(heard.re_anchors[0]) > int(state.re_anchors[0]):
            yield state, heard
        _, state, _ = decode_block(model, block[None], lens, rows, state)


def with_a_long_memory() -> CrossRecogniser:
    """Keeps enough that words in it are old enough to be fed again."""
    anchors = replace(
        tiny.ANCHORS, limit_frames=160, pause_after_frames=120, keep_frames=100, text_limit=40, voiced_frames=10_000
    )
    gate = tiny.EverySecondStep()
    return tiny.tiny_cross(anchors=anchors, gate=gate, max_frames=180, left_context_frames=120, text_positions=64)


def test_what_is_fed_again_is_the_end_of_the_text_and_it_follows_the_prompt() -> None:
    model = with_a_long_memory()
    fed = []
    for before, after in re_anchored(model):
        count, kept = int(before.count[0]), int(after.count[0])
        text = before.text[0, :count].tolist()
        again = text[count - kept :] if kept else []
        assert after.text[0, :kept].tolist() == again
        prompt = len(tiny.PROMPT)
        assert int(after.pending_lens[0]) == prompt + kept
        assert after.pending[0, : prompt + kept].tolist() == [*tiny.PROMPT, *again]
        if kept:
            assert model.begins_word[again[0]]
            moved = int(after.anchor[0] - before.anchor[0])
            frames = [max(0, f - moved) for f in before.text_frames[0, count - kept : count].tolist()]
            assert after.text_frames[0, :kept].tolist() == frames
        assert int(after.decoder.length[0]) == 0
        fed.append(kept)
    assert max(fed) >= 1
    assert len(fed) >= 2


def test_fed_again_text_is_remembered_once_the_next_token_is_out() -> None:
    model = with_a_long_memory()
    for _, after in re_anchored(model):
        state, rows, active = after, tiny.rows_of(SETTINGS), torch.tensor([True])
        pending = int(after.pending_lens[0])
        output, state = model.row(active, rows, state)
        assert int(output.decoder_rows[0]) == pending
        token = output.logits.argmax(-1)
        state = model.accept(active, token, output, state)
        assert int(state.decoder.length[0]) == pending
        assert (int(state.pending_lens[0]), int(state.pending[0, 0])) == (1, int(token))


def test_the_watchdog_s_re_anchoring_feeds_no_text_again() -> None:
    model = tiny.tiny_cross(gate=tiny.EverySecondStep())
    *_, (_, _, state) = stream(model, 6)
    assert int(state.count[0]) > 0
    asked = model.ask_re_anchor(state, torch.tensor([0]))
    assert torch.equal(asked.anchor, state.anchor)
    size = STEP_SAMPLES * 2
    idle = model.listen(torch.zeros(1, size), torch.tensor([0]), tiny.rows_of(SETTINGS), asked)
    assert bool(idle.asked[0])
    after = model.listen(tiny.sound(size, 7)[None], torch.tensor([size]), tiny.rows_of(SETTINGS), asked)
    assert (int(after.count[0]), int(after.re_anchors[0]), bool(after.asked[0])) == (0, 1, False)
    assert after.pending[0, : int(after.pending_lens[0])].tolist() == list(tiny.PROMPT)
    assert int(after.clock[0]) == int(state.clock[0])


@pytest.mark.parametrize("blocks", range(5, 12))
def test_the_watchdog_s_re_anchoring_does_not_hear_written_words_again(blocks: int) -> None:
    model = tiny.tiny_cross(gate=tiny.EverySecondStep())
    *_, (_, _, state) = stream(model, blocks)
    size, anchor = STEP_SAMPLES * 2, int(state.anchor[0])
    newest = anchor + max(state.text_frames[0, : int(state.count[0])].tolist())
    asked = model.ask_re_anchor(state, torch.tensor([0]))
    after = model.listen(tiny.sound(size, 7)[None], torch.tensor([size]), tiny.rows_of(SETTINGS), asked)
    assert int(after.anchor[0]) >= newest
    assert int(after.anchor[0]) % FRAMES_PER_STEP == 0
    assert int(after.anchor[0]) <= int(state.heard[0])
    assert int(after.memory.frames[0]) > 0


@pytest.mark.parametrize("asked", [True, False])
def test_something_of_the_block_is_left_when_the_text_was_read_from_behind_it(asked: bool) -> None:
    model = tiny.tiny_cross(gate=tiny.EverySecondStep())
    *_, (_, _, state) = stream(model, 6)
    flag = torch.tensor([True])
    state = replace(state, text_frames=state.text_frames + 30, ended=flag, asked=flag & asked)
    model._must_re_anchor = lambda *_: flag  # type: ignore[method-assign]
    size = STEP_SAMPLES * 2
    after = model.listen(tiny.sound(size, 7)[None], torch.tensor([size]), tiny.rows_of(SETTINGS), state)
    assert int(after.anchor[0]) == int(after.heard[0]) - FRAMES_PER_STEP


def test_too_much_text_forces_a_new_anchor() -> None:
    anchors = replace(tiny.ANCHORS, text_limit=3, voiced_frames=10_000)
    model = tiny.tiny_cross(anchors=anchors, gate=tiny.EverySecondStep())
    assert [int(s.count[0]) for _, _, s in stream(model, 30) if int(s.count[0]) > 3 + 2] == []
    *_, (_, _, state) = stream(model, 30)
    assert int(state.re_anchors[0]) >= 2


def test_text_stops_at_the_last_position() -> None:
    anchors = replace(tiny.ANCHORS, voiced_frames=10_000)
    model = tiny.tiny_cross(anchors=anchors, gate=tiny.EverySecondStep(), text_positions=6)
    lengths = [int((s.decoder.length + s.pending_lens)[0]) for _, _, s in stream(model, 8)]
    assert max(lengths) == 6


def row_of(model: CrossRecogniser, state: CrossState) -> RowOutput:
    output, _ = model.row(torch.tensor([True]), tiny.rows_of(SETTINGS), state)
    return output


def refused(output: RowOutput) -> list[int]:
    return output.logits[0].isneginf().nonzero()[:, 0].tolist()


def test_what_may_not_be_written_is_at_minus_infinity() -> None:
    model = tiny.tiny_cross(gate=tiny.EverySecondStep())
    state = fresh(model)
    size = STEP_SAMPLES * 2
    state = model.listen(tiny.sound(size, 8)[None], torch.tensor([size]), tiny.rows_of(SETTINGS), state)
    continuing, signs, special = list(range(10, 18)), [18, 19, 20], [21, 22, 23]
    assert refused(row_of(model, state)) == [*continuing, *signs, *special]  # nothing to continue, no sign first
    said = replace(state, count=torch.tensor([1]), row=state.row.forget(torch.tensor([True])))
    assert refused(row_of(model, said)) == [*continuing, *special]
    assert refused(row_of(model, replace(said, word_open=torch.tensor([True])))) == special


def accept(model: CrossRecogniser, state: CrossState, token: int, *, closes: bool, frame: int = 5) -> CrossState:
    output = RowOutput(
        torch.tensor([True]),
        torch.zeros(1, tiny.VOCABULARY),
        torch.tensor([frame]),
        torch.tensor([closes]),
        torch.tensor([1]),
    )
    return model.accept(torch.tensor([True]), torch.tensor([token]), output, state)


def test_a_word_is_open_from_its_first_piece_to_a_wait_that_closes_it() -> None:
    model = tiny.tiny_cross()
    state = fresh(model)
    opened = []
    for token, closes in ((WAIT, False), (3, True), (WAIT, False), (12, True), (WAIT, True), (WAIT, False)):
        state = accept(model, state, token, closes=closes)
        opened.append(bool(state.word_open[0]))
    assert opened == [False, True, True, True, False, False]


def test_tokens_since_the_last_pause_are_counted() -> None:
    model = tiny.tiny_cross()
    state, counts = fresh(model), []
    for token, frame in ((3, 5), (12, 7), (WAIT, 7), (4, 70), (5, 75)):
        state = accept(model, state, token, closes=False, frame=frame)
        counts.append(int(state.since_pause[0]))
    assert counts == [1, 2, 2, 1, 2]


def test_waits_within_a_block_cost_no_decoder_row() -> None:
    model = tiny.tiny_cross(gate=tiny.EverySecondStep())
    for _, outputs, _ in stream(model, 12, tiny.settings(1, 4, 8, 4)):
        for before, now in pairwise(outputs):
            waited = int(before.tokens[0]) == WAIT
            assert int(now.decoder_rows[0]) == (0 if waited else 1)
        assert int(outputs[0].decoder_rows[0]) >= 1


@pytest.mark.parametrize("over_background", [0.0, 1.0])
def test_with_a_ctc_head_a_frame_counts_near_a_label_however_loud(tmp_path: Path, over_background: float) -> None:
    model = tiny_model.tiny_ctc_model(tmp_path)
    recogniser = model.recogniser
    assert isinstance(recogniser, CrossRecogniser)
    assert recogniser.ctc is not None
    rows = RowSettings.stack([SessionSettings(chunk=tiny_model.CHUNKS[1], delay_steps=1)])
    state = recogniser.init_state(1, max_chunk_steps=2, max_right=4, max_silence=6)
    size = state.loudness.shape[1]
    heard = size - 8
    blank, keep = recogniser.ctc.blank, recogniser.anchors.keep_frames
    labels = torch.full_like(state.preview.labels, blank)
    state = replace(
        state,
        heard=torch.tensor([heard]),
        loudness=torch.full_like(state.loudness, over_background),
        quietest=torch.zeros(1),
    )

    def speech(labels: torch.Tensor) -> list[int]:
        shown = replace(state, preview=replace(state.preview, labels=labels))
        return shown.speech(rows, heard + 6, blank=blank, keep=keep)[0].nonzero()[:, 0].tolist()

    assert speech(labels) == []
    spoken = labels.clone()
    spoken[0, -4] = 0  # the fourth step from the end: frames heard - 16 to heard - 13, and two steps on either side
    assert speech(spoken) == list(range(heard - 24, heard - 4))
    labelled = replace(state, preview=replace(state.preview, labels=spoken)).labelled(heard + 6, blank=blank)
    assert labelled[0].nonzero()[:, 0].tolist() == list(range(heard - 16, heard - 12))  # the step itself
    assert bool(state.labelled(heard + 6, blank=None).all())  # without a head nothing is known against a frame
    headless = state.speech(rows, heard + 6, blank=None, keep=keep)[0].nonzero()[:, 0].tolist()
    assert headless == (list(range(heard)) if over_background else [])
