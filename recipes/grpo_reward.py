"""What a rollout is worth: its words and, where enough of them are right, how soon they came.

    r_i = (1 - WER_i) - λ · p_i          p_i = d̃_i where m_i >= m0, else 1

d_i is the rollout's mean word emission delay, d̃_i its place between the fastest and the slowest of the group, m_i the
share of reference words matched (arXiv 2609.18333). As printed there, a rollout below m0 pays no delay at all, as
little as the fastest: failing would pay. `literal` is that form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from asr.errors import ConfigError
from asr.metrics import EmittedWord, EndedWord, align_words, count_errors, word_delays

__all__ = ["Outcome", "RewardRule", "SteppedWord", "advantages", "outcome_of", "rewards", "segment_scores"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is measured of one rollout.

    Attributes:
        errors: substitutions, deletions and insertions; words: of the reference, as errors count them.
        matched: reference words recognised exactly; spoken: reference words that could be.
        deletions: of those.
        delay_ms: the mean emission delay of the matched words; None if there is none.
    """

    errors: int
    words: int
    matched: int
    spoken: int
    deletions: int
    delay_ms: float | None

    @property
    def accuracy(self) -> float:
        """1 - WER; where nothing was to be written: 1 for nothing, else minus the words inserted."""
        if not self.words:
            return float(-self.errors) if self.errors else 1.0
        return 1 - self.errors / self.words

    @property
    def matched_share(self) -> float:
        """m; 0 where nothing was to be written."""
        return self.matched / self.spoken if self.spoken else 0.0


def outcome_of(reference: Sequence[EndedWord], words: Sequence[EmittedWord]) -> Outcome:
    """One rollout's words against the reference's, with their acoustic ends."""
    errors = count_errors(" ".join(word.text for word in reference), " ".join(word.text for word in words))
    delays = word_delays(reference, words)
    return Outcome(
        errors=errors.errors,
        words=errors.reference_length,
        matched=len(delays.delays_ms),
        spoken=delays.reference_words,
        deletions=delays.deletions,
        delay_ms=sum(delays.delays_ms) / len(delays.delays_ms) if delays.delays_ms else None,
    )


class SteppedWord(EmittedWord, Protocol):
    """A recognised word with the steps of its pieces."""

    @property
    def first(self) -> int:
        """The step of its first piece."""

    @property
    def last(self) -> int:
        """The step of its last piece."""


@dataclass(frozen=True, kw_only=True)
class RewardRule:
    """Attributes: delay_weight: λ. least_matched: m0. literal: whether a rollout below m0 pays no delay at all."""

    delay_weight: float = 0.01
    least_matched: float = 0.5
    literal: bool = False

    def __post_init__(self) -> None:
        if self.delay_weight < 0 or not 0 <= self.least_matched <= 1:
            raise ConfigError(f"need delay_weight >= 0 and 0 <= least_matched <= 1; got {self}")


def rewards(group: Sequence[Outcome], rule: RewardRule) -> list[float]:
    """The rewards of one recording's rollouts.

    The fastest and the slowest are sought among the rollouts that pass the gate; where these are equally fast, d̃ is 0.
    A rollout without a match has no delay and passes no gate. Where nothing was to be written there is no delay to pay.
    """
    gated = [one.delay_ms is not None and one.matched_share >= rule.least_matched for one in group]
    delays = [one.delay_ms for one, ok in zip(group, gated, strict=True) if ok and one.delay_ms is not None]
    low, high = (min(delays), max(delays)) if delays else (0.0, 0.0)
    found = []
    for one, ok in zip(group, gated, strict=True):
        penalty = 0.0 if rule.literal or not one.words else 1.0
        if ok and one.delay_ms is not None:
            penalty = (one.delay_ms - low) / (high - low) if high > low else 0.0
        found.append(one.accuracy - rule.delay_weight * penalty)
    return found


def advantages(values: Tensor, *, scaled: bool = True, epsilon: float = 1e-4) -> Tensor:
    """[B, G] rewards to advantages within each group: (r - mean) / (std + ε), the unbiased standard deviation.

    Equal rewards give 0.

    Args:
        scaled: divide by the deviation; else the mean alone is taken off (Liu et al. 2025).
    """
    centred = values - values.mean(1, keepdim=True)
    return centred / (values.std(1, keepdim=True) + epsilon) if scaled else centred


def segment_scores(
    reference: Sequence[EndedWord],
    rollouts: Sequence[Sequence[SteppedWord]],
    rule: RewardRule,
    *,
    steps: int,
    full_delay_ms: float = 2000.0,
) -> Tensor:
    """[G, steps] advantages of each decision's own word instead of the whole rollout's.

    A matched word scores -λ · delay / `full_delay_ms`, one that was not matched -1, each word too many between two
    matched ones -1; the group's mean of the same place is taken off. The score goes to the steps that led to the word:
    from behind the last piece before it to its own last piece; of what was not matched, to the steps between the
    matched words around it. (Segment-level credit: a score of the whole rollout teaches to wait everywhere.)

    Args:
        rollouts: of one recording, with the steps of their words.
        steps: T.
    """
    if not rollouts:
        raise ConfigError("a group needs a rollout")
    count = len(reference)
    scores = torch.zeros(len(rollouts), 2 * count + 1)  # the words, and behind them the places between
    spans = [[(0, 0)] * (2 * count + 1) for _ in rollouts]
    for i, words in enumerate(rollouts):
        matched = dict(align_words([w.text for w in reference], [w.text for w in words]).matched)
        borders = [(-1, -1), *sorted(matched.items()), (count, len(words))]
        for (ref_before, hyp_before), (ref_next, hyp_next) in pairwise(borders):
            begin = words[hyp_before].last + 1 if hyp_before >= 0 else 0
            missed = range(ref_before + 1, ref_next)
            wrong = range(hyp_before + 1, hyp_next)
            behind = words[hyp_next].first if hyp_next < len(words) else steps
            end = words[wrong[-1]].last + 1 if wrong else behind
            for k in missed:
                scores[i, k], spans[i][k] = -1.0, (begin, end)
            place = count + ref_before + 1
            scores[i, place], spans[i][place] = -float(max(0, len(wrong) - len(missed))), (begin, end)
            if ref_next < count:
                word = words[hyp_next]
                delay = word.emitted_ms - reference[ref_next].end_ms
                scores[i, ref_next] = -rule.delay_weight * delay / full_delay_ms
                spans[i][ref_next] = (words[hyp_next - 1].last + 1 if hyp_next else 0, word.last + 1)
    scores = scores - scores.mean(0)
    found = torch.zeros(len(rollouts), steps)
    for i, row in enumerate(spans):
        for place, (begin, end) in enumerate(row):
            found[i, begin:end] += scores[i, place]
    return found
