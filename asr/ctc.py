"""The CTC head: a small vocabulary of its own on the encoder's features, one label a step.

Used for the volatile tail, for drafts, and as evidence of speech; never for committed text.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.invariant import GRU, Linear
from asr.units import FRAMES_PER_STEP


class CtcHead(nn.Module):
    """Four frames a step, a projection, a GRU over steps, and the labels.

    Args:
        dim: C of the encoder.
        hidden: width of projection and GRU.
        pieces: V', size of the small vocabulary; the blank is label V'.
    """

    def __init__(self, *, dim: int, hidden: int, pieces: int) -> None:
        super().__init__()
        self.hidden, self.pieces = hidden, pieces
        self.project = Linear(FRAMES_PER_STEP * dim, hidden)
        self.gru = GRU(hidden, hidden, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.out = Linear(hidden, pieces + 1)

    @property
    def blank(self) -> int:
        """The blank's label."""
        return self.pieces

    def init_state(self, batch: int) -> Tensor:
        """[B, hidden] of streams that have heard nothing."""
        return self.out.weight.new_zeros(batch, self.hidden)

    def step(self, features: Tensor, lens: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of the next steps.

        Args:
            features: [k, T, C], T a multiple of 4 frames; lens: [k] valid frames, multiples of 4; 0 idles.
            state: [k, hidden].
        Returns:
            log_probs [k, T/4, V'+1], lens [k] in steps, and the new state.
        """
        steps = lens // FRAMES_PER_STEP
        x = F.gelu(self.project(features.reshape(features.shape[0], -1, self.project.in_features)))
        if x.shape[1] == 0:
            return x.new_zeros(x.shape[0], 0, self.pieces + 1), steps, state
        y, _ = self.gru(x, state[None])  # [k, T/4, hidden]
        log_probs = F.log_softmax(self.out(self.norm(x + y)).float(), -1)
        last = y.gather(1, (steps - 1).clamp(min=0)[:, None, None].expand(-1, 1, y.shape[2]))[:, 0]
        return log_probs, steps, torch.where((steps > 0)[:, None], last, state)

    def forward(self, features: Tensor) -> Tensor:
        """Whole clips [B, T, C] -> log-probabilities [B, T/4, V'+1]: the training forward."""
        batch, frames = features.shape[:2]
        lens = torch.full((batch,), frames, device=features.device)
        return self.step(features, lens, self.init_state(batch))[0]
