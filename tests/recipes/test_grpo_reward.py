"""Rewards: known answers, and that no degenerate way of transcribing beats an honest one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import ConfigError
from recipes.grpo_reward import Outcome, RewardRule, advantages, outcome_of, rewards, segment_scores
from recipes.rollout import RolledWord

TEXT = "the quick brown fox jumps over a lazy dog today".split()
RULE = RewardRule(delay_weight=0.05, least_matched=0.5)


@dataclass(frozen=True)
class Spoken:
    text: str
    end_ms: int


REFERENCE = [Spoken(word, 400 * (k + 1)) for k, word in enumerate(TEXT)]
END_MS = 400 * len(TEXT) + 200


def said(*words: tuple[str, int]) -> list[RolledWord]:
    """(word, emitted)."""
    return [
        RolledWord(text=text, first=emitted // 80 - 1, last=emitted // 80 - 1, emitted_ms=emitted)
        for text, emitted in words
    ]


def late(delay_ms: int) -> list[RolledWord]:
    return said(*((word.text, word.end_ms + delay_ms) for word in REFERENCE))


# -- policies --------------------------------------------------------------------------------------------------------


def honest() -> list[RolledWord]:
    return late(400)


def silent() -> list[RolledWord]:
    return []


def deleter() -> list[RolledWord]:
    """Leaves out the words that would take long to be sure of, and is early with the others."""
    return [replace(word, emitted_ms=word.emitted_ms - 200) for word in honest() if word.text not in ("quick", "lazy")]


def last_word_deleter() -> list[RolledWord]:
    return late(200)[:-1]


def early_guesser() -> list[RolledWord]:
    """Writes each word before it has ended, every third one wrong."""
    return [
        replace(word, text="guess" if k % 3 == 1 else word.text, emitted_ms=word.emitted_ms - 700)
        for k, word in enumerate(honest())
    ]


def babbler() -> list[RolledWord]:
    return [word for one in late(200) for word in (replace(one, text="and"), one)]


def waiter() -> list[RolledWord]:
    return [replace(word, emitted_ms=END_MS) for word in honest()]


def shifter() -> list[RolledWord]:
    return late(480)


def repeater() -> list[RolledWord]:
    words = late(200)
    return [*words[:4], words[3], *words[4:]]


DEGENERATE = [silent, deleter, last_word_deleter, early_guesser, babbler, waiter, shifter, repeater]


@pytest.mark.parametrize("policy", DEGENERATE)
@pytest.mark.parametrize("weight", [0.01, 0.05, 0.09])
def test_no_degenerate_policy_beats_an_honest_one(policy: Callable[[], list[RolledWord]], weight: float) -> None:
    """As long as λ is less than what one word is worth, here 1/10."""
    rule = replace(RULE, delay_weight=weight)
    group = [outcome_of(REFERENCE, words) for words in (honest(), policy(), waiter())]
    good, bad, _ = rewards(group, rule)
    assert good > bad


@pytest.mark.parametrize("policy", DEGENERATE)
def test_nor_in_a_group_of_its_like(policy: Callable[[], list[RolledWord]]) -> None:
    group = [outcome_of(REFERENCE, words) for words in (honest(), *[policy()] * 7)]
    found = torch.tensor([rewards(group, RULE)])
    assert (advantages(found)[0, 0] > advantages(found)[0, 1:]).all()


def test_early_and_right_is_better_than_honest_and_not_without_bound() -> None:
    group = [outcome_of(REFERENCE, words) for words in (honest(), late(-300), late(-30_000))]
    found = rewards(group, RULE)
    assert found[2] > found[1] > found[0]
    assert found[2] - found[0] == pytest.approx(RULE.delay_weight)


def test_literally_failing_is_as_good_as_being_fastest() -> None:
    """The trap of the printed formula: with a large λ it pays to fail the gate; the corrected form takes that away."""
    slow, failing = outcome_of(REFERENCE, late(900)), outcome_of(REFERENCE, late(900)[:4])
    group, large = [slow, failing, outcome_of(REFERENCE, late(0))], RewardRule(delay_weight=0.7, least_matched=0.5)
    assert rewards(group, large)[0] > rewards(group, large)[1]
    literal = rewards(group, replace(large, literal=True))
    assert literal[1] > literal[0]


# -- known answers ---------------------------------------------------------------------------------------------------


def outcome(delay_ms: float | None, matched: int = 10, errors: int = 0, words: int = 10) -> Outcome:
    return Outcome(errors=errors, words=words, matched=matched, spoken=words, deletions=0, delay_ms=delay_ms)


def test_rewards_by_hand() -> None:
    group = [outcome(300), outcome(500, matched=8, errors=2), outcome(900), outcome(100, matched=4, errors=6)]
    rule = RewardRule(delay_weight=0.1, least_matched=0.5)
    # d̃ between 300 and 900: 0, 1/3, 1; the last one fails the gate, its 100 ms count for nobody.
    assert rewards(group, rule) == pytest.approx([1.0, 0.8 - 0.1 / 3, 0.9, 0.4 - 0.1])
    assert rewards(group, replace(rule, literal=True)) == pytest.approx([1.0, 0.8 - 0.1 / 3, 0.9, 0.4])
    assert rewards(group, replace(rule, delay_weight=0.0)) == pytest.approx([1.0, 0.8, 1.0, 0.4])
    assert rewards(group, replace(rule, least_matched=0.0))[3] == pytest.approx(0.4)


def test_equal_delays_cost_nothing_and_no_match_costs_all() -> None:
    assert rewards([outcome(700), outcome(700)], RULE) == [1.0, 1.0]
    assert rewards([outcome(None, matched=0, errors=10)] * 2, RULE) == pytest.approx([-0.05, -0.05])
    assert rewards([outcome(None, matched=0, errors=10), outcome(200)], RULE) == pytest.approx([-0.05, 1.0])


def test_where_nothing_is_said_words_are_counted_and_no_delay() -> None:
    group = [outcome_of([], words) for words in ([], said(("and", 400)), said(("and", 400), ("so", 500)))]
    assert rewards(group, RULE) == [1.0, -1.0, -2.0]


def test_an_outcome_of_words() -> None:
    words = said(("The", 700), ("quiet", 1000), ("fox,", 2100))
    found = outcome_of(REFERENCE[:4], words)
    assert found == Outcome(errors=2, words=4, matched=2, spoken=4, deletions=1, delay_ms=(300 + 500) / 2)
    assert (found.accuracy, found.matched_share) == (0.5, 0.5)


def test_advantages_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    found = advantages(values, epsilon=0.0)
    torch.testing.assert_close(found[0], torch.tensor([-1.0, 0.0, 1.0]))
    torch.testing.assert_close(advantages(values)[1], torch.zeros(3))
    torch.testing.assert_close(advantages(values, scaled=False)[0], torch.tensor([-1.0, 0.0, 1.0]))
    torch.testing.assert_close(advantages(torch.tensor([[0.0, 4.0]]), epsilon=0.0)[0, 1], torch.tensor(0.5**0.5))


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_advantages_sum_to_nothing_and_keep_the_order(values: list[float]) -> None:
    found = advantages(torch.tensor([values], dtype=torch.float64))[0]
    assert abs(float(found.sum())) < 1e-6
    order = sorted(range(len(values)), key=lambda i: values[i])
    assert all(found[a] <= found[b] + 1e-9 for a, b in pairwise(order))


@pytest.mark.parametrize("change", [{"delay_weight": -0.1}, {"least_matched": 1.1}, {"least_matched": -0.1}])
def test_a_rule_that_cannot_be_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="need delay_weight >= 0"):
        RewardRule(**change)


# -- credit by segments ----------------------------------------------------------------------------------------------

PAIR = [Spoken("cat", 400), Spoken("dog", 800)]


def placed(*words: tuple[str, int, int, int]) -> list[RolledWord]:
    return [RolledWord(text=t, first=a, last=b, emitted_ms=80 * (b + 1) + extra) for t, a, b, extra in words]


def test_each_word_answers_for_the_steps_that_led_to_it() -> None:
    quick = placed(("cat", 5, 5, 0), ("dog", 10, 11, 0))  # delays 80 and 160
    slow = placed(("cat", 5, 5, 0), ("dog", 14, 15, 0))  # 80 and 480
    found = segment_scores(PAIR, [quick, slow], RewardRule(delay_weight=0.5), steps=20)
    gain = 0.5 * (480 - 160) / 2000 / 2
    assert found[0].tolist() == pytest.approx([0.0] * 6 + [gain] * 6 + [0.0] * 8)
    assert found[1].tolist() == pytest.approx([0.0] * 6 + [-gain] * 10 + [0.0] * 4)


def test_a_missed_word_answers_for_the_steps_between_its_neighbours() -> None:
    both = placed(("cat", 5, 5, 0), ("dog", 10, 10, 0))
    missed = placed(("dog", 10, 10, 0))
    found = segment_scores(PAIR, [both, missed], RewardRule(delay_weight=0.0), steps=12)
    assert found[1].tolist() == pytest.approx([-0.5] * 10 + [0.0] * 2)
    assert found[0].tolist() == pytest.approx([0.5] * 6 + [0.0] * 6)


def test_a_wrong_word_answers_for_its_steps() -> None:
    right = placed(("cat", 5, 5, 0), ("dog", 10, 10, 0))
    wrong = placed(("cat", 5, 5, 0), ("fog", 10, 11, 0))
    found = segment_scores(PAIR, [right, wrong], RewardRule(delay_weight=0.0), steps=14)
    assert found[1].tolist() == pytest.approx([0.0] * 6 + [-0.5] * 6 + [0.0] * 2)


def test_a_word_too_many_is_punished_and_the_others_gain_as_much() -> None:
    right = placed(("cat", 5, 5, 0), ("dog", 10, 10, 0))
    more = placed(("cat", 5, 5, 0), ("big", 7, 7, 0), ("dog", 10, 10, 0))
    found = segment_scores(PAIR, [right, more], RewardRule(delay_weight=0.0), steps=12)
    assert found[1].tolist() == pytest.approx([0.0] * 6 + [-0.5] * 2 + [0.0] * 4)
    assert found[0, 6:10].tolist() == pytest.approx([0.5] * 4)


def test_equal_rollouts_have_no_advantage_and_waiting_pays_less_word_by_word() -> None:
    assert not segment_scores(REFERENCE, [honest()] * 3, RULE, steps=70).any()
    found = segment_scores(REFERENCE, [honest(), waiter()], RULE, steps=70)
    assert float(found[0].sum()) > 0 > float(found[1].sum())
    with pytest.raises(ConfigError, match="a group needs a rollout"):
        segment_scores(REFERENCE, [], RULE, steps=3)
