"""Multi-token heads: where they listen, what they start from, what a recogniser makes of their guesses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from asr.config import RowSettings
from asr.cross_recogniser import CrossRecogniser, CrossState
from asr.mtp import WINDOW_FRAMES, WINDOWS, MtpHeads, attended, pooled_ahead
from asr.units import STEP_SAMPLES
from tests import tiny

ONE = tiny.rows_of(tiny.settings(1, 4))


def test_the_median_of_the_attention_leaves_the_sinks_out() -> None:
    attention = torch.tensor([[9.0, 0, 1, 1, 1, 0], [0, 9.0, 0, 0, 0, 1]])
    assert attended(attention, sink_frames=2).tolist() == [3, 5]
    assert attended(attention, sink_frames=1).tolist() == [3, 1]


def test_what_was_not_heard_yet_is_zero() -> None:
    features = 1 + torch.arange(100.0)[None, :, None].expand(1, 100, 2)
    windows = pooled_ahead(features, torch.tensor([20]), torch.tensor([[0, 16, 30]])).view(3, WINDOWS, 2)
    assert windows[0, :, 0].tolist() == [4.5, 12.5, (17 + 18 + 19 + 20) / WINDOW_FRAMES, *[0] * (WINDOWS - 3)]
    assert windows[1, :, 1].tolist() == [(17 + 18 + 19 + 20) / WINDOW_FRAMES, *[0] * (WINDOWS - 1)]
    assert float(windows[2].abs().max()) == 0


def test_fresh_heads_say_what_the_decoder_says_among_their_pieces() -> None:
    heads = MtpHeads(dim=8, heads=3, pieces=5)
    hidden, embedding = torch.randn(2, 8), torch.randn(9, 8)
    logits = heads(hidden, torch.randn(2, WINDOWS * 8), embedding)
    assert logits.shape == (2, 3, 5)
    for head in range(3):
        torch.testing.assert_close(logits[:, head], (hidden @ embedding.T)[:, :5])


class Certain(MtpHeads):
    """Heads that are sure of pieces 3, 4 and 5."""

    def forward(self, hidden: Tensor, ahead: Tensor, embedding: Tensor) -> Tensor:
        logits = torch.zeros(hidden.shape[0], 3, self.pieces)
        logits[:, [0, 1, 2], [3, 4, 5]] = self.height
        return logits

    height = 20.0


def listening(heads: MtpHeads) -> tuple[CrossRecogniser, CrossState]:
    model = tiny.tiny_cross(gate=tiny.EverySecondStep())
    model.mtp = heads
    state = model.init_state(1, max_chunk_steps=4, max_right=0, max_silence=0)
    return model, model.listen(tiny.sound(4 * STEP_SAMPLES, 3)[None], torch.tensor([4 * STEP_SAMPLES]), ONE, state)


def guess(model: CrossRecogniser, state: CrossState) -> list[int]:
    pieces, lens, _ = model.guesses(torch.tensor([0]), state)
    return pieces[0, : int(lens[0])].tolist()


YES, SETTINGS = torch.tensor([True]), RowSettings.stack([tiny.settings(1, 4)])


def test_a_guess_goes_on_behind_what_was_written() -> None:
    model, state = listening(Certain(dim=tiny.DIM, heads=3, pieces=20))
    assert guess(model, state) == []  # no row has said anything yet
    output, state = model.row(YES, SETTINGS, state)
    logits = state.row.said[2].clone()
    logits[0, 0, 7] = 50.0  # the row is sure of piece 7
    state = replace(state, row=replace(state.row, said=(*state.row.said[:2], logits)))
    assert guess(model, state) == [7, 3, 4, 5]  # not written yet: it comes first
    spoken = model.accept(YES, torch.tensor([7]), output, state)
    assert guess(model, spoken) == [3, 4, 5]
    waited = model.accept(YES, torch.tensor([-1]), output, state)
    assert guess(model, waited) == [7, 3, 4, 5]
    assert guess(model, model.reset(spoken, torch.tensor([0]))) == []


def test_a_guess_ends_where_it_is_unlikely_or_the_text_ends() -> None:
    heads = Certain(dim=tiny.DIM, heads=3, pieces=20)
    model, state = listening(heads)
    _, state = model.row(YES, SETTINGS, state)
    logits = state.row.said[2].clone()
    logits[0, 0, tiny.END] = 50.0
    ended = replace(state, row=replace(state.row, said=(*state.row.said[:2], logits)))
    assert guess(model, ended) == []
    heads.height = 2.6  # each of the three has probability 0.41, two of them 0.17, all three 0.07
    spoken = replace(state, row=replace(state.row, settled=YES))
    assert guess(model, spoken) == [3, 4]


def test_without_heads_the_guess_is_what_the_decoder_meant_to_write() -> None:
    model, state = listening(Certain(dim=tiny.DIM, heads=3, pieces=20))
    model.mtp = None
    output, state = model.row(YES, SETTINGS, state)
    logits = state.row.said[2].clone()
    logits[0, 0, 7] = 50.0
    state = replace(state, row=replace(state.row, said=(*state.row.said[:2], logits)))
    assert guess(model, state) == [7]
    assert model.guesses(torch.tensor([0]), state)[2].tolist() == [True]
    written = model.accept(YES, torch.tensor([7]), output, state)
    assert guess(model, written) == []


@pytest.mark.parametrize("heads", [1, 5])
def test_each_head_has_weights_of_its_own(heads: int) -> None:
    model = MtpHeads(dim=8, heads=heads, pieces=5)
    tiny.randomised(model)
    logits = model(torch.randn(1, 8), torch.randn(1, WINDOWS * 8), torch.randn(5, 8))
    assert len({tuple(row) for row in logits[0].tolist()}) == heads
