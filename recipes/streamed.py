"""The streaming forward of the cross family, all blocks of whole clips at once, with gradients.

What `asr.encoder.Encoder.step` and `asr.cross.CrossDecoder.rows` do block after block, done in parallel: each block's
final, provisional and silence frames are rows of one tensor, and look at one another and at the frames that earlier
blocks left final. Equal to the streamed computation (tests/recipes/test_streamed.py).

B clips, K blocks, L frames a block (padding behind short ones), T frames a clip, n text rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.blocks import Attention
from asr.config import ChunkSetting
from asr.cross import CrossLayer
from asr.cross_recogniser import CrossRecogniser
from asr.encoder import EncoderLayer
from asr.units import FRAMES_PER_STEP

__all__ = ["Layout", "StreamedMemory", "decode_streamed", "encode_streamed"]


@dataclass(frozen=True)
class Layout:
    """Where the frames of streamed clips lie.

    Attributes:
        frame: [K, L] the frame at each place, counted from the clip's start; silence frames go on behind the last one.
        real: [K, L] whether it is a frame of the clip; valid: [K, L] whether the place holds a frame at all.
        begin: [K] how many frames earlier blocks have left final.
        owner: [T'] the place (k * L + l) of every frame that becomes final.
        chunk_steps: steps a block.
    """

    frame: Tensor
    real: Tensor
    valid: Tensor
    begin: Tensor
    owner: Tensor
    chunk_steps: int

    @classmethod
    def of(cls, chunk: ChunkSetting, frames: int) -> Layout:
        """The layout of clips of `frames` frames, a multiple of the chunk's."""
        size = chunk.chunk_steps * FRAMES_PER_STEP
        now = torch.arange(1, frames // size + 1) * size  # [K] heard
        final = (now - chunk.right_frames).clamp(min=0)
        begin = torch.cat([final.new_zeros(1), final[:-1]])
        place = torch.arange(size + chunk.right_frames + chunk.silence_frames)
        real = place < (now - begin)[:, None]
        valid = place < (now - begin)[:, None] + chunk.silence_frames
        index = torch.arange(int(final[-1]))
        block = torch.searchsorted(final, index, right=True)
        owner = block * place.shape[0] + index - begin[block]
        return cls(begin[:, None] + place, real, valid, begin, owner, chunk.chunk_steps)

    @property
    def blocks(self) -> int:
        """K."""
        return self.frame.shape[0]

    @property
    def size(self) -> int:
        """L."""
        return self.frame.shape[1]

    def whole(self) -> Tensor:
        """[T] the place of every frame of the clip: where it became final, or in the last block."""
        last = self.blocks - 1
        rest = torch.arange(int(self.real[last].sum())) + int(self.begin[last])
        return torch.cat([self.owner[: int(self.begin[last])], last * self.size + rest - int(self.begin[last])])


@dataclass(frozen=True)
class StreamedMemory:
    """Attributes: features: [B, K * L, C] every block's encoder output; layout: what lies where."""

    features: Tensor
    layout: Layout

    def final(self) -> Tensor:
        """[B, T, C] the frames as they are at the end of the clip."""
        return self.features[:, self.layout.whole()]


def encode_streamed(recogniser: CrossRecogniser, frames: Tensor, layout: Layout) -> StreamedMemory:
    """Encoder output of all blocks.

    Args:
        frames: [B, T, C] of the front end.
        layout: for T frames.
    """
    batch, dim = frames.shape[0], frames.shape[2]
    real = layout.real.flatten()
    picked = frames[:, layout.frame.flatten().clamp(max=frames.shape[1] - 1)]
    x = torch.where(real[:, None], picked, recogniser.frontend.silent_frame())
    limit = recogniser.max_frames - 1
    x = x + recogniser.encoder_positions[layout.frame.flatten().clamp(max=limit)]
    encoder = recogniser.encoder
    index = torch.arange(layout.owner.shape[0])
    old = (index < layout.begin[:, None]) & (index >= layout.begin[:, None] - encoder.left_context_frames)
    old = old[:, None].expand(-1, layout.size, -1).flatten(0, 1)  # [K * L, T']
    for layer in encoder.layers:
        assert isinstance(layer, EncoderLayer)
        y = layer.attention_norm(x)
        attention = layer.attention
        key, value = attention.keys_values(y)  # [B, H, K * L, D]
        query = attention.queries(y)
        shape = (batch, attention.heads, layout.blocks, layout.size, attention.head_dim)
        seen = _look(
            query,
            (key[:, :, layout.owner], value[:, :, layout.owner], old),
            (key.view(shape), value.view(shape), layout.valid),
            layout,
        )
        x = x + attention.out(seen.transpose(1, 2).reshape(batch, -1, dim))
        x = x + layer.feed_forward(layer.feed_forward_norm(x))
    return StreamedMemory(encoder.norm(x), layout)


def _look(
    query: Tensor, old: tuple[Tensor, Tensor, Tensor], own: tuple[Tensor, Tensor, Tensor], layout: Layout
) -> Tensor:
    """[B, H, K * L, D] of queries over final frames and their own block."""
    scale = 1 / math.sqrt(query.shape[-1])
    keys, values, mask = old
    block_keys, block_values, valid = own
    blocks = query.view(block_keys.shape)
    far = (query @ keys.transpose(-1, -2) * scale).masked_fill(~mask, -math.inf)  # [B, H, K * L, T']
    near = (blocks @ block_keys.transpose(-1, -2) * scale).masked_fill(~valid[:, None, :], -math.inf)
    weight = torch.cat([far, near.flatten(2, 3)], -1).softmax(-1)
    count = keys.shape[2]
    inside = weight[..., count:].view(*blocks.shape[:-1], layout.size) @ block_values
    return weight[..., :count] @ values + inside.flatten(2, 3)


def decode_streamed(recogniser: CrossRecogniser, memory: StreamedMemory, tokens: Tensor, block: Tensor) -> Tensor:
    """Hidden states [B, n, C] of teacher-forced rows, each over the memory of its own block.

    Args:
        memory: of B clips, or of one that all texts are read over.
        tokens: [B, n] what each row reads, the prompt first.
        block: [B, n] the block in which each row is run.
    """
    decoder, layout = recogniser.decoder, memory.layout
    batch, count = tokens.shape
    x = decoder.embedding(tokens) + decoder.positions[:count]
    causal = torch.ones(count, count, dtype=torch.bool).tril()[None, None]
    index = torch.arange(layout.owner.shape[0])
    old = (index < layout.begin[block][:, :, None])[:, None]  # [B, 1, n, T']
    valid = layout.valid[block][:, None]  # [B, 1, n, L]
    row = torch.arange(batch)[:, None] if memory.features.shape[0] > 1 else torch.zeros(batch, 1, dtype=torch.int64)
    for layer in decoder.layers:
        assert isinstance(layer, CrossLayer)
        y = layer.attention_norm(x)
        x = x + layer.attention.attend(layer.attention.queries(y), *layer.attention.keys_values(y), causal)
        x = x + _cross(layer.cross, layer.cross_norm(x), memory.features, layout, old, valid, row, block)
        x = x + layer.feed_forward(layer.feed_forward_norm(x))
    hidden: Tensor = decoder.norm(x)
    return hidden


def _cross(
    cross: Attention,
    x: Tensor,
    features: Tensor,
    layout: Layout,
    old: Tensor,
    valid: Tensor,
    row: Tensor,
    block: Tensor,
) -> Tensor:
    """Cross-attention of rows [B, n, C] over the final frames before their block and the block itself."""
    key, value = cross.keys_values(features)  # [B, H, K * L, D]
    query = cross.queries(x) * (1 / math.sqrt(cross.head_dim))  # [B, H, n, D]
    shape = (key.shape[0], key.shape[1], layout.blocks, layout.size, key.shape[3])
    far = (query @ key[:, :, layout.owner].transpose(-1, -2)).masked_fill(~old, -math.inf)
    own_key = key.view(shape).transpose(1, 2)[row, block]  # [B, n, H, L, D]
    own_value = value.view(shape).transpose(1, 2)[row, block]
    rows = query.transpose(1, 2)[:, :, :, None]  # [B, n, H, 1, D]
    near = (rows @ own_key.transpose(-1, -2))[:, :, :, 0].transpose(1, 2).masked_fill(~valid, -math.inf)
    weight = torch.cat([far, near], -1).softmax(-1)  # [B, H, n, T' + L]
    count = far.shape[-1]
    seen = weight[..., :count] @ value[:, :, layout.owner]
    inside = weight[..., count:].transpose(1, 2)[:, :, :, None] @ own_value  # [B, n, H, 1, D]
    seen = seen + inside[:, :, :, 0].transpose(1, 2)
    return cross.out(seen.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]
