"""The state of the cross family's streams. Frames count from the stream's start unless told: from the anchor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from asr.answers import Answers
from asr.cross import CrossMemory
from asr.frontend import FrontendState
from asr.preview import Preview
from asr.state import Rings

__all__ = ["CrossState"]


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
