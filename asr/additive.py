"""The additive family's decoder: a decoder-only language model whose every row is heard audio plus what was said last.

Row t is a[t] + E(y[t-1]), waits included, and every row is remembered (Voxtral Realtime; facts from Hugging Face
transformers). The delay τ conditions the MLP branch of each layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.blocks import Attention, Rotary, SwigluFeedForward, ring_mask
from asr.errors import ConfigError
from asr.invariant import Linear, linear
from asr.state import KVRing, Rings


class DelayCondition(nn.Module):
    """What a layer makes of the delay: g = W2 · GELU(W1 · t), t = (cos(τ w), sin(τ w)), w_i = 10000^(-i / (C/2)).

    Args:
        dim: C, even.
        hidden: rows of W1 (32 in Voxtral Realtime).
    """

    frequency: Tensor

    def __init__(self, *, dim: int, hidden: int) -> None:
        super().__init__()
        if dim % 2:
            raise ConfigError(f"dim is {dim}; the delay's sines and cosines need an even one")
        half = dim // 2
        self.register_buffer(
            "frequency", torch.exp(-math.log(10_000) * torch.arange(half) / half), persistent=False
        )  # [C/2]
        self.first = Linear(dim, hidden, bias=False)
        self.second = Linear(hidden, dim, bias=False)

    def embed(self, delay: Tensor) -> Tensor:
        """τ in steps [B] -> t [B, C], cosines first; computed in float32."""
        angle = delay[:, None].float() * self.frequency.float()
        return torch.cat([angle.cos(), angle.sin()], 1)

    def forward(self, delay: Tensor) -> Tensor:
        """τ in steps [B] -> g [B, 1, C]; the layer's MLP reads h · (1 + g)."""
        t = self.embed(delay).to(self.first.weight.dtype)
        return self.second(F.gelu(self.first(t)))[:, None]  # type: ignore[no-any-return]


class AdditiveLayer(nn.Module):
    """Pre-norm self-attention and SwiGLU, without biases; only the MLP branch knows the delay."""

    def __init__(
        self, *, dim: int, heads: int, kv_heads: int, head_dim: int, hidden: int, theta: float, condition_dim: int
    ) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention = Attention(
            dim=dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            query_bias=False,
            key_bias=False,
            value_bias=False,
            output_bias=False,
            rotary=Rotary(head_dim=head_dim, theta=theta),
        )
        self.feed_forward_norm = nn.RMSNorm(dim, eps=1e-5)
        self.condition = DelayCondition(dim=dim, hidden=condition_dim)
        self.feed_forward = SwigluFeedForward(dim=dim, hidden=hidden, down_bias=False)

    def modulated(self, x: Tensor, delay: Tensor) -> Tensor:
        """[B, T, C] after the attention -> [B, T, C] after the MLP, at delays [B]."""
        return x + self.feed_forward(self.feed_forward_norm(x) * (1 + self.condition(delay)))  # type: ignore[no-any-return]

    def step(
        self,
        x: Tensor,
        positions: Tensor,
        lens: Tensor,
        delay: Tensor,
        ring: KVRing,
        mask: Tensor,
        rows: Tensor | None,
    ) -> Tensor:
        """A block [k, T, C], lens [k] of it valid, through the layer."""
        x = x + self.attention.step(self.attention_norm(x), positions, lens, ring, mask, rows)
        return self.modulated(x, delay)

    def forward(self, x: Tensor, positions: Tensor, delay: Tensor, mask: Tensor) -> Tensor:
        """Whole sequences [B, T, C] at once under mask [B, 1, T, T]: the training forward."""
        y = self.attention_norm(x)
        key, value = self.attention.keys_values(y, positions)
        x = x + self.attention.attend(self.attention.queries(y, positions), key, value, mask)
        return self.modulated(x, delay)


class AdditiveDecoder(nn.Module):
    """RMSNorm, RoPE, grouped queries, SwiGLU, sliding window, tied embedding.

    Args:
        outputs: V + 1, the text ids and the wait behind them.
        layers, dim, heads, kv_heads, head_dim, hidden, theta: the decoder's shape.
        window_steps: rows that a row may see, itself included.
        condition_dim: inner size of the delay's conditioning.
    """

    def __init__(
        self,
        *,
        outputs: int,
        layers: int,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        hidden: int,
        theta: float,
        window_steps: int,
        condition_dim: int,
    ) -> None:
        super().__init__()
        self.dim, self.kv_heads, self.head_dim, self.window_steps = dim, kv_heads, head_dim, window_steps
        self.embedding = nn.Embedding(outputs, dim)
        self.readout: nn.Module | None = None  # None: the embedding
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)  # tied to the output: larger rows would drown the audio
        self.layers = nn.ModuleList(
            [
                AdditiveLayer(
                    dim=dim,
                    heads=heads,
                    kv_heads=kv_heads,
                    head_dim=head_dim,
                    hidden=hidden,
                    theta=theta,
                    condition_dim=condition_dim,
                )
                for _ in range(layers)
            ]
        )
        self.norm = nn.RMSNorm(dim, eps=1e-5)

    def _layers(self) -> list[AdditiveLayer]:
        return [layer for layer in self.layers if isinstance(layer, AdditiveLayer)]

    def init_state(self, batch: int, *, max_rows: int) -> Rings:
        """No past; up to `max_rows` rows may run at once and be taken back."""
        weight = self.embedding.weight
        return Rings(
            tuple(
                KVRing.zeros(
                    batch=batch,
                    heads=self.kv_heads,
                    head_dim=self.head_dim,
                    left_context=self.window_steps - 1,
                    slack=max_rows,
                    device=weight.device,
                    dtype=weight.dtype,
                )
                for _ in self.layers
            )
        )

    def rows(
        self, tokens: Tensor, audio: Tensor, delay: Tensor, lens: Tensor, state: Rings, rows: Tensor | None = None
    ) -> Tensor:
        """Runs n rows a stream after the remembered ones, causally, as if one by one; `state.advance` remembers them.

        Args:
            tokens: [k, n] the output before each row (true or drafted).
            audio: [k, n, C] each row's audio step.
            delay: [k] τ in steps.
            lens: [k] valid rows, 0 idles.
            state: the past.
            rows: [k] the slots in this call; None: all.
        Returns:
            hidden [k, n, C] after the closing norm.
        Raises:
            SpeculationBudgetExceeded: if n is more than the state was made for.
        """
        length = state.length if rows is None else state.length[rows]
        positions = length[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        mask = ring_mask(state.rings[0], positions, lens, rows, window=self.window_steps)
        x = self.embedding(tokens) + audio
        for layer, ring in zip(self._layers(), state.rings, strict=True):
            x = layer.step(x, positions, lens, delay, ring, mask, rows)
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., C] -> [..., V + 1], the wait last; tied to the embedding."""
        if self.readout is not None:
            return self.readout(hidden)  # type: ignore[no-any-return]
        return linear(hidden, self.embedding.weight)

    def forward(self, tokens: Tensor, audio: Tensor, delay: Tensor) -> Tensor:
        """The teacher-forced training forward: tokens [B, T], audio [B, T, C], delay [B] -> logits [B, T, V + 1]."""
        index = torch.arange(tokens.shape[1], device=tokens.device)
        query, key = index[:, None], index[None, :]
        mask = ((key <= query) & (key > query - self.window_steps))[None, None]
        positions = index.expand(tokens.shape[0], -1)
        x = self.embedding(tokens) + audio
        for layer in self._layers():
            x = layer(x, positions, delay, mask)
        return self.logits(self.norm(x))
