"""The additive family's adapter: the four encoder frames of a step become one audio step."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from asr.errors import AudioFormatError
from asr.invariant import Linear
from asr.units import FRAMES_PER_STEP


class Adapter(nn.Module):
    """Four frames side by side, Linear, exact GELU, Linear, no biases (Voxtral Realtime). It has no memory.

    Args:
        frame_dim: C, channels of an encoder frame.
        dim: D, channels of an audio step.
    """

    def __init__(self, *, frame_dim: int, dim: int) -> None:
        super().__init__()
        self.first = Linear(FRAMES_PER_STEP * frame_dim, dim, bias=False)
        self.second = Linear(dim, dim, bias=False)

    def forward(self, frames: Tensor) -> Tensor:
        """[B, T, C] -> [B, T/4, D].

        Raises:
            AudioFormatError: if T is no whole number of steps.
        """
        if frames.shape[1] % FRAMES_PER_STEP:
            raise AudioFormatError(f"{frames.shape[1]} frames are no whole number of steps of {FRAMES_PER_STEP}")
        side_by_side = frames.reshape(frames.shape[0], -1, FRAMES_PER_STEP * frames.shape[2])  # [B, T/4, 4C]
        return self.second(F.gelu(self.first(side_by_side)))  # type: ignore[no-any-return]
