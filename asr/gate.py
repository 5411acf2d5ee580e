"""Emit gates of the cross family: may the next token be committed at this step?

Both gates answer one call. `AttentionGate` needs no training: Whisper's alignment heads show which frames the next
token is read from, and it may go when those are old enough (AlignAtt, Papi et al. 2023, on the step clock).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from asr.config import GateConfig
from asr.units import FRAMES_PER_STEP


@dataclass(frozen=True)
class GateView:
    """All that a gate may look at, for B rows; frames count from the anchor.

    Attributes:
        attention: [B, S] alignment heads' mean attention of the row over the memory's frames.
        now: [B] frames heard when the step is, the chunk's lookahead not counted.
        frames: [B] real frames in the memory, silence not counted.
        delay: [B] τ in steps.
        hidden: [B, C] the decoder's state.
        candidate: [B] the token that would be committed; `probability` [B] of it.
        begins_word: [B] whether it begins a word.
        ended: [B] whether the decoder says that the text ends here.
        text: [B, P] tokens since the anchor, `text_frames` [B, P] where each was read, `count` [B] how many.
        since_pause: [B] tokens since the last pause.
    """

    attention: Tensor
    now: Tensor
    frames: Tensor
    delay: Tensor
    hidden: Tensor
    candidate: Tensor
    probability: Tensor
    begins_word: Tensor
    ended: Tensor
    text: Tensor
    text_frames: Tensor
    count: Tensor
    since_pause: Tensor


@dataclass(frozen=True)
class GateAnswer:
    """Attributes: open: [B] bool; frame: [B] the frame that the candidate is read from."""

    open: Tensor
    frame: Tensor


class Gate(Protocol):
    """Decides for every row whether the candidate may be committed."""

    def __call__(self, view: GateView) -> GateAnswer: ...


def newest_frame(view: GateView) -> Tensor:
    """[B] the furthest frame that any token since the anchor was read from; 0 without text."""
    index = torch.arange(view.text_frames.shape[1], device=view.count.device)
    return torch.where(index < view.count[:, None], view.text_frames, 0).amax(1)


class AttentionGate:
    """The gate that any Whisper has without training.

    A token waits while its attention lies on frames younger than τ (plus an offset), while it looks back at what has
    been written (a repeat), or, up to `hold_frames` longer, while the decoder is unsure of it.
    """

    def __init__(self, config: GateConfig) -> None:
        self.config = config

    def __call__(self, view: GateView) -> GateAnswer:
        """Open rows and attended frames; see `GateView` for the shapes."""
        config = self.config
        last = newest_frame(view)
        some = view.count > 0
        first = torch.where(some, (last - 8).clamp(min=config.sink_frames), config.sink_frames)
        index = torch.arange(view.attention.shape[1], device=last.device)
        looked = torch.where(index >= first[:, None], view.attention, 0.0)
        total = looked.sum(1, keepdim=True).clamp(min=1e-9)
        # The median of the attention, not its peak: single frames far ahead draw attention for no reason.
        frame = (looked.cumsum(1) < 0.5 * total).sum(1).clamp(max=index.shape[0] - 1)

        careful = torch.where(frame - last > config.pause_frames, 0, view.since_pause) < config.careful_tokens
        unsure = careful | (view.probability < config.sure_probability)
        age = view.delay * FRAMES_PER_STEP + config.offset_frames + torch.where(unsure, config.hold_frames, 0)
        edge = view.now - age
        old = torch.where(index < edge[:, None], looked, 0.0).sum(1) / total[:, 0]
        heard = (frame < edge) & (old >= config.old_mass)

        stuck = view.now - last > 60 + age  # far behind: the guards below let go
        everywhere = torch.where(index >= config.sink_frames, view.attention, 0.0)
        behind = torch.where(index < (last - 25)[:, None], everywhere, 0.0).sum(1) > 0.5 * everywhere.sum(1)
        looks_back = some & ~stuck & behind & (everywhere.argmax(1) < last - 25)
        far_back = some & (frame < last - 100)
        return GateAnswer(heard & ~view.ended & ~looks_back & ~far_back & ~self._repeats(view, frame, stuck), frame)

    def _repeats(self, view: GateView, frame: Tensor, stuck: Tensor) -> Tensor:
        """[B] whether the candidate was just written from the same place, or a piece three times in a row."""
        back = torch.arange(1, 11, device=frame.device)
        at = view.count[:, None] - back  # [B, 10]
        recent = torch.where(at >= 0, view.text.gather(1, at.clamp(min=0)), -1)
        where = view.text_frames.gather(1, at.clamp(min=0))
        same = recent == view.candidate[:, None]
        same_place = (same & ((where - frame[:, None]).abs() < 8)).any(1) & view.begins_word & ~stuck
        return same_place | (same[:, 0] & same[:, 1] & ~view.begins_word)
