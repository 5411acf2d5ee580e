"""Where a stream of bounded positions starts anew, and the windows of newest frames that this needs.

Pure: frames here count from the anchor, and a stream is lists of numbers or tensors of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asr.config import AnchorConfig
from asr.units import FRAMES_PER_STEP

__all__ = ["background", "newest_frame", "on_steps", "part", "place_anchor", "roll"]

SETTLED_FRAMES = 50  # a word read later than so far before the block may still be followed by pieces of its own
SEARCH_FRAMES = 60  # so far behind the last word its end is looked for
BEFORE_NEWEST_FRAMES = 10  # a word begins at most so far before the frame that its first piece is read from


def newest_frame(text_frames: Tensor, count: Tensor) -> Tensor:
    """[B] the largest of the first count[b] entries of text_frames [B, P]; 0 without text."""
    index = torch.arange(text_frames.shape[1], device=count.device)
    return torch.where(index < count[:, None], text_frames, 0).amax(1)


def roll(history: Tensor, frames: Tensor, counts: Tensor) -> Tensor:
    """The newest frames of each row, newest last: [B, Hc, C] after counts[b] more of frames [B, T, C]."""
    both = torch.cat([history, frames], 1)
    at = counts[:, None] + torch.arange(history.shape[1], device=counts.device)
    return both.gather(1, at[:, :, None].expand(-1, -1, history.shape[2]))


def part(x: Tensor, start: Tensor, counts: Tensor) -> Tensor:
    """x[b, start[b] : start[b] + counts[b]] of every row, padded: [k, longest, C]."""
    at = start[:, None] + torch.arange(int(counts.max()), device=x.device)
    return x.gather(1, at.clamp(0, x.shape[1] - 1)[:, :, None].expand(-1, -1, x.shape[2]))


def background(quietest: Tensor, loudness: Tensor, counts: Tensor) -> Tensor:
    """[B] the loudness of the background: the quietest 20 ms lately, rising by 10 dB in 20 s."""
    valid = torch.arange(loudness.shape[1], device=counts.device) < counts[:, None]
    lowest = torch.where(valid, loudness, torch.inf).amin(1)
    return torch.minimum(quietest + 0.25 / 1000 * counts, lowest)


def place_anchor(
    anchors: AnchorConfig,
    heard: int,
    tokens: Sequence[int],
    frames: Sequence[int],
    loudness: Sequence[float],
    *,
    begins_word: Callable[[int], bool],
    ended: bool,
) -> tuple[int, int]:
    """Where to cut, and the first token to feed again.

    The quietest frame of the widest gap before a word that was read in the last `keep_frames`; behind the last word,
    if nothing was read lately or the decoder says that the text has ended.

    Args:
        anchors: the bounds.
        heard: frames before the block that is to be encoded.
        tokens, frames: the text, and where each piece of it was read.
        loudness: of every frame since the anchor, the block's included.
        begins_word: of a piece.
        ended: whether the decoder says that the text ends here.
    """
    earliest = max(0, heard - anchors.keep_frames)
    newest = max(frames, default=0)
    if ended or newest < earliest or heard - newest > anchors.pause_frames:
        start = max(earliest, newest)
        return _quietest(loudness, start, min(start + SEARCH_FRAMES, len(loudness))), len(tokens)
    best, gap = len(tokens), -1
    for i in range(1, len(tokens)):
        settled = earliest <= frames[i] <= heard - SETTLED_FRAMES
        if begins_word(tokens[i]) and settled and frames[i] - frames[i - 1] >= gap:
            best, gap = i, frames[i] - frames[i - 1]
    if best == len(tokens):
        return max(earliest, newest - BEFORE_NEWEST_FRAMES), len(tokens)
    return _quietest(loudness, max(earliest, frames[best - 1]), frames[best]), best


def on_steps(cut: int, *, anchor: int, oldest: int) -> int:
    """The last frame at or before `cut` that begins a step, but not one before `oldest`, which is forgotten.

    Args:
        cut: from the anchor; anchor: from the stream's start.
        oldest: the first frame that can be encoded again, from the anchor.
    """
    cut = max(cut, oldest, 0)
    cut -= (anchor + cut) % FRAMES_PER_STEP
    return cut + FRAMES_PER_STEP if cut < max(oldest, 0) else cut


def _quietest(loudness: Sequence[float], start: int, end: int) -> int:
    """The frame of [start, end) at which 100 ms are quietest; start if there is none."""
    if end - start < 2:
        return start
    return min(range(start, end), key=lambda i: (sum(loudness[max(0, i - 2) : i + 3]), i))
