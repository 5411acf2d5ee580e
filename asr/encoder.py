"""The chunked encoder: blocks of final, provisional and silence frames over final ones (docs/design.md §2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asr.blocks import Attention, GeluFeedForward, Rotary, SwigluFeedForward, ring_mask
from asr.state import KVRing, Rings


class EncoderLayer(nn.Module):
    """Pre-norm self-attention and feed-forward."""

    def __init__(
        self, *, attention: Attention, feed_forward: nn.Module, attention_norm: nn.Module, feed_forward_norm: nn.Module
    ) -> None:
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.feed_forward_norm, self.feed_forward = feed_forward_norm, feed_forward

    def step(
        self, x: Tensor, positions: Tensor, lens: Tensor, ring: KVRing, mask: Tensor, rows: Tensor | None
    ) -> Tensor:
        """A block [k, T, C], lens [k] of it valid, through the layer."""
        x = x + self.attention.step(self.attention_norm(x), positions, lens, ring, mask, rows)
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """A whole clip [B, T, C] at once under mask [B, 1, T, T]: the training forward."""
        y = self.attention_norm(x)
        key, value = self.attention.keys_values(y, positions)
        x = x + self.attention.attend(self.attention.queries(y, positions), key, value, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Layers over a ring of final frames.

    Args:
        layers: the layers, bottom first.
        norm: the closing norm.
        left_context_frames: final frames a block may look back at.
        window_frames: None: blocks are bidirectional within themselves; n: causal sliding window of n frames.
    """

    def __init__(
        self, *, layers: list[EncoderLayer], norm: nn.Module, left_context_frames: int, window_frames: int | None
    ) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), norm
        self.left_context_frames, self.window_frames = left_context_frames, window_frames

    def init_state(self, batch: int, *, block_frames: int) -> Rings:
        """Empty memories that take blocks of up to `block_frames`."""
        weight = next(self.parameters())
        return Rings(
            tuple(
                KVRing.zeros(
                    batch=batch,
                    heads=layer.attention.kv_heads,
                    head_dim=layer.attention.head_dim,
                    left_context=self.left_context_frames,
                    slack=block_frames,
                    device=weight.device,
                    dtype=weight.dtype,
                )
                for layer in self._layers()
            )
        )

    def _layers(self) -> list[EncoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, EncoderLayer)]

    def step(self, x: Tensor, lens: Tensor, final: Tensor, state: Rings, rows: Tensor | None) -> tuple[Tensor, Rings]:
        """One block a row.

        Args:
            x: [k, T, C] the frames since the last final one, provisional and silence frames after them.
            lens: [k] valid frames of x.
            final: [k] how many of them, from the first, enter the memory.
            state: memories of all B slots.
            rows: [k] the slots in this call; None: all.
        Returns:
            y [k, T, C] and the new state.
        """
        length = state.rings[0].lengths(rows)
        positions = length[:, None] + torch.arange(x.shape[1], device=x.device)
        mask = ring_mask(state.rings[0], positions, lens, rows, window=self.window_frames)
        for layer, ring in zip(self._layers(), state.rings, strict=True):
            x = layer.step(x, positions, lens, ring, mask, rows)
        return self.norm(x), state.advance(final, rows)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The training forward: whole clips [B, T, C] under mask [B, 1, T, T] (`chunk_mask` for streaming)."""
        positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
        for layer in self._layers():
            x = layer(x, positions, mask)
        return self.norm(x)  # type: ignore[no-any-return]

    def chunk_mask(self, frames: int, chunk_frames: int, device: torch.device | None = None) -> Tensor:
        """[1, 1, T, T]: what `step` lets each frame see in plain chunks (R = S = 0)."""
        index = torch.arange(frames, device=device)
        start = index // chunk_frames * chunk_frames
        query, key = index[:, None], index[None, :]
        if self.window_frames is not None:
            return ((key <= query) & (key > query - self.window_frames))[None, None]
        seen = (key < (start + chunk_frames)[:, None]) & (key >= (start - self.left_context_frames)[:, None])
        return seen[None, None]


def whisper_encoder(*, layers: int, dim: int, heads: int, left_context_frames: int) -> Encoder:
    """Whisper's encoder (Radford et al. 2022): LayerNorm, exact GELU, absolute positions added before it."""
    return Encoder(
        layers=[
            EncoderLayer(
                attention=whisper_attention(dim=dim, heads=heads),
                feed_forward=GeluFeedForward(dim=dim, hidden=4 * dim),
                attention_norm=nn.LayerNorm(dim),
                feed_forward_norm=nn.LayerNorm(dim),
            )
            for _ in range(layers)
        ],
        norm=nn.LayerNorm(dim),
        left_context_frames=left_context_frames,
        window_frames=None,
    )


def causal_whisper_encoder(*, layers: int, dim: int, heads: int, theta: float, window_frames: int) -> Encoder:
    """Whisper's layers in a causal sliding window, with rotary positions in place of absolute ones: endless."""
    return Encoder(
        layers=[
            EncoderLayer(
                attention=whisper_attention(dim=dim, heads=heads, rotary=Rotary(head_dim=dim // heads, theta=theta)),
                feed_forward=GeluFeedForward(dim=dim, hidden=4 * dim),
                attention_norm=nn.LayerNorm(dim),
                feed_forward_norm=nn.LayerNorm(dim),
            )
            for _ in range(layers)
        ],
        norm=nn.LayerNorm(dim),
        left_context_frames=window_frames - 1,
        window_frames=window_frames,
    )


def whisper_attention(*, dim: int, heads: int, rotary: Rotary | None = None) -> Attention:
    """Whisper's attention: every projection but the key's has a bias."""
    return Attention(
        dim=dim,
        heads=heads,
        kv_heads=heads,
        head_dim=dim // heads,
        query_bias=True,
        key_bias=False,
        value_bias=True,
        output_bias=True,
        rotary=rotary,
    )


def causal_encoder(
    *, layers: int, dim: int, heads: int, head_dim: int, hidden: int, theta: float, window_frames: int
) -> Encoder:
    """Voxtral Realtime's encoder: RMSNorm, RoPE, SwiGLU, causal sliding window (reference facts: HF transformers)."""
    return Encoder(
        layers=[
            EncoderLayer(
                attention=Attention(
                    dim=dim,
                    heads=heads,
                    kv_heads=heads,
                    head_dim=head_dim,
                    query_bias=True,
                    key_bias=False,
                    value_bias=True,
                    output_bias=True,
                    rotary=Rotary(head_dim=head_dim, theta=theta),
                ),
                feed_forward=SwigluFeedForward(dim=dim, hidden=hidden, down_bias=True),
                attention_norm=nn.RMSNorm(dim, eps=1e-5),
                feed_forward_norm=nn.RMSNorm(dim, eps=1e-5),
            )
            for _ in range(layers)
        ],
        norm=nn.RMSNorm(dim, eps=1e-5),
        left_context_frames=window_frames - 1,
        window_frames=window_frames,
    )
