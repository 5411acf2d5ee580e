"""The transformer parts that the encoder and both decoder families are made of.

Shapes: B streams, T positions, C channels, H heads, D per head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.errors import ConfigError
from asr.invariant import Linear, queries_filled_up
from asr.state import KVRing


class Rotary(nn.Module):
    """Rotary position embedding, half-split layout (Su et al. 2021; layout of Hugging Face transformers).

    Angles are computed in float64 from integer positions: in float32 the cosine is off by 0.18 at position 10^7.
    """

    inverse_frequency: Tensor

    def __init__(self, *, head_dim: int, theta: float) -> None:
        super().__init__()
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        self.register_buffer("inverse_frequency", theta**-exponent, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates x [B, H, T, D] by its positions [B, T]."""
        inverse_frequency = self.inverse_frequency.to(torch.float64)
        angle = positions[:, None, :, None].to(torch.float64) * inverse_frequency  # [B, 1, T, D/2]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def stream_by_stream(
    product: Callable[..., Tensor], rows: Tensor | None, mine: Sequence[Tensor], memory: Sequence[Tensor]
) -> Tensor:
    """`product` of what k streams bring and what they remember, whose memory holds all B streams.

    A processor runs one stream after another, so that what `rows` [k] remember is not copied to stand together; the
    sums are those of one call.

    Args:
        mine: each [k, …]; memory: each [B, …], of which `rows` count; None: all.
    """
    if rows is None:
        return product(*mine, *memory)
    if rows.device.type != "cpu" or not rows.shape[0]:
        return product(*mine, *(part[rows] for part in memory))
    return torch.cat(
        [
            product(*(part[at : at + 1] for part in mine), *(part[row : row + 1] for part in memory))
            for at, row in enumerate(rows.tolist())
        ]
    )


class Attention(nn.Module):
    """Multi-head (grouped-query) attention: projections and the weighted sum; memory and masks come from outside.

    Args:
        dim: C.
        heads, kv_heads: query heads and key-value heads; heads % kv_heads == 0.
        head_dim: D.
        query_bias, key_bias, value_bias, output_bias: which projections have a bias (Whisper: all but the key).
        rotary: rotates queries and keys; None for absolute positions.
    """

    def __init__(
        self,
        *,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        query_bias: bool,
        key_bias: bool,
        value_bias: bool,
        output_bias: bool,
        rotary: Rotary | None,
    ) -> None:
        super().__init__()
        if heads % kv_heads:
            raise ConfigError(f"heads ({heads}) must be a multiple of kv_heads ({kv_heads})")
        self.heads, self.kv_heads, self.head_dim, self.rotary = heads, kv_heads, head_dim, rotary
        self.query = Linear(dim, heads * head_dim, bias=query_bias)
        self.key = Linear(dim, kv_heads * head_dim, bias=key_bias)
        self.value = Linear(dim, kv_heads * head_dim, bias=value_bias)
        self.out = Linear(heads * head_dim, dim, bias=output_bias)

    def split(self, x: Tensor) -> Tensor:
        """[B, T, H*D] -> [B, H, T, D]."""
        return x.view(x.shape[0], x.shape[1], -1, self.head_dim).transpose(1, 2)

    def queries(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """[B, T, C] -> [B, H, T, D], rotated where the positions are relative."""
        query = self.split(self.query(x))
        return query if self.rotary is None or positions is None else self.rotary(query, positions)

    def keys_values(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[B, T, C] -> keys and values [B, kv_heads, T, D]."""
        key, value = self.split(self.key(x)), self.split(self.value(x))
        return (key if self.rotary is None or positions is None else self.rotary(key, positions)), value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, rows: Tensor | None = None) -> Tensor:
        """Output [k, T, C] of queries [k, H, T, D] on the keys and values [B, H, S, D] of `rows` [k], or of all.

        Args:
            mask: [k, 1, T, S], True where a query may look.
        """
        count = query.shape[2]
        query, mask = queries_filled_up(query, mask)
        grouped = self.heads != self.kv_heads

        def fused(query: Tensor, mask: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)

        y = stream_by_stream(fused, rows, (query, mask), (key, value))[:, :, :count]
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def attend_with_weights(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`attend`, and the attention weights [k, H, T, S]; heads == kv_heads."""
        count = query.shape[2]
        query, mask = queries_filled_up(query, mask)
        score = stream_by_stream(torch.matmul, rows, (query,), (key.transpose(-1, -2),))
        score = score * (1 / math.sqrt(self.head_dim))
        weight = score.masked_fill(~mask, -math.inf).softmax(-1)  # [k, H, T, S]
        seen = stream_by_stream(torch.matmul, rows, (weight,), (value,))[:, :, :count]
        return self.out(seen.transpose(1, 2).flatten(2)), weight[:, :, :count]

    def step(
        self, x: Tensor, positions: Tensor, lens: Tensor, ring: KVRing, mask: Tensor, rows: Tensor | None
    ) -> Tensor:
        """Self-attention of a block [k, T, C] that has been given its mask over the ring; writes the keys and values of
        its lens [k] valid positions uncommitted."""
        key, value = self.keys_values(x, positions)
        ring.write(key, value, lens, rows)
        keys, values = ring.readable(x.shape[1], rows)
        return self.attend(self.queries(x, positions), keys, values, mask, rows)


class GeluFeedForward(nn.Module):
    """Linear, exact GELU, Linear (Whisper)."""

    def __init__(self, *, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = Linear(dim, hidden)
        self.down = Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return self.down(F.gelu(self.up(x)))  # type: ignore[no-any-return]


class SwigluFeedForward(nn.Module):
    """SwiGLU (Shazeer 2020); `down_bias` as Voxtral Realtime's encoder has it, its decoder not."""

    def __init__(self, *, dim: int, hidden: int, down_bias: bool) -> None:
        super().__init__()
        self.gate = Linear(dim, hidden, bias=False)
        self.up = Linear(dim, hidden, bias=False)
        self.down = Linear(hidden, dim, bias=down_bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


def ring_mask(ring: KVRing, positions: Tensor, lens: Tensor, rows: Tensor | None, *, window: int | None) -> Tensor:
    """Which slots each query of a block may see, once the block has been written.

    Args:
        ring: the memory before the block is committed.
        positions: [k, T] absolute positions of the block's queries.
        lens: [k] valid positions of the block; later ones are padding that nobody sees.
        window: None: the committed left context and the whole block (bidirectional within it); n: causal, the last n
            positions, one's own included (Voxtral Realtime's sliding window).
    Returns:
        [k, 1, T, visible] bool. Padding queries see what the first query sees, so that no row of the softmax is empty.
    """
    count = positions.shape[1]
    length = ring.lengths(rows)
    end = length + lens.clamp(min=1)
    slots = torch.arange(ring.visible(count, rows), device=positions.device)
    last = end[:, None] - 1  # the newest position that a slot may hold
    slot = last - (last - slots) % ring.capacity
    valid = (slot >= (length - ring.left_context).clamp(min=0)[:, None]) & (slot < end[:, None])  # [k, visible]
    valid &= slots < ring.capacity
    if window is None:
        return valid[:, None, None, :].expand(-1, 1, count, -1)
    query = torch.minimum(positions, (end - 1)[:, None])[:, :, None]  # padding asks from the last valid position
    return (valid[:, None, :] & (slot[:, None, :] <= query) & (slot[:, None, :] > query - window))[:, None]
