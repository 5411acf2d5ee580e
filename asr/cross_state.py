"""The state of the cross family's streams. Frames count from the stream's start unless told: from the anchor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.anchoring import newest_frame
from asr.answers import Answers
from asr.config import RowSettings
from asr.cross import CrossMemory
from asr.frontend import FrontendState
from asr.preview import Preview
from asr.recogniser import WAIT
from asr.state import Rings
from asr.units import FRAMES_PER_STEP

__all__ = ["CrossState"]

NEAR_STEPS = 2  # of a label that the CTC head hears


@dataclass(frozen=True)
class CrossState:
    """State of B streams.

    Attributes:
        frontend, encoder, memory, decoder: the parts' own.
        history: [B, Hc, C] the newest stem frames, newest last, for provisional frames and re-anchoring;
            loudness: [B, Hc] theirs; quietest: [B] the loudness of the background.
        heard: [B] frames heard. anchor: [B] the frame that has position 0. clock: [B] steps decoded.
        pending: [B, P] tokens whose rows are not remembered yet (the prompt, text fed again, the last token);
            pending_lens: [B].
        text, text_frames: [B, P] tokens since the anchor and the frames (from the anchor) they were read from;
            count: [B] how many; since_pause: [B] tokens since the last pause.
        word_open: [B] whether the last piece may be continued.
        ended: [B] whether the decoder last said that the text ends here.
        asked: [B] whether a re-anchoring was asked for. re_anchors: [B] how many there were.
        row: what the last call's decoder rows said: hidden [B, n, C], attention [B, n, S], logits [B, n, V]. They stay
            true until the stream's block changes, or its text in another way than drafted.
        preview: what the CTC head says of the newest steps.
    """

    frontend: FrontendState
    encoder: Rings
    memory: CrossMemory
    decoder: Rings
    history: Tensor
    loudness: Tensor
    quietest: Tensor
    heard: Tensor
    anchor: Tensor
    clock: Tensor
    pending: Tensor
    pending_lens: Tensor
    text: Tensor
    text_frames: Tensor
    count: Tensor
    since_pause: Tensor
    word_open: Tensor
    ended: Tensor
    asked: Tensor
    re_anchors: Tensor
    row: Answers
    preview: Preview

    def written(
        self, active: Tensor, tokens: Tensor, frames: Tensor, word_open: Tensor, *, pause_frames: int
    ) -> CrossState:
        """The state whose text and clock went on by a step of the active rows.

        Args:
            active: [B] bool. tokens: [B] pieces or WAIT; frames: [B] where they are spoken.
            word_open: [B] whether the last piece may be continued.
            pause_frames: so long a gap between two tokens' frames is a pause.
        """
        spoke = active & (tokens != WAIT)
        frame = frames - self.anchor
        here = (torch.arange(self.text.shape[1], device=tokens.device) == self.count[:, None]) & spoke[:, None]
        paused = frame - newest_frame(self.text_frames, self.count) > pause_frames
        return replace(
            self,
            text=torch.where(here, tokens[:, None], self.text),
            text_frames=torch.where(here, frame[:, None], self.text_frames),
            count=self.count + spoke.long(),
            since_pause=torch.where(spoke, torch.where(paused, 1, self.since_pause + 1), self.since_pause),
            word_open=torch.where(active, word_open, self.word_open),
            clock=self.clock + active.long(),
        )

    def around(self, settings: RowSettings) -> Tensor:
        """[B, C] the mean of the eight encoder frames around now - τ."""
        now = torch.minimum((self.clock + 1) * FRAMES_PER_STEP, self.heard) - self.anchor
        at = (now - settings.delay * FRAMES_PER_STEP)[:, None] + torch.arange(-4, 4, device=now.device)
        at = at.clamp(0, self.memory.capacity - 1)
        return self.memory.features.gather(1, at[:, :, None].expand(-1, -1, self.memory.features.shape[2])).mean(1)

    def labelled(self, frames: int, *, blank: int | None) -> Tensor:
        """[B, frames] whether the CTC head hears a label in the step of each frame since the anchor.

        Args:
            frames: how many to tell of.
            blank: the CTC head's; None without a head, which leaves every frame open.
        """
        if blank is None:
            return self.heard.new_ones(self.heard.shape[0], frames, dtype=torch.bool)
        labels, place, size = self.preview.labels, self._place(frames), self.loudness.shape[1]
        known = (place < size) & (place >= size - FRAMES_PER_STEP * labels.shape[1])
        return known & self._of_steps(labels != blank, place)

    @property
    def louder(self) -> Tensor:
        """[B, H] which frames of `loudness` are 10 dB louder than the background."""
        return self.loudness > (self.quietest + 0.25)[:, None]

    def loud(self, frames: int) -> Tensor:
        """[B, frames] whether each frame since the anchor is known to be 10 dB louder than the background.

        Args:
            frames: how many to tell of.
        """
        size, place = self.loudness.shape[1], self._place(frames)
        return self.louder.gather(1, place.clamp(0, size - 1)) & (place >= 0) & (place < size)

    def speech(self, settings: RowSettings, frames: int, *, blank: int | None, keep: int) -> Tensor:
        """[B, frames] whether each frame since the anchor may belong to a word.

        Where there is a CTC head it has to be near a label that the head hears, however loud it is: noise is loud and
        does not speak, and speech is understood that hardly rises above noise. Without a head it has to be loud. What
        lies further back than a re-anchoring keeps is too old for a word.

        Args:
            settings: of the streams. frames: how many to tell of.
            blank: the CTC head's, None without a head. keep: frames that a re-anchoring keeps.
        """
        size, place = self.loudness.shape[1], self._place(frames)
        if blank is None:
            known = self.loud(frames)
        else:
            spoken = (self.preview.labels != blank).float()[:, None]  # [B, 1, W]
            near = F.max_pool1d(spoken, 2 * NEAR_STEPS + 1, stride=1, padding=NEAR_STEPS)[:, 0] > 0
            known = self._of_steps(near, place)
        lately = place >= size - keep - FRAMES_PER_STEP * settings.chunk_steps[:, None]
        return known & lately & (place < size)

    def _place(self, frames: int) -> Tensor:
        """[B, frames] where in `loudness` each frame since the anchor lies; outside it where it is not known."""
        size = self.loudness.shape[1]
        return torch.arange(frames, device=self.heard.device) + (self.anchor - self.heard)[:, None] + size

    def _of_steps(self, steps: Tensor, place: Tensor) -> Tensor:
        """[B, frames] of [B, W], what is known of the last W steps, for frames at `place`."""
        step = (place - self.loudness.shape[1]) // FRAMES_PER_STEP + steps.shape[1]
        return steps.gather(1, step.clamp(0, steps.shape[1] - 1))
