"""The cross family's decoder and its memory of frames."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asr.cross import CrossMemory, log_probabilities
from asr.errors import SpeculationBudgetExceeded
from tests import tiny

FRAMES = torch.randn(2, 10, tiny.DIM, generator=torch.Generator().manual_seed(60))
TOKENS = torch.randint(0, tiny.VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(61))


def lens(*counts: int) -> Tensor:
    return torch.tensor(counts)


@pytest.mark.parametrize("count", [1, 3, 12])
def test_rows_one_at_a_time_or_many_equal_the_teacher_forced_forward(count: int) -> None:
    decoder = tiny.tiny_cross_decoder()
    frame_lens = lens(10, 6)
    memory = decoder.remember(decoder.init_memory(2, frames=12), FRAMES, frame_lens, frame_lens, None)
    state = decoder.init_state(2)
    logits, attention = [], []
    for tokens in TOKENS.split(count, 1):
        hidden, weights = decoder.rows(tokens, lens(tokens.shape[1], tokens.shape[1]), state, memory)
        state = state.advance(lens(tokens.shape[1], tokens.shape[1]))
        logits.append(decoder.logits(hidden))
        attention.append(weights)
    expected_logits, expected_attention = decoder(TOKENS, FRAMES, frame_lens)
    torch.testing.assert_close(torch.cat(logits, 1), expected_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.cat(attention, 1), expected_attention, rtol=0, atol=1e-6)
    assert state.length.tolist() == [12, 12]


def test_attention_is_a_mean_over_the_alignment_heads_and_over_real_frames() -> None:
    decoder = tiny.tiny_cross_decoder()
    _, attention = decoder(TOKENS, FRAMES, lens(10, 6))
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, 12))
    assert not attention[1, :, 6:].any()
    assert (attention[0, :, 6:] > 0).all()


def test_rows_are_forgotten_unless_the_state_advances() -> None:
    decoder = tiny.tiny_cross_decoder()
    memory = decoder.remember(decoder.init_memory(2, frames=12), FRAMES, lens(10, 6), lens(10, 6), None)
    state = decoder.init_state(2)
    first, _ = decoder.rows(TOKENS[:, :3], lens(3, 3), state, memory)
    decoder.rows(TOKENS[:, 5:12], lens(7, 7), state, memory)
    again, _ = decoder.rows(TOKENS[:, :3], lens(3, 3), state, memory)
    assert torch.equal(first, again)


def content(memory: CrossMemory, row: int) -> Tensor:
    return memory.keys[0][row, :, : int(memory.frames[row])].transpose(0, 1)


def expected_content(frames: Tensor) -> Tensor:
    decoder = tiny.tiny_cross_decoder()
    layer = decoder._layers()[0]
    return layer.cross.keys_values(frames[None])[0][0].transpose(0, 1)


def test_provisional_frames_are_written_over_and_final_ones_stay() -> None:
    decoder = tiny.tiny_cross_decoder()
    memory = decoder.init_memory(2, frames=12)
    memory = decoder.remember(memory, FRAMES[:, :6], lens(6, 4), lens(3, 4), None)
    assert (memory.final.tolist(), memory.frames.tolist()) == ([3, 4], [6, 4])
    memory = decoder.remember(memory, FRAMES[:1, 6:9], lens(3), lens(2), torch.tensor([0]))
    assert (memory.final.tolist(), memory.frames.tolist()) == ([5, 4], [6, 4])
    torch.testing.assert_close(content(memory, 0), expected_content(torch.cat([FRAMES[0, :3], FRAMES[0, 6:9]])))
    torch.testing.assert_close(content(memory, 1), expected_content(FRAMES[1, :4]))
    assert memory.seen(None).tolist() == [6, 4]
    assert memory.seen(torch.tensor([1])).tolist() == [4]


def test_a_full_row_is_not_touched_by_the_padding_of_a_longer_block() -> None:
    decoder = tiny.tiny_cross_decoder()
    memory = decoder.init_memory(2, frames=8)
    memory = decoder.remember(memory, FRAMES[:, :6], lens(6, 1), lens(6, 1), None)
    memory = decoder.remember(memory, FRAMES[:, 4:10], lens(2, 6), lens(2, 6), None)
    torch.testing.assert_close(content(memory, 0), expected_content(torch.cat([FRAMES[0, :6], FRAMES[0, 4:6]])))
    torch.testing.assert_close(content(memory, 1), expected_content(torch.cat([FRAMES[1, :1], FRAMES[1, 4:10]])))


def test_a_memory_that_would_overflow_says_so() -> None:
    decoder = tiny.tiny_cross_decoder()
    memory = decoder.init_memory(1, frames=8)
    with pytest.raises(SpeculationBudgetExceeded, match=r"^a memory of 8 frames cannot hold 9; re-anchor earlier$"):
        decoder.remember(memory, FRAMES[:1, :9], lens(9), lens(9), None)


def test_text_that_would_pass_the_positions_is_refused() -> None:
    decoder = tiny.tiny_cross_decoder(text_positions=4)
    memory = decoder.remember(decoder.init_memory(2, frames=12), FRAMES, lens(10, 6), lens(10, 6), None)
    state = decoder.init_state(2).advance(lens(2, 0))
    decoder.rows(TOKENS[:, :4], lens(2, 4), state, memory)
    with pytest.raises(SpeculationBudgetExceeded):
        decoder.rows(TOKENS[:, :3], lens(3, 1), state, memory)


def test_log_probabilities_are_float32_whatever_comes_in() -> None:
    found = log_probabilities(torch.zeros(2, 4, dtype=torch.bfloat16))
    torch.testing.assert_close(found, torch.full((2, 4), 0.25).log())
