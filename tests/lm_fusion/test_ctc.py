"""Greedy CTC labels with scores: what is blank and what goes on is acoustic, the scores choose what begins."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lm_fusion.ctc import greedy_labels
from lm_fusion.fusion import Fusion, Steering
from lm_fusion.phrases import PhraseBuilder
from lm_fusion.spelling import CtcSpelling
from tests.tiny_model import write_ctc_tokenizer

BLANK = 4


class Table:
    """Scores of each label by the label before; the state is that label."""

    def __init__(self, scores: Tensor) -> None:
        self.table = scores

    def init_states(self, rows: int) -> Tensor:
        return torch.full((rows, 1), BLANK)

    def scores(self, states: Tensor, rows: Tensor) -> Tensor:
        return self.table[states[:, 0]]

    def advance(self, states: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
        return tokens[:, None]


def heard(*steps: dict[int, float]) -> Tensor:
    """[1, T, 5]: what is not named is at -9."""
    found = torch.full((1, len(steps), BLANK + 1), -9.0)
    for at, step in enumerate(steps):
        for label, value in step.items():
            found[0, at, label] = value
    return found


def labels(log_probs: Tensor, table: Tensor, lens: list[int] | None = None) -> list[list[int]]:
    rows = torch.arange(len(log_probs))
    counts = torch.tensor(lens if lens is not None else [log_probs.shape[1]] * len(log_probs))
    return greedy_labels(log_probs, counts, rows, Table(table), blank=BLANK).tolist()


def lifts(label: int, by: float) -> Tensor:
    return torch.zeros(BLANK + 1, BLANK + 1).index_fill(1, torch.tensor([label]), by)


def test_a_label_that_begins_is_re_ranked_and_goes_on_as_it_began() -> None:
    log_probs = heard({4: 0}, {0: -1, 1: -2}, {0: 0, 1: -9}, {4: 0}, {0: 0, 1: -9})
    assert labels(log_probs, lifts(1, 1.5)) == [[4, 1, 1, 4, 0]]
    assert labels(log_probs, lifts(1, 0.5)) == [[4, 0, 0, 4, 0]]


def test_scores_say_nothing_of_blanks_and_repeats() -> None:
    log_probs = heard({4: 0, 1: -0.1}, {0: 0}, {0: 0, 1: -0.1}, {4: 0, 1: -0.1})
    assert labels(log_probs, lifts(1, 3.0)) == [[4, 0, 0, 4]]
    assert labels(log_probs, lifts(4, 100.0)) == [[4, 0, 0, 4]]


def test_a_label_does_not_begin_right_behind_itself() -> None:
    # The second step's best is 2; 0, though lifted above it, would be heard as the first one going on.
    log_probs = heard({0: 0}, {2: 0, 0: -1, 1: -2})
    assert labels(log_probs, lifts(0, 3.0)) == [[0, 2]]
    assert labels(heard({0: 0}, {4: 0}, {2: 0, 0: -1}), lifts(0, 3.0)) == [[0, 4, 0]]


def test_what_was_not_heard_is_not_written() -> None:
    assert labels(heard({0: 0, 1: -6}), lifts(1, 100.0)) == [[0]]


@given(seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_without_scores_they_are_the_best_labels(seed: int) -> None:
    log_probs = torch.randn(2, 12, BLANK + 1, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
    found = labels(log_probs, torch.zeros(BLANK + 1, BLANK + 1), [12, 7])
    best = log_probs.argmax(-1).tolist()
    assert found == [best[0], best[1][:7] + [BLANK] * 5]


@given(seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_a_row_in_a_batch_is_the_row_alone(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(3, 9, BLANK + 1, generator=generator).log_softmax(-1)
    table = 2 * torch.randn(BLANK + 1, BLANK + 1, generator=generator)
    lens = [9, 0, 4]
    together = labels(log_probs, table, lens)
    for row, length in enumerate(lens):
        assert labels(log_probs[row : row + 1, :length], table)[0] == together[row][:length]


def test_a_phrase_wins_a_close_race(tmp_path: Path) -> None:
    tokenizer = write_ctc_tokenizer(tmp_path)
    builder = PhraseBuilder(CtcSpelling(tokenizer))
    fusion = Fusion(slots=1, builder=builder)
    (cat,), (dog,) = tokenizer.encode(["cat"]), tokenizer.encode(["dog"])
    size = max(len(cat), len(dog))
    log_probs = torch.full((1, 2 * size, tokenizer.blank + 1), -9.0)
    log_probs[..., tokenizer.blank] = -5.0
    for at in range(size):
        log_probs[0, 2 * at, cat[min(at, len(cat) - 1)]] = -0.5
        log_probs[0, 2 * at, dog[min(at, len(dog) - 1)]] = -1.0
    arguments = log_probs, torch.tensor([2 * size]), torch.tensor([0]), fusion

    def text() -> str:
        found: list[int] = greedy_labels(*arguments, blank=tokenizer.blank)[0].tolist()
        return tokenizer.decode(found)

    assert text().startswith("cat")
    fusion.steer(0, Steering(phrases=builder.build(["Dog"], boost=1.0)))
    assert text().startswith("dog")


def test_no_steps_have_no_labels() -> None:
    assert labels(torch.zeros(1, 0, 5), torch.zeros(5, 5)) == [[]]
    nobody = torch.zeros(0, dtype=torch.int64)
    nothing = Table(torch.zeros(5, 5))
    assert greedy_labels(torch.zeros(0, 3, 5), nobody, nobody, nothing, blank=BLANK).shape == (0, 3)
