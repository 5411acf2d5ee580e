"""Where a stream starts anew: known answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asr.anchoring import background, newest_frame, on_steps, part, place_anchor, roll
from asr.config import AnchorConfig

ANCHORS = AnchorConfig(limit_frames=400, pause_after_frames=300, pause_frames=40, keep_frames=200)
WORD, MORE = 1, 2
"""A piece that begins a word and one that does not."""


def place(heard: int, text: list[tuple[int, int]], quiet: tuple[int, ...] = (), **options: Any) -> tuple[int, int]:
    loudness = [0.0 if frame in quiet else 1.0 for frame in range(heard + 8)]
    tokens, frames = [token for token, _ in text], [frame for _, frame in text]
    chosen = {"begins_word": lambda token: token == WORD, "ended": False, **options}
    return place_anchor(ANCHORS, heard, tokens, frames, loudness, **chosen)


def test_the_cut_is_the_quietest_place_of_the_widest_gap() -> None:
    text = [(WORD, 150), (WORD, 160), (WORD, 200), (WORD, 210), (WORD, 290)]
    assert place(300, text, quiet=(183, 184, 185, 186, 187)) == (185, 2)


def test_of_equal_gaps_the_later_one_is_cut() -> None:
    assert place(300, [(WORD, 120), (WORD, 160), (WORD, 200), (WORD, 290)])[1] == 2


def test_a_word_is_not_cut_in_two() -> None:
    assert place(300, [(WORD, 150), (MORE, 200), (WORD, 210), (WORD, 290)])[1] == 2


def test_words_that_are_too_old_or_too_new_are_no_place() -> None:
    assert place(300, [(WORD, 20), (WORD, 90), (WORD, 130), (WORD, 251), (WORD, 290)])[1] == 2
    assert place(300, [(WORD, 20), (WORD, 90), (WORD, 130), (WORD, 250), (WORD, 290)])[1] == 3


def test_without_a_place_nothing_is_fed_again() -> None:
    assert place(300, [(WORD, 90), (WORD, 280)]) == (270, 2)
    assert place(300, [(WORD, 280)]) == (270, 1)


@pytest.mark.parametrize(("newest", "start"), [(259, 259), (50, 100)])
def test_behind_a_pause_the_cut_lies_behind_the_last_word(newest: int, start: int) -> None:
    quiet = tuple(range(start + 20, start + 25))
    assert place(300, [(WORD, 40), (WORD, newest)], quiet=quiet) == (start + 22, 2)


def test_a_text_that_has_ended_is_not_fed_again() -> None:
    text = [(WORD, 150), (WORD, 200), (WORD, 290)]
    assert place(300, text) == (150, 1)
    assert place(300, text, ended=True)[1] == 3
    assert place(300, text, ended=True)[0] >= 290
    assert place(300, [], ended=False) == (100, 0)


@pytest.mark.parametrize(
    ("cut", "anchor", "oldest", "expected"),
    [(9, 0, 0, 8), (8, 0, 0, 8), (9, 4, -7, 8), (9, 2, 0, 6), (9, 0, 9, 12), (3, 0, 10, 12), (-5, 0, -9, 0)],
)
def test_anchors_lie_on_steps_and_not_before_what_is_remembered(
    cut: int, anchor: int, oldest: int, expected: int
) -> None:
    assert on_steps(cut, anchor=anchor, oldest=oldest) == expected


def test_the_newest_frame_is_the_furthest_of_the_text() -> None:
    frames = torch.tensor([[3, 9, 5, 80], [7, 1, 1, 1]])
    assert newest_frame(frames, torch.tensor([3, 0])).tolist() == [9, 0]


def test_windows_of_rows() -> None:
    history, frames = torch.arange(8.0).view(2, 4, 1), 10 + torch.arange(6.0).view(2, 3, 1)
    rolled = roll(history, frames, torch.tensor([2, 0]))[:, :, 0]
    assert rolled.tolist() == [[2, 3, 10, 11], [4, 5, 6, 7]]
    cut = part(frames, torch.tensor([1, 0]), torch.tensor([2, 1]))[:, :, 0]
    assert cut[0].tolist() == [11, 12]
    assert cut[1, 0] == 13


def test_the_background_falls_at_once_and_rises_slowly() -> None:
    loudness = torch.tensor([[3.0, 1.0, -9.0], [3.0, 3.0, 3.0], [1.0, 1.0, 1.0]])
    level = background(torch.tensor([2.0, 2.0, 2.0]), loudness, torch.tensor([2, 2, 0]))
    torch.testing.assert_close(level, torch.tensor([1.0, 2.0005, 2.0]))
