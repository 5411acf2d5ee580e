"""The numbers of a step, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from recipes.grpo_metrics import MEASURES, averages, measured
from recipes.grpo_reward import Outcome
from recipes.rollout import RolledWord, Rollouts


def row(*texts: str) -> tuple[RolledWord, ...]:
    return tuple(RolledWord(text=text, first=i, last=i, emitted_ms=0) for i, text in enumerate(texts))


def outcome(errors: int, matched: int, deletions: int, delay_ms: float | None) -> Outcome:
    return Outcome(errors=errors, words=4, matched=matched, spoken=4, deletions=deletions, delay_ms=delay_ms)


OUTCOMES = [outcome(0, 4, 0, 300.0), outcome(4, 0, 4, None), outcome(1, 3, 0, 500.0), outcome(1, 3, 1, 700.0)]
ROLLOUTS = cast(Rollouts, SimpleNamespace(group=2, words=(row("a", "b"), (), row("a", "a", "c"), row("c"))))


def test_the_numbers_of_two_groups() -> None:
    sums: dict[str, Any] = dict(zip(MEASURES, measured(OUTCOMES, [1.0, 0.0, 0.5, 0.5], ROLLOUTS), strict=True))
    found = averages(sums)
    assert found == {
        "reward": 0.5,
        "accuracy": pytest.approx((1 + 0 + 0.75 + 0.75) / 4),
        "word_error_rate": 6 / 16,
        "delay_ms": 500.0,
        "matched_share": 10 / 16,
        "deletion_rate": 5 / 16,
        "silent": 0.25,
        "repeats": 1 / 6,
        "even_groups": 0.5,
    }


def test_sums_of_parts_are_those_of_the_whole() -> None:
    halves = [
        measured(
            OUTCOMES[at : at + 2],
            [0.1, 0.2],
            cast(Rollouts, SimpleNamespace(group=2, words=ROLLOUTS.words[at : at + 2])),
        )
        for at in (0, 2)
    ]
    whole = measured(OUTCOMES, [0.1, 0.2, 0.1, 0.2], ROLLOUTS)
    assert [a + b for a, b in zip(*halves, strict=True)] == pytest.approx(whole)


def test_nothing_written_and_nothing_said_divide_by_no_zero() -> None:
    silent = [Outcome(errors=0, words=0, matched=0, spoken=0, deletions=0, delay_ms=None)] * 2
    sums = measured(silent, [1.0, 1.0], cast(Rollouts, SimpleNamespace(group=2, words=((), ()))))
    found = averages(dict(zip(MEASURES, sums, strict=True)))
    assert (found["accuracy"], found["silent"], found["delay_ms"], found["word_error_rate"]) == (1.0, 1.0, 0.0, 0.0)
