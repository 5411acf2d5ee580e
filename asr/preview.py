"""The CTC head's labels of the newest steps: what a tail is made of.

Final frames are heard once, provisional ones anew in every block. Steps and frames count from the stream's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from asr.anchoring import part
from asr.ctc import CtcHead
from asr.ctc_tokenizer import CtcTokenizer
from asr.units import FRAMES_PER_STEP

__all__ = ["Preview", "PreviewWord", "preview_words"]


@dataclass(frozen=True)
class Preview:
    """State of B streams.

    Attributes:
        recurrent: [B, hidden] the head's state at `final` [B] final frames.
        window: [B] steps that have a label.
        labels, probability: [B, W] the best label of the newest W steps, newest last, provisional ones included, and
            its probability; log_probs: [B, W, V'+1] all of them.
    """

    recurrent: Tensor
    final: Tensor
    window: Tensor
    labels: Tensor
    probability: Tensor
    log_probs: Tensor

    @classmethod
    def zeros(cls, like: Tensor, batch: int, *, hidden: int, steps: int, labels: int) -> Preview:
        """Of streams that have to be `reset` before their first block; `hidden` and `steps` are 0 without a head."""
        zero = torch.zeros(batch, dtype=torch.int64, device=like.device)
        return cls(
            recurrent=like.new_zeros(batch, hidden),
            final=zero,
            window=zero,
            labels=torch.zeros(batch, steps, dtype=torch.int64, device=like.device),
            probability=like.new_zeros(batch, steps),
            log_probs=like.new_zeros(batch, steps, labels),
        )

    def reset(self, rows: Tensor, *, blank: int) -> Preview:
        """The state in which `rows` have heard nothing."""
        return Preview(
            recurrent=self.recurrent.index_fill(0, rows, 0),
            final=self.final.index_fill(0, rows, 0),
            window=self.window.index_fill(0, rows, 0),
            labels=self.labels.index_fill(0, rows, blank),
            probability=self.probability.index_fill(0, rows, 0),
            log_probs=self.log_probs.index_fill(0, rows, 0),
        )

    def rows(self, index: Tensor) -> Preview:
        """Those of `index` [k]."""
        return Preview(*(getattr(self, field.name)[index] for field in fields(self)))

    def step(
        self, head: CtcHead, y: Tensor, *, start: Tensor, real: Tensor, final: Tensor, heard: Tensor, index: Tensor
    ) -> Preview:
        """The state after one block of the rows `index` [k].

        Args:
            head: the CTC head.
            y: [k, T, C] the block's encoder frames.
            start: [k] the block's first frame; real: [k] its frames, silence not counted; final: [k] those of them
                that stay.
            heard: [k] frames heard.
        """
        mine = self.rows(index)
        skip = (mine.final - start).clamp(min=0)  # final frames that a re-anchoring has encoded again
        fresh = (final - skip).clamp(min=0)
        log_probs, steps, recurrent = head.step(part(y, skip, fresh), fresh, mine.recurrent)
        rest = real - skip - fresh
        tail, more, _ = head.step(part(y, skip + fresh, rest), rest, recurrent)
        now = heard // FRAMES_PER_STEP
        before = (start + skip) // FRAMES_PER_STEP
        size = self.labels.shape[1]
        labels, probability, everything = mine.labels, mine.probability, mine.log_probs
        # The window has been written up to the last block's newest step; move it to this one's.
        place = torch.arange(size, device=y.device) + (now - mine.window)[:, None]
        labels = torch.where(place < size, labels.gather(1, place.clamp(max=size - 1)), head.blank)
        probability = torch.where(place < size, probability.gather(1, place.clamp(max=size - 1)), 0.0)
        everything = torch.where((place < size)[:, :, None], _at(everything, place), 0.0)
        for said, count, first in ((log_probs, steps, before), (tail, more, before + steps)):
            if said.shape[1]:
                best, label = said.max(-1)
                at = torch.arange(size, device=y.device) - size + (now - first)[:, None]
                here = (at >= 0) & (at < count[:, None])
                labels = torch.where(here, label.gather(1, at.clamp(0, label.shape[1] - 1)), labels)
                probability = torch.where(here, best.exp().gather(1, at.clamp(0, label.shape[1] - 1)), probability)
                everything = torch.where(here[:, :, None], _at(said, at), everything)
        return Preview(
            recurrent=self.recurrent.index_copy(0, index, recurrent),
            final=self.final.index_copy(0, index, start + torch.maximum(final, skip)),
            window=self.window.index_copy(0, index, now),
            labels=self.labels.index_copy(0, index, labels),
            probability=self.probability.index_copy(0, index, probability),
            log_probs=self.log_probs.index_copy(0, index, everything),
        )


def _at(x: Tensor, place: Tensor) -> Tensor:
    """x[b, place[b]] of [k, T, V], places beyond its ends being those of its ends."""
    return x.gather(1, place.clamp(0, x.shape[1] - 1)[:, :, None].expand(-1, -1, x.shape[2]))


@dataclass(frozen=True, kw_only=True)
class PreviewWord:
    """A word that the labels spell: its text, and the first and the last of its steps in the window, both inclusive."""

    text: str
    first: int
    last: int


def preview_words(labels: Sequence[int], tokenizer: CtcTokenizer) -> list[PreviewWord]:
    """The words of a window of labels, repeats merged and blanks left out.

    Pieces before the first one that begins a word belong to a word whose beginning has left the window: not shown.
    """
    words: list[tuple[list[int], int, int]] = []
    previous = tokenizer.blank
    for step, label in enumerate(labels):
        if label not in (tokenizer.blank, previous):
            if tokenizer.starts_word(label):
                words.append(([label], step, step))
            elif words:
                words[-1] = ([*words[-1][0], label], words[-1][1], step)
        elif label != tokenizer.blank and words and words[-1][0][-1] == label:
            words[-1] = (*words[-1][:2], step)
        previous = label
    spelt = (PreviewWord(text=tokenizer.decode(ids), first=first, last=last) for ids, first, last in words)
    return [word for word in spelt if word.text]
