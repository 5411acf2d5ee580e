"""Emit gates of the cross family: may the next token be committed at this step?

Both gates answer one call. `AttentionGate` needs no training: Whisper's alignment heads show which frames the next
token is read from, and it may go when those are old enough (AlignAtt, Papi et al. 2023, on the step clock).
`LearnedGate` has learnt from aligned words when that is. `CorrectingGate` starts as the attention gate and learns
where that is wrong (recipes/grpo.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.anchoring import newest_frame
from asr.config import GateConfig
from asr.invariant import Linear
from asr.units import FRAMES_PER_STEP

FAINT_FACTOR = 2.0
"""So much more evidence a first token needs that is read from no speech that is loud."""


@dataclass(frozen=True)
class GateView:
    """All that a gate may look at, for B rows; frames count from the anchor.

    Attributes:
        attention: [B, S] alignment heads' mean attention of the row over the memory's frames.
        now: [B] frames heard when the step is, the chunk's lookahead not counted.
        frames: [B] real frames in the memory, silence not counted.
        delay: [B] τ in steps; chunk_steps: [B] steps of the block.
        hidden: [B, C] the decoder's state; around: [B, C] the encoder's frames around now - τ, their mean.
        candidate: [B] the token that would be committed; `probability` [B] of it.
        begins_word: [B] whether it begins a word; letters: [B] whether it holds a letter or digit.
        ended: [B] whether the decoder says that the text ends here.
        text: [B, P] tokens since the anchor, `text_frames` [B, P] where each was read, `count` [B] how many.
        since_pause: [B] tokens since the last pause.
        speech: [B, S] whether a frame of the memory may belong to a word: near a label of the CTC head, or, where there
            is no head, loud.
        loud: [B, S] whether it is 10 dB louder than the background.
        labelled: [B, S] whether the CTC head hears a label in the frame's step; everywhere where there is no head.
    """

    attention: Tensor
    now: Tensor
    frames: Tensor
    delay: Tensor
    chunk_steps: Tensor
    hidden: Tensor
    around: Tensor
    candidate: Tensor
    probability: Tensor
    begins_word: Tensor
    letters: Tensor
    ended: Tensor
    text: Tensor
    text_frames: Tensor
    count: Tensor
    since_pause: Tensor
    speech: Tensor
    loud: Tensor
    labelled: Tensor


@dataclass(frozen=True)
class GateAnswer:
    """Attributes: open: [B] bool; frame: [B] the frame that the candidate is read from."""

    open: Tensor
    frame: Tensor


class Gate(Protocol):
    """Decides for every row whether the candidate may be committed."""

    def __call__(self, view: GateView) -> GateAnswer:
        """Open rows and attended frames."""
        ...


@dataclass(frozen=True)
class Reading:
    """Where the candidate is read from, as every gate sees it.

    Attributes:
        looked: [B, S] attention without the sinks and what lies behind the last token; total: [B] its sum.
        frame: [B] its median. last: [B] the furthest frame of the text. edge: [B] frames before it are old enough.
        unsure: [B] whether the candidate has to be read with care.
        closing: [B] whether it is a likely mark behind a text that nothing has followed for a while. What a mark is
            read from is the silence behind it, which never grows old: a sentence would end without its full stop.
        barred: [B] whether it must not be written however old it is: the text has ended, it was just written, it
            looks back, nothing is to be heard where it is read, or it would begin a text on too little.
    """

    looked: Tensor
    total: Tensor
    frame: Tensor
    last: Tensor
    edge: Tensor
    unsure: Tensor
    closing: Tensor
    barred: Tensor


def read(view: GateView, config: GateConfig) -> Reading:
    """What the attention says of the candidate; see `GateView` for the shapes."""
    last = newest_frame(view.text_frames, view.count)
    some = view.count > 0
    first = torch.where(some, (last - 8).clamp(min=config.sink_frames), config.sink_frames)
    index = torch.arange(view.attention.shape[1], device=last.device)
    looked = torch.where(index >= first[:, None], view.attention, 0.0)
    total = looked.sum(1).clamp(min=1e-9)
    # The median of the attention, not its peak: single frames far ahead draw attention for no reason.
    frame = (looked.cumsum(1) < 0.5 * total[:, None]).sum(1).clamp(max=index.shape[0] - 1)
    # A step waits for its chunk, half of it on average: short chunks' wait is taken off, so that the median is about τ.
    waits = (FRAMES_PER_STEP * (view.chunk_steps - 1) // 2).clamp(max=config.chunk_frames)
    age = (view.delay * FRAMES_PER_STEP + config.offset_frames - waits).clamp(min=config.least_frames)
    edge = view.now - age

    since_pause = torch.where(frame - last > config.pause_frames, 0, view.since_pause)
    careful = since_pause < config.careful_tokens
    unsure = careful | (view.probability < config.sure_probability)

    # Far behind, and somebody has spoken since: two of the guards let go.
    since = (index > (last + config.loud_ahead_frames)[:, None]) & (index < edge[:, None]) & view.speech
    stuck = (last < edge - config.stuck_frames) & (since.sum(1) > config.loud_behind_frames)
    everywhere = torch.where(index >= config.sink_frames, view.attention, 0.0)
    behind = torch.where(index < (last - 25)[:, None], everywhere, 0.0).sum(1) > 0.5 * everywhere.sum(1)
    looks_back = some & ~stuck & behind & (everywhere.argmax(1) < last - 25)
    ahead = index - frame[:, None]
    near = (ahead >= -config.loud_behind_frames) & (ahead <= config.loud_ahead_frames)
    silent = (view.letters | view.begins_word) & ((near & view.speech).sum(1) < config.loud_frames)
    around = (ahead >= -config.loud_behind_frames) & (ahead < config.evidence_frames)
    labels = (around & view.labelled).sum(1) / FRAMES_PER_STEP
    # Noise that sounds like a word once in a minute seldom rises above itself where it does.
    faint = (near & view.speech & view.loud).sum(1) < config.loud_frames
    least = torch.where(faint, FAINT_FACTOR * config.least_evidence, config.least_evidence)
    guessed = (since_pause == 0) & (view.probability * labels < least)
    repeats = _repeats(view, config, frame, stuck)
    barred = view.ended | looks_back | silent | guessed | repeats
    mark = some & ~view.letters & ~view.begins_word & ~view.ended
    said = mark & (view.probability >= config.sure_probability) & (last < edge - config.closing_frames)
    followed = ((index > (last + config.loud_ahead_frames)[:, None]) & view.speech).any(1)
    closing = said & ~followed & ~repeats
    return Reading(looked, total, frame, last, edge, unsure, closing, barred)


def answer(reading: Reading, due: Tensor) -> GateAnswer:
    """What becomes of candidates that are `due` [B] for a gate: those barred are not written, closing marks are.

    A closing mark belongs to the text before it, not to the silence that it is read from.
    """
    frame = torch.where(reading.closing, reading.last, reading.frame)
    return GateAnswer((due & ~reading.barred) | reading.closing, frame)


def old_share(reading: Reading, younger: Tensor | int) -> Tensor:
    """[B] share of the attention on frames that are at least `younger` frames older than the edge."""
    index = torch.arange(reading.looked.shape[1], device=reading.edge.device)
    old = torch.where(index < (reading.edge - younger)[:, None], reading.looked, 0.0)
    return old.sum(1) / reading.total


def _repeats(view: GateView, config: GateConfig, frame: Tensor, stuck: Tensor) -> Tensor:
    """[B] whether the candidate was just written from the same place, or a piece three times in a row."""
    back = torch.arange(1, 11, device=frame.device)
    at = view.count[:, None] - back  # [B, 10]
    recent = torch.where(at >= 0, view.text.gather(1, at.clamp(min=0)), -1)
    where = view.text_frames.gather(1, at.clamp(min=0))
    same = recent == view.candidate[:, None]
    same_place = (same & ((where - frame[:, None]).abs() < config.same_place_frames)).any(1) & view.begins_word & ~stuck
    return same_place | (same[:, 0] & same[:, 1] & ~view.begins_word)


def just_written(view: GateView, frame: Tensor, begins_word: Tensor) -> Tensor:
    """[B, 11] pieces that may not be written again from `frame` [B]; -1: none. See `_repeats`; begins_word: [V]."""
    back = torch.arange(1, 11, device=frame.device)
    at = view.count[:, None] - back  # [B, 10]
    where = view.text_frames.gather(1, at.clamp(min=0))
    recent = torch.where(at >= 0, view.text.gather(1, at.clamp(min=0)), -1)
    here = (where - frame[:, None]).abs() < GateConfig.same_place_frames
    word = begins_word[recent]
    twice = (recent[:, :1] == recent[:, 1:2]) & ~word[:, :1]
    return torch.cat([torch.where(here & word, recent, -1), torch.where(twice, recent[:, :1], -1)], 1)


class AttentionGate:
    """The gate that any Whisper has without training.

    A token waits while its attention lies on frames younger than τ (plus an offset), or, up to `hold_frames` longer,
    while the decoder is unsure of it.
    """

    def __init__(self, config: GateConfig) -> None:
        self.config = config

    def __call__(self, view: GateView) -> GateAnswer:
        """Open rows and attended frames; see `GateView` for the shapes."""
        reading = read(view, self.config)
        hold = torch.where(reading.unsure, self.config.hold_frames, 0)
        heard = (reading.frame < reading.edge - hold) & (old_share(reading, hold) >= self.config.old_mass)
        return answer(reading, heard)


class LearnedGate(nn.Module):
    """A small network that says when a token is due, trained on aligned words (recipes/gate.py).

    It sees the decoder's state, the attention older than a ladder of ages, the encoder frames around now - τ, τ, and
    what `read` knows. What `read` bars stays barred; a token is held no longer than the attention gate would hold an
    unsure one.

    Args:
        config: the guards' numbers, and the bound of holding.
        dim: C.
        hidden: width of the network.
    """

    ages = (-12, -8, -4, 0, 4, 8, 12, 16, 24, 32)

    def __init__(self, config: GateConfig, *, dim: int, hidden: int) -> None:
        super().__init__()
        self.config = config
        self.state = Linear(dim, hidden)
        self.around = Linear(dim, hidden, bias=False)
        self.facts = Linear(len(self.ages) + 10, hidden, bias=False)
        self.middle = Linear(hidden, hidden)
        self.out = Linear(hidden, 1)

    def known(self, view: GateView, reading: Reading) -> Tensor:
        """[B, facts] the numbers of a row that the network sees beside the two vectors."""
        shares = [old_share(reading, age) for age in self.ages]
        scalars = [
            view.probability,
            view.probability.clamp(min=1e-4).log() / 4,
            view.begins_word.float(),
            view.letters.float(),
            ((reading.edge - reading.frame).float() / 25).clamp(-2, 2),
            ((reading.edge - reading.last).float() / 50).clamp(-2, 2),
            (view.since_pause.float() / 4).clamp(max=1),
            (view.count > 0).float(),
            view.delay.float() / 8,
            reading.unsure.float(),
        ]
        return torch.stack([*shares, *scalars], 1)

    def logit(self, hidden: Tensor, around: Tensor, facts: Tensor) -> Tensor:
        """[B] log-odds that the candidate is due."""
        x = F.gelu(self.state(hidden / 4) + self.around(around) + self.facts(facts))
        return self.out(F.gelu(self.middle(x)))[:, 0]  # type: ignore[no-any-return]

    def start(self, view: GateView, reading: Reading) -> Tensor:
        """[B] log-odds that the network's are added to: none."""
        return torch.zeros_like(view.probability)

    def overdue(self, reading: Reading) -> Tensor:
        """[B] whether the candidate has been held as long as one may be."""
        hold = self.config.hold_frames
        return (reading.frame < reading.edge - hold) & (old_share(reading, hold) >= self.config.old_mass)

    def forward(self, view: GateView) -> GateAnswer:
        """Open rows and attended frames; see `GateView` for the shapes."""
        reading = read(view, self.config)
        odds = self.start(view, reading) + self.logit(view.hidden, view.around, self.known(view, reading))
        due = odds >= self.config.threshold
        return answer(reading, due | self.overdue(reading))


class CorrectingGate(LearnedGate):
    """The attention gate's decision as log-odds, with a small network added that corrects it.

    Untrained it decides as the attention gate does, and near its borders it is unsure: what post-training explores.
    """

    odds_per_frame, odds_per_mass = 0.5, 8.0

    def __init__(self, config: GateConfig, *, dim: int, hidden: int) -> None:
        super().__init__(config, dim=dim, hidden=hidden)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def start(self, view: GateView, reading: Reading) -> Tensor:
        """[B] how far the nearer of the attention gate's two borders is, as log-odds: open at 0 and above."""
        hold = torch.where(reading.unsure, self.config.hold_frames, 0)
        frames = reading.edge - hold - reading.frame - 0.5  # whole frames: never 0
        mass = old_share(reading, hold) - self.config.old_mass
        return torch.minimum(self.odds_per_frame * frames, self.odds_per_mass * mass)
