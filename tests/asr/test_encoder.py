"""The chunked encoder: its masks, its memory's bounds, and the two shapes it comes in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asr.encoder import Encoder, EncoderLayer
from asr.errors import SpeculationBudgetExceeded
from tests import tiny


def seen(encoder: Encoder, frames: int, chunk: int) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in encoder.chunk_mask(frames, chunk)[0, 0]]


def test_a_chunk_sees_itself_and_the_left_context_before_it() -> None:
    encoder = tiny.tiny_whisper_encoder(left_context_frames=3)
    assert seen(encoder, 6, 2) == [[0, 1], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]


def test_a_causal_frame_sees_its_window_whatever_the_chunk() -> None:
    encoder = tiny.tiny_causal_encoder(window_frames=3)
    assert seen(encoder, 5, 2) == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert seen(encoder, 5, 5) == seen(encoder, 5, 2)


def layers(encoder: Encoder) -> list[EncoderLayer]:
    return [layer for layer in encoder.layers if isinstance(layer, EncoderLayer)]


def biases(layer: EncoderLayer) -> list[str]:
    return sorted(name for name, _ in layer.named_parameters() if name.endswith("bias"))


def test_biases_are_where_the_checkpoints_have_them() -> None:
    whisper, causal = layers(tiny.tiny_whisper_encoder())[0], layers(tiny.tiny_causal_encoder())[0]
    attention = ["attention.out.bias", "attention.query.bias", "attention.value.bias"]
    norms = ["attention_norm.bias", "feed_forward.down.bias", "feed_forward.up.bias", "feed_forward_norm.bias"]
    assert biases(whisper) == sorted(attention + norms)
    assert biases(causal) == sorted([*attention, "feed_forward.down.bias"])
    assert biases(layers(tiny.tiny_causal_whisper_encoder())[0]) == biases(whisper)


def test_provisional_frames_are_encoded_anew_with_more_to_their_right() -> None:
    encoder, x = tiny.tiny_whisper_encoder(), torch.randn(1, 8, tiny.DIM)
    state = encoder.init_state(1, block_frames=8)
    first, state = encoder.step(x[:, :4], torch.tensor([4]), torch.tensor([2]), state, None)
    assert state.length.tolist() == [2]
    second, state = encoder.step(x[:, 2:], torch.tensor([6]), torch.tensor([6]), state, None)
    assert state.length.tolist() == [8]
    assert not torch.allclose(first[:, 2:], second[:, :2])
    # What a block has encoded does not depend on which of its frames become final.
    other = encoder.init_state(1, block_frames=8)
    torch.testing.assert_close(
        encoder.step(x[:, :4], torch.tensor([4]), torch.tensor([4]), other, None)[0], first, rtol=0, atol=1e-6
    )


def test_rows_of_a_pool_are_taken_by_number() -> None:
    encoder, x = tiny.tiny_whisper_encoder(), torch.randn(3, 4, tiny.DIM)
    four = torch.tensor([4, 4, 4])

    def twice(rows: Tensor | None, order: list[int]) -> Tensor:
        state = encoder.init_state(3, block_frames=4)
        counts = four if rows is None else four[: len(rows)]
        for _ in range(2):
            y, state = encoder.step(x[order], counts, counts, state, rows)
        return y

    whole = twice(None, [0, 1, 2])
    torch.testing.assert_close(twice(torch.tensor([2, 0]), [2, 0]), whole[[2, 0]], rtol=0, atol=1e-5)


def test_a_block_larger_than_the_state_was_made_for_is_refused() -> None:
    encoder = tiny.tiny_whisper_encoder(left_context_frames=4)
    state = encoder.init_state(1, block_frames=4)
    for _ in range(2):
        _, state = encoder.step(torch.randn(1, 4, tiny.DIM), torch.tensor([4]), torch.tensor([4]), state, None)
    with pytest.raises(SpeculationBudgetExceeded, match="a block of 5 positions does not fit a ring of 8 slots"):
        encoder.step(torch.randn(1, 5, tiny.DIM), torch.tensor([5]), torch.tensor([5]), state, None)


def test_a_reset_row_is_empty_and_the_others_are_not() -> None:
    encoder, four = tiny.tiny_whisper_encoder(), torch.tensor([4, 4])
    state = encoder.init_state(2, block_frames=4)
    _, state = encoder.step(torch.randn(2, 4, tiny.DIM), four, four, state, None)
    assert state.reset(torch.tensor([1])).length.tolist() == [4, 0]
