"""Heads that guess the pieces behind the decoder's own: multi-token prediction for drafts.

Each sees the decoder's state and the audio heard from where that state reads on, and is a residual on the state, read
out by the decoder's own embedding (Whisper-Medusa's linear heads; ParaASR has serial ones, which would cost a small
decoder as much as the calls they spare). They guess among the most frequent pieces only, and the text of a draft is
verified: heads that err cost rows, not words.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.invariant import Linear, linear

__all__ = ["MtpHeads", "attended", "likely", "pooled_ahead"]

WINDOWS = 8
"""So many means of the frames ahead a head hears,"""
WINDOW_FRAMES = 8
"""each of 160 ms: 1.3 s, in which five pieces are spoken."""

LEAST_LIKELY = 0.1
"""A guess ends where its pieces are less likely together."""


def attended(attention: Tensor, *, sink_frames: int) -> Tensor:
    """The median frame [...] of attention [..., S]; the first frames draw attention for no reason."""
    looked = attention[..., sink_frames:]
    half = 0.5 * looked.sum(-1, keepdim=True)
    return sink_frames + (looked.cumsum(-1) < half).sum(-1).clamp(max=looked.shape[-1] - 1)


def pooled_ahead(features: Tensor, frames: Tensor, center: Tensor) -> Tensor:
    """Means of the frames from `center` on.

    Args:
        features: [B, T, C] encoder frames, of which frames [B] are valid.
        center: [B, L] where each of L states reads.
    Returns:
        [B, L, WINDOWS * C]; what was not heard yet is 0.
    """
    batch, count = center.shape
    at = center[:, :, None] + torch.arange(WINDOWS * WINDOW_FRAMES, device=center.device)  # [B, L, N]
    flat = at.clamp(max=features.shape[1] - 1).reshape(batch, -1, 1).expand(-1, -1, features.shape[2])
    near = features.gather(1, flat).view(batch, count, WINDOWS, WINDOW_FRAMES, -1)
    heard = (at < frames[:, None, None]).view(batch, count, WINDOWS, WINDOW_FRAMES, 1)
    return torch.where(heard, near, 0.0).mean(3).flatten(2)


def likely(own: Tensor, later: Tensor, settled: Tensor, *, end_id: int) -> tuple[Tensor, Tensor]:
    """The guess of k rows, as far as its pieces are likely together and the text does not end.

    Args:
        own: [k, V] logits of the row's own piece, the first of the guess unless it is settled.
        later: [k, K, M] those of the heads.
        settled: [k] whether the row's own piece has been written.
    Returns:
        pieces [k, K + 1] and how many of them [k].
    """
    first, then = own.softmax(-1).max(-1), later.float().softmax(-1).max(-1)
    pieces = torch.cat([first.indices[:, None], then.indices], 1)
    together = torch.cat([first.values.masked_fill(settled, 1.0)[:, None], then.values], 1).cumprod(1)
    ends = pieces == end_id
    ends[:, 0] &= ~settled
    lens = ((together >= LEAST_LIKELY) & (ends.cumsum(1) == 0)).sum(1)
    return torch.where(settled[:, None], pieces.roll(-1, 1), pieces), lens - settled.long()


class MtpHeads(nn.Module):
    """K heads, of which head h guesses the piece h + 1 behind the one that the state itself says, h from 0.

    Args:
        dim: C of the decoder and the encoder.
        heads: K.
        pieces: M: they guess among the first M pieces of the vocabulary.
    """

    def __init__(self, *, dim: int, heads: int, pieces: int) -> None:
        super().__init__()
        self.count, self.pieces = heads, pieces
        self.ahead = Linear(WINDOWS * dim, dim)
        self.mix = nn.ModuleList([Linear(2 * dim, dim) for _ in range(heads)])
        for head in self.mix:
            nn.init.zeros_(head.weight)  # type: ignore[arg-type]
            nn.init.zeros_(head.bias)  # type: ignore[arg-type]

    def forward(self, hidden: Tensor, ahead: Tensor, embedding: Tensor) -> Tensor:
        """Logits [..., K, M].

        Args:
            hidden: [..., C] the decoder's states.
            ahead: [..., WINDOWS * C] as `pooled_ahead` gives it.
            embedding: [V, C] the decoder's.
        """
        x = torch.cat([hidden, F.gelu(self.ahead(ahead))], -1)
        states = torch.stack([hidden + F.silu(head(x)) for head in self.mix], -2)  # [..., K, C]
        return linear(states, embedding[: self.pieces])
