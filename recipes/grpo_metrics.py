"""What a step of post-training is told by: sums over rollouts that add up over processes, and their means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from recipes.grpo_reward import Outcome
from recipes.rollout import Rollouts

__all__ = ["MEASURES", "averages", "measured"]

MEASURES = (
    "rollouts",
    "reward",
    "accuracy",
    "errors",
    "words",
    "matched",
    "spoken",
    "deletions",
    "delay_ms",
    "delayed",
    "silent",
    "repeats",
    "written",
    "even",
)
"""Sums over rollouts; `delayed` those with a delay, `even` those of groups that all scored the same."""


def measured(outcomes: Sequence[Outcome], scores: Sequence[float], rollouts: Rollouts) -> list[float]:
    """The sums named in `MEASURES`, of a process' rollouts with their outcomes and rewards."""
    group = rollouts.group
    even = [len(set(scores[at : at + group])) == 1 for at in range(0, len(scores), group)]
    repeats = sum(a.text == b.text for words in rollouts.words for a, b in pairwise(words))
    return [
        float(len(outcomes)),
        sum(scores),
        sum(one.accuracy for one in outcomes),
        float(sum(one.errors for one in outcomes)),
        float(sum(one.words for one in outcomes)),
        float(sum(one.matched for one in outcomes)),
        float(sum(one.spoken for one in outcomes)),
        float(sum(one.deletions for one in outcomes)),
        sum(one.delay_ms or 0.0 for one in outcomes),
        float(sum(one.delay_ms is not None for one in outcomes)),
        float(sum(not words for words in rollouts.words)),
        float(repeats),
        float(sum(len(words) for words in rollouts.words)),
        float(sum(even) * group),
    ]


def averages(sums: Mapping[str, float]) -> dict[str, float]:
    """Rates and means of the sums named in `MEASURES`."""
    count, words, spoken = sums["rollouts"], max(1.0, sums["words"]), max(1.0, sums["spoken"])
    return {
        "reward": sums["reward"] / count,
        "accuracy": sums["accuracy"] / count,
        "word_error_rate": sums["errors"] / words,
        "delay_ms": sums["delay_ms"] / max(1.0, sums["delayed"]),
        "matched_share": sums["matched"] / spoken,
        "deletion_rate": sums["deletions"] / spoken,
        "silent": sums["silent"] / count,
        "repeats": sums["repeats"] / max(1.0, sums["written"]),
        "even_groups": sums["even"] / count,
    }
