"""Greedy CTC decoding with the scores of the decode loop: where a label begins is acoustic, which one is not alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from asr.decode import TokenScorer, rank
from lm_fusion.fusion import Fusion, Steering
from lm_fusion.phrases import PhraseBuilder, PhraseList

__all__ = ["greedy_labels", "phrase_labels"]


def greedy_labels(log_probs: Tensor, lens: Tensor, rows: Tensor, scorer: TokenScorer, *, blank: int) -> Tensor:
    """The label of each step, scores counted in.

    Whether a step is blank, or goes on with the label before, is acoustic; where a new label begins, the scores re-rank
    those that may begin there, and the scorer hears which one it was.

    Args:
        log_probs: [k, T, V'+1]; lens: [k] valid steps.
        rows: [k] the scorer's slots.
        scorer: over V'+1 labels, the blank included.
        blank: its label.
    Returns:
        [k, T] int64, blank past a row's end.
    """
    heard = log_probs.argmax(-1)  # [k, T]
    steps = torch.arange(heard.shape[1], device=heard.device)
    heard = torch.where(steps < lens[:, None], heard, blank)
    before = F.pad(heard, (1, 0), value=blank)[:, :-1]
    begins = (heard != blank) & (heard != before)
    # The step at which the label of each step began; the labels are written there and read from there.
    begun = torch.where(begins, steps, -1).cummax(1).values.clamp(min=0)
    labels, states = heard.clone(), scorer.init_states(len(rows))
    for step in begins.any(0).nonzero()[:, 0].tolist():
        new = begins[:, step].nonzero()[:, 0]
        logits = log_probs[new, step].clone()
        logits[:, blank] = -torch.inf
        if step:  # the label right before would go on instead of beginning
            said = labels[new, begun[new, step - 1]]
            logits[torch.arange(len(new)), torch.where(before[new, step] == blank, blank, said)] = -torch.inf
        chosen = rank(logits, scorer.scores(states[new], rows[new])).argmax(-1)
        states = states.index_copy(0, new, scorer.advance(states[new], rows[new], chosen))
        labels[new, step] = chosen
    return torch.where(heard == blank, blank, labels.gather(1, begun))


def phrase_labels(builder: PhraseBuilder, phrases: PhraseList) -> Callable[[Tensor], Sequence[int]] | None:
    """What `asr.transcriber.Stream.preview` takes to show phrases more readily.

    Args:
        builder: of the CTC head's pieces; phrases: of its lists.
    Returns:
        log-probabilities [T, V'+1], the blank last, to labels [T]; None if there is nothing to boost.
    """
    if phrases.graph.empty:
        return None
    fusion = Fusion(slots=1, builder=builder, default=Steering(phrases=phrases))
    row = torch.zeros(1, dtype=torch.int64)

    def relabel(log_probs: Tensor) -> Sequence[int]:
        log_probs = log_probs.cpu()[None]
        lens = torch.tensor([log_probs.shape[1]])
        found: list[int] = greedy_labels(log_probs, lens, row, fusion, blank=log_probs.shape[2] - 1)[0].tolist()
        return found

    return relabel
