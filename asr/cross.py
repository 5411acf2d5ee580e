"""The cross family's decoder: Whisper's, run on the step clock over a growing memory of encoder frames.

A row is the last real token at position "number of real tokens"; self-attention remembers only the rows that emitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.blocks import Attention, GeluFeedForward, ring_mask
from asr.encoder import whisper_attention
from asr.errors import SpeculationBudgetExceeded
from asr.invariant import KEYS, filled_up, linear
from asr.state import KVRing, Rings


@dataclass(frozen=True)
class CrossMemory:
    """Cross-attention keys and values of the frames since the anchor.

    Attributes:
        keys, values: per layer [B, H, more than M, D]. The first `final` frames stay; those up to `frames` are the
            present block's provisional and silence frames, written over by the next block; slot M takes padding.
        features: [B, M + 1, C] the encoder's output that they were made of.
        final, frames: [B] counts.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    features: Tensor
    final: Tensor
    frames: Tensor

    @property
    def capacity(self) -> int:
        """Frames a row can hold."""
        return self.features.shape[1] - 1

    def seen(self, rows: Tensor | None) -> Tensor:
        """[k] frames that `rows` look through, at least one."""
        return (self.frames if rows is None else self.frames[rows]).clamp(min=1)

    def readable(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """A layer's first `count` keys and values [B, H, count, D]."""
        return self.keys[layer][:, :, :count], self.values[layer][:, :, :count]

    def write(
        self,
        keys: list[Tensor],
        values: list[Tensor],
        features: Tensor,
        lens: Tensor,
        final: Tensor,
        rows: Tensor | None,
    ) -> CrossMemory:
        """The memory after a block.

        Args:
            keys, values: [k, H, T, D] per layer; features: [k, T, C] what they were made of.
            lens: [k] valid frames; final: [k] how many of them will stay.
            rows: [k] the slots in this call; None: all.
        """
        count = keys[0].shape[2]
        index = torch.arange(self.final.shape[0], device=lens.device) if rows is None else rows
        start = self.final[index]
        if int((start + lens).max()) > self.capacity:
            raise SpeculationBudgetExceeded(
                f"a memory of {self.capacity} frames cannot hold {int((start + lens).max())}; re-anchor earlier"
            )
        offset = torch.arange(count, device=lens.device)
        slots = torch.where(offset < lens[:, None], start[:, None] + offset, self.capacity)
        for mine, new in zip((*self.keys, *self.values), (*keys, *values), strict=True):
            mine[index[:, None], :, slots] = new.transpose(1, 2)
        self.features[index[:, None], slots] = features
        return replace(
            self,
            final=self.final.index_copy(0, index, start + final),
            frames=self.frames.index_copy(0, index, start + lens),
        )

    def reset(self, rows: Tensor) -> CrossMemory:
        """The memory in which `rows` have heard nothing."""
        return replace(self, final=self.final.index_fill(0, rows, 0), frames=self.frames.index_fill(0, rows, 0))


class CrossLayer(nn.Module):
    """Pre-norm self-attention, cross-attention and feed-forward."""

    def __init__(self, *, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention: Attention = whisper_attention(dim=dim, heads=heads)
        self.cross_norm = nn.LayerNorm(dim)
        self.cross: Attention = whisper_attention(dim=dim, heads=heads)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.feed_forward = GeluFeedForward(dim=dim, hidden=4 * dim)

    def look(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Cross-attention, on the keys and values of `rows` or of all, and feed-forward: [k, n, C] and the weights
        [k, H, n, S]."""
        query = self.cross.queries(self.cross_norm(x))
        seen, weights = self.cross.attend_with_weights(query, keys, values, mask, rows)
        x = x + seen
        return x + self.feed_forward(self.feed_forward_norm(x)), weights


class CrossDecoder(nn.Module):
    """Whisper's decoder (Radford et al. 2022) over `CrossMemory`.

    Args:
        vocabulary: V.
        layers, dim, heads: the decoder's shape; head size dim / heads.
        text_positions: learned positions, an upper bound on the tokens between two anchors.
        alignment_heads: (layer, head) pairs whose attention follows the speech.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        layers: int,
        dim: int,
        heads: int,
        text_positions: int,
        alignment_heads: tuple[tuple[int, int], ...],
    ) -> None:
        super().__init__()
        self.dim, self.heads, self.text_positions, self.alignment_heads = dim, heads, text_positions, alignment_heads
        self.embedding = nn.Embedding(vocabulary, dim)
        self.readout: nn.Module | None = None  # None: the embedding
        self.positions = nn.Parameter(torch.zeros(text_positions, dim))
        self.layers = nn.ModuleList([CrossLayer(dim=dim, heads=heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)

    def _layers(self) -> list[CrossLayer]:
        return [layer for layer in self.layers if isinstance(layer, CrossLayer)]

    def init_memory(self, batch: int, *, frames: int) -> CrossMemory:
        """An empty memory of up to `frames` frames a row."""
        weight = self.embedding.weight
        shape = (batch, self.heads, filled_up(frames + 1, KEYS), self.dim // self.heads)
        zero = torch.zeros(batch, dtype=torch.int64, device=weight.device)
        keys, values = (tuple(weight.new_zeros(shape) for _ in self.layers) for _ in range(2))
        return CrossMemory(keys, values, weight.new_zeros(batch, frames + 1, self.dim), zero, zero)

    def init_state(self, batch: int) -> Rings:
        """No text."""
        weight = self.embedding.weight
        return Rings(
            tuple(
                KVRing.zeros(
                    batch=batch,
                    heads=self.heads,
                    head_dim=self.dim // self.heads,
                    left_context=self.text_positions,
                    slack=0,
                    device=weight.device,
                    dtype=weight.dtype,
                )
                for _ in self.layers
            )
        )

    def remember(
        self, memory: CrossMemory, frames: Tensor, lens: Tensor, final: Tensor, rows: Tensor | None
    ) -> CrossMemory:
        """The memory with a block of encoder frames [k, T, C] in it, of which final [k] stay."""
        pairs = [layer.cross.keys_values(frames) for layer in self._layers()]
        return memory.write([key for key, _ in pairs], [value for _, value in pairs], frames, lens, final, rows)

    def rows(
        self, tokens: Tensor, lens: Tensor, state: Rings, memory: CrossMemory, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Runs n tokens a stream after the remembered ones, causally, as if one by one; `state.advance` remembers them.

        Args:
            tokens: [k, n] ids, true or drafted; position of the first is the number of remembered rows.
            lens: [k] valid tokens, 0 idles.
            state, memory: what the rows attend to.
            rows: [k] the slots in this call; None: all.
        Returns:
            hidden [k, n, C] after the closing norm, and the alignment heads' mean attention [k, n, S] over the
            memory's visible frames.
        """
        count = tokens.shape[1]
        length = state.length if rows is None else state.length[rows]
        positions = length[:, None] + torch.arange(count, device=tokens.device)
        x = self.embedding(tokens) + self.positions[positions.clamp(max=self.text_positions - 1)]
        text_mask = ring_mask(state.rings[0], positions, lens, rows, window=self.text_positions)
        frames = memory.seen(rows)
        visible = int(frames.max())
        seen = filled_up(visible, KEYS)
        frame_mask = (torch.arange(seen, device=tokens.device) < frames[:, None])[:, None, None]
        attention: list[Tensor] = []
        for index, (layer, ring) in enumerate(zip(self._layers(), state.rings, strict=True)):
            x = x + layer.attention.step(layer.attention_norm(x), positions, lens, ring, text_mask, rows)
            x, weights = layer.look(x, *memory.readable(index, seen), frame_mask, rows)
            attention.extend(weights[:, head] for at, head in self.alignment_heads if at == index)
        return self.norm(x), torch.stack(attention).mean(0)[..., :visible]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., C] -> [..., V], tied to the embedding."""
        if self.readout is not None:
            return self.readout(hidden)  # type: ignore[no-any-return]
        return linear(hidden, self.embedding.weight)

    def forward(self, tokens: Tensor, frames: Tensor, frame_lens: Tensor) -> tuple[Tensor, Tensor]:
        """Teacher-forced decode of whole sequences, as Whisper does offline.

        Args:
            tokens: [B, L] ids, prompt first.
            frames: [B, T, C] encoder output; frame_lens [B] valid frames.
        Returns:
            logits [B, L, V] and the alignment heads' mean attention [B, L, T].
        """
        hidden, attention = self.states(tokens, frames, frame_lens)
        return self.logits(hidden), attention

    def states(self, tokens: Tensor, frames: Tensor, frame_lens: Tensor) -> tuple[Tensor, Tensor]:
        """`forward` with the hidden states [B, L, C] after the closing norm in place of the logits."""
        length = tokens.shape[1]
        x = self.embedding(tokens) + self.positions[:length]
        frame_mask = (torch.arange(frames.shape[1], device=frames.device) < frame_lens[:, None])[:, None, None]
        causal = torch.ones(length, length, dtype=torch.bool, device=frames.device).tril()[None, None]
        attention: list[Tensor] = []
        for index, layer in enumerate(self._layers()):
            y = layer.attention_norm(x)
            x = x + layer.attention.attend(layer.attention.queries(y), *layer.attention.keys_values(y), causal)
            x, weights = layer.look(x, *layer.cross.keys_values(frames), frame_mask)
            attention.extend(weights[:, head] for at, head in self.alignment_heads if at == index)
        return self.norm(x), torch.stack(attention).mean(0)


def log_probabilities(logits: Tensor) -> Tensor:
    """Natural-log softmax over the last dimension, in float32."""
    return F.log_softmax(logits.float(), dim=-1)
