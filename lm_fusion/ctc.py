"""Greedy CTC decoding with the scores of the decode loop: the previous label, blanks included, is never re-ranked."""

from __future__ import annotations

import torch
from torch import Tensor

from asr.decode import TokenScorer, rank

__all__ = ["greedy_labels"]


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
    labels = torch.full_like(heard, blank)
    states = scorer.init_states(len(rows))
    before = said = torch.full_like(rows, blank)
    for step in range(log_probs.shape[1]):
        best = heard[:, step]
        label = torch.where(best == before, said, best)
        begins = ((step < lens) & (best != blank) & (best != before)).nonzero()[:, 0]
        if len(begins):
            logits = log_probs[begins, step].clone()
            logits[:, blank] = -torch.inf
            # The label before, if nothing lies between, would go on instead of beginning.
            logits[torch.arange(len(begins)), said[begins]] = -torch.inf
            ranked = rank(logits, scorer.scores(states[begins], rows[begins]))
            chosen = ranked.argmax(-1)
            states = states.index_copy(0, begins, scorer.advance(states[begins], rows[begins], chosen))
            label = label.index_copy(0, begins, chosen)
        said, before = label, best
        labels[:, step] = torch.where(step < lens, label, blank)
    return labels
