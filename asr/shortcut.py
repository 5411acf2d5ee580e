"""Where the CTC head is sure, its words are taken and the decoder is not asked (Granite Speech's first step).

Lossy, and for the cross family only: there the decoder can read later what was written without it. A block is taken
whole or not at all: at every step from the first word that is due to the last, the entropy of the head's labels must
be low. The rest is verified as in the relaxed mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asr.config import RowSettings
from asr.delay_targets import build_targets
from asr.drafting import CtcDrafter, Drafting
from asr.errors import ConfigError
from asr.model import Model
from asr.recogniser import WAIT, Prospect, Recogniser
from asr.units import FRAMES_PER_STEP

__all__ = ["CtcShortcut", "Plan", "entropies", "shortcut_of"]


@dataclass(frozen=True)
class Plan:
    """A block of B streams as the CTC head has it.

    Attributes:
        taken: [B] whether it is to be written so.
        tokens: [B, n] pieces or WAIT; frames: [B, n] where they are spoken; probability: [B, n] of the label that the
            head is least sure of in the piece's word.
    """

    taken: Tensor
    tokens: Tensor
    frames: Tensor
    probability: Tensor


def entropies(log_probs: Tensor) -> Tensor:
    """[W, V] natural-log probabilities -> [W] nats.

    >>> [abs(round(float(nats), 4)) for nats in entropies(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log())]
    [0.6931, 0.0]
    """
    return -torch.where(log_probs.isneginf(), 0.0, log_probs.exp() * log_probs).sum(-1)


@dataclass(frozen=True)
class CtcShortcut:
    """Plans blocks.

    Args:
        words: the head's words.
        most_entropy: nats that no step may exceed.
    """

    words: CtcDrafter
    most_entropy: float

    def plan(self, model: Recogniser[Any], steps: Tensor, settings: RowSettings, state: Any) -> Plan:
        """What streams of `steps` [B] steps write in the block just heard, if the head is sure."""
        batch, most = steps.shape[0], int(steps.max())
        plan = Plan(
            torch.zeros_like(steps, dtype=torch.bool),
            torch.full((batch, most), WAIT, device=steps.device),
            torch.zeros(batch, most, dtype=torch.int64, device=steps.device),
            torch.ones(batch, most, device=steps.device),
        )
        delays = settings.delay.tolist()
        for row, count in enumerate(steps.tolist()):
            block = self._block(model.prospect(row, state), count, delays[row]) if count else None
            if block is not None:
                plan.taken[row] = True
                for at, (token, frame, probability) in enumerate(block):
                    plan.tokens[row, at], plan.frames[row, at], plan.probability[row, at] = token, frame, probability
        return plan

    def _block(self, prospect: Prospect, count: int, delay: int) -> list[tuple[int, int, float]] | None:
        """Outputs, frames and probabilities of `count` steps; None where the head is not sure."""
        if prospect.log_probs is None:
            return None
        oldest = prospect.newest_step + 1 - len(prospect.labels)
        upcoming = self.words.upcoming(prospect)
        targets = build_targets(
            [timed for _, timed in upcoming],
            delay_steps=delay,
            wait=WAIT,
            steps=prospect.clock + count,
            first_step=prospect.clock,
        )
        block = [(token, 0, 1.0) for token in targets.outputs[:count]]
        first, last = prospect.clock - delay, prospect.clock + count - 1 - delay
        best = prospect.log_probs.max(-1).values.exp().tolist()
        for (word, _), place in zip(upcoming, targets.placements, strict=True):
            sure = min(best[max(0, word.first - oldest) : word.last - oldest + 1], default=1.0)
            for at in range(place.first - prospect.clock, min(count, place.last + 1 - prospect.clock)):
                block[at] = (block[at][0], FRAMES_PER_STEP * (word.last + 1) - 1, sure)
                first, last = min(first, word.first), max(last, word.last)
        judged = prospect.log_probs[max(0, first - oldest) : max(0, last - oldest + 1)]
        pieces = sum(token != WAIT for token, _, _ in block)
        if prospect.room is not None and pieces >= prospect.room:
            return None
        return block if len(judged) and float(entropies(judged).max()) <= self.most_entropy else None


def shortcut_of(model: Model, drafting: Drafting) -> CtcShortcut | None:
    """The shortcut of a model, in the mode that has one.

    Raises:
        ConfigError: if the model has no CTC head.
    """
    if drafting.mode != "ctc-shortcut":
        return None
    if model.ctc_tokenizer is None:
        raise ConfigError(f"{model.name} has no CTC head; draft mode is 'ctc-shortcut'")
    return CtcShortcut(CtcDrafter(model.vocabulary, model.ctc_tokenizer), drafting.most_entropy)
