"""Answers of rows that ran together: they last while the outputs are as drafted, and no longer."""

from __future__ import annotations

import torch

from asr.answers import NOTHING, Answers, Draft

CPU = torch.device("cpu")
YES = torch.tensor([True])


def draft(*rows: list[int]) -> Draft:
    return Draft.pack([[(output, 1) for output in row] for row in rows], CPU)


def said(*shape: int) -> tuple[torch.Tensor]:
    """Row r of stream b says 10 b + r."""
    return (10 * torch.arange(shape[0])[:, None, None] + torch.arange(shape[1])[:, None] + torch.zeros(*shape, 1),)


def three() -> Answers:
    """One stream: three rows, drafted 7 and 8."""
    return Answers.none(said(1, 1)).put(None, said(1, 3), torch.tensor([3]), draft([7, 8]))


def test_nothing_is_known_before_the_first_call() -> None:
    none = Answers.none(said(2, 1))
    assert none.left.tolist() == [0, 0]
    assert not none.known.any()
    assert none.expected().output.tolist() == [NOTHING, NOTHING]


def test_answers_last_as_long_as_the_draft_is_right() -> None:
    answers, seen = three(), []
    for output in (7, 8, 9):
        expected = answers.expected()
        seen.append((int(answers.present()[0]), int(expected.output), int(expected.place), int(answers.left)))
        answers = answers.give(YES, torch.tensor([output]))
    assert seen == [(0, 7, 0, 3), (1, 8, 1, 2), (2, NOTHING, 2, 1)]
    assert int(answers.left) == 0
    assert bool(answers.settled)


def test_a_wrong_output_ends_them_and_the_row_stays_known() -> None:
    before = three()
    after = before.give(YES, torch.tensor([8]))
    assert (int(after.left), int(after.at), bool(after.settled), bool(after.known)) == (0, 0, True, True)
    assert int(after.expected().output) == NOTHING
    # The state from before still has them.
    assert (int(before.left), bool(before.settled)) == (3, False)
    assert int(before.give(YES, torch.tensor([7])).left) == 2


def test_who_gives_nothing_keeps_all() -> None:
    assert int(three().give(~YES, torch.tensor([7])).left) == 3
    assert int(three().forget(~YES).left) == 3
    assert int(three().forget(YES).left) == 0


def test_a_last_output_without_a_row_behind_it_ends_them() -> None:
    answers = Answers.none(said(1, 1)).put(None, said(1, 1), torch.tensor([1]), draft([7]))
    assert int(answers.expected().output) == 7
    assert int(answers.give(YES, torch.tensor([7])).left) == 0


def test_a_call_of_some_streams_leaves_the_others_answers() -> None:
    both = Answers.none(said(2, 1)).put(None, said(2, 2), torch.tensor([2, 1]), draft([7], []))
    longer = both.put(torch.tensor([1]), (torch.tensor([[[90.0], [91.0], [92.0]]]),), torch.tensor([3]), draft([4, 5]))
    assert longer.said[0][:, :, 0].tolist() == [[0, 1, 0], [90, 91, 92]]
    assert longer.left.tolist() == [2, 3]
    assert longer.expected().output.tolist() == [7, 4]
    assert both.said[0][1, 0, 0] == 10  # the state from before still has its own
    moved = longer.give(torch.tensor([True, True]), torch.tensor([7, 6]))
    assert moved.left.tolist() == [1, 0]
    assert moved.reset(torch.tensor([0])).known.tolist() == [False, True]


def test_a_draft_is_cut_row_by_row() -> None:
    cut = draft([1, 2, 3], [4]).at_most(torch.tensor([2, 5]))
    assert cut.lens.tolist() == [2, 1]
    assert cut.outputs.shape == (2, 2)
    assert draft([1]).at_most(torch.tensor([-1])).lens.tolist() == [0]


def test_what_is_narrowed_keeps_the_present_row_alone() -> None:
    second = three().give(YES, torch.tensor([7]))
    one = second.narrowed()
    assert [part.shape[1] for part in one.said] == [1]
    assert float(one.present()[0]) == float(second.present()[0]) == 1
    assert (int(one.left), int(one.at), bool(one.settled), bool(one.known)) == (1, 0, False, True)
    ended = second.give(YES, torch.tensor([5])).narrowed()
    assert (int(ended.left), bool(ended.settled)) == (0, True)
