"""The automaton of a phrase list: bonuses, refunds, what may begin where; against a look at the whole text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dispatch import dispatch
from lm_fusion.phrases_graph import GRAIN, INSIDE, START, Entry, build_graph, join_graphs
from tests.lm_fusion.phrase_oracle import OPENS, SIZE, Oracle, entry_lists, texts

OPEN = torch.from_numpy(OPENS)
SCORES, ADVANCE = dispatch("phrases.scores", "reference"), dispatch("phrases.advance", "reference")


def entry(*tokens: int, boost: float = 1.0, anywhere: bool = True) -> Entry:
    return Entry(tokens=tokens, boost=boost, anywhere=anywhere)


def walk(entries: list[Entry], text: tuple[int, ...], counts: list[bool] | None = None) -> list[float]:
    """The score of each token of a text, where only some phrases may count."""
    graph = build_graph(entries, opens=OPENS)
    graph = graph if counts is None else graph.only(np.array(counts, dtype=bool))
    tables, (root,) = join_graphs([graph], OPEN)
    node, roots = torch.tensor([root + START]), torch.tensor([root])
    found = []
    for token in text:
        found.append(float(SCORES(tables, node)[0, token]))
        node = ADVANCE(tables, node, torch.tensor([token]), roots)
    return found


def test_a_complete_phrase_keeps_its_bonus() -> None:
    assert walk([entry(0, 1, 2, boost=1.5)], (3, 0, 1, 2, 3, 3)) == [0, 1.5, 1.5, 1.5, 0, 0]


def test_an_unfinished_phrase_gives_all_back() -> None:
    assert walk([entry(0, 1, 2, boost=1.5)], (0, 1, 3)) == [1.5, 1.5, -3.0]


def test_what_is_left_may_begin_another_phrase() -> None:
    # 0 1 is under way twice over: as the beginning of 0 1 2, and its end as that of 1 3.
    assert walk([entry(0, 1, 2), entry(1, 3)], (0, 1, 3, 3)) == [1, 1, 0, 0]


def test_a_phrase_that_goes_on_earns_the_rest() -> None:
    assert walk([entry(0, 1), entry(0, 1, 2, 3)], (0, 1, 2, 0)) == [1, 1, 1, -1 + 1]
    assert walk([entry(0, 1), entry(0, 1, 2, 3)], (0, 1, 2, 3, 2)) == [1, 1, 1, 1, 0]


def test_pieces_that_phrases_share_have_the_largest_boost() -> None:
    assert walk([entry(0, 1, boost=1), entry(0, 2, boost=3)], (0, 1)) == [3, 1]


def test_a_phrase_without_its_own_space_begins_only_behind_a_border() -> None:
    phrase = [entry(0, 1, anywhere=False)]
    assert walk(phrase, (0, 1)) == [1, 1]
    assert walk(phrase, (3, 0, 1)) == [0, 0, 0]
    assert walk(phrase, (3, 4, 0, 1)) == [0, 0, 1, 1]


def test_no_phrases_score_nothing() -> None:
    graph = build_graph([], opens=OPENS)
    assert graph.nodes == 2
    assert walk([], (0, 4, 1)) == [0, 0, 0]


def test_boosts_are_rounded_to_what_adds_up_exactly() -> None:
    scores = walk([entry(*([0] * 20), boost=0.1)], (*([0] * 19), 1))
    assert scores[0] == pytest.approx(0.1, abs=0.5 / GRAIN)
    assert sum(scores) == 0


def test_a_piece_has_its_share_of_the_boost() -> None:
    weights = np.array([0.5, 1, 0, 1, 1], dtype=np.float32)
    graph = build_graph([entry(0, 1, 2, boost=2.0)], opens=OPENS, weights=weights)
    assert graph.credit.tolist() == [0, 0, 1, 3, 3]
    assert graph.live.tolist() == [0, 0, 1, 3, 0]


@given(entries=entry_lists(), text=texts)
@settings(max_examples=300, deadline=None)
def test_a_text_has_earned_what_its_phrases_are_worth(entries: list[Entry], text: tuple[int, ...]) -> None:
    oracle, total = Oracle(entries), 0.0
    for n, score in enumerate(walk(entries, text), start=1):
        total += score
        assert total == oracle.earned(text[:n])


@given(entries=entry_lists(), text=texts, counts=st.lists(st.booleans(), min_size=6, max_size=6))
@settings(max_examples=200, deadline=None)
def test_phrases_that_do_not_count_are_as_if_not_listed(
    entries: list[Entry], text: tuple[int, ...], counts: list[bool]
) -> None:
    entries = [replace(entry, phrase=at) for at, entry in enumerate(entries)]
    oracle, total = Oracle(entries, counts), 0.0
    for n, score in enumerate(walk(entries, text, counts), start=1):
        total += score
        assert total == oracle.earned(text[:n])


def test_what_counts_may_change_back() -> None:
    graph = build_graph([replace(entry(0, 1), phrase=0), replace(entry(1, 2), phrase=1)], opens=OPENS)
    none = graph.only(np.array([False, False]))
    assert not none.credit.any()
    assert not none.live.any()
    again = none.only(np.array([True, True]))
    assert np.array_equal(again.credit, graph.credit)
    assert np.array_equal(again.live, graph.live)


@given(entries=entry_lists(), text=texts)
@settings(max_examples=60, deadline=None)
def test_every_token_is_scored_as_if_it_came_next(entries: list[Entry], text: tuple[int, ...]) -> None:
    tables, (root,) = join_graphs([build_graph(entries, opens=OPENS)], OPEN)
    node = torch.tensor([root])
    for token in text:
        node = ADVANCE(tables, node, torch.tensor([token]), torch.tensor([root]))
    oracle = Oracle(entries)
    expected = [oracle.earned((*text, token)) - oracle.earned(text) for token in range(SIZE)]
    assert SCORES(tables, node)[0].tolist() == expected


@given(one=entry_lists(), two=entry_lists(), text=texts)
@settings(max_examples=60, deadline=None)
def test_graphs_side_by_side_are_as_alone(one: list[Entry], two: list[Entry], text: tuple[int, ...]) -> None:
    lists = [one, two, []]
    tables, offsets = join_graphs([build_graph(entries, opens=OPENS) for entries in lists], OPEN)
    nodes = roots = torch.tensor(offsets)
    alone = [walk(entries, text) for entries in lists]
    for at, token in enumerate(text):
        assert SCORES(tables, nodes)[:, token].tolist() == [scores[at] for scores in alone]
        nodes = ADVANCE(tables, nodes, torch.full((3,), token), roots)


def test_roots_of_all_graphs_have_the_same_numbers() -> None:
    graph = build_graph([entry(0, anywhere=False), entry(1)], opens=OPENS)
    assert graph.fail[[START, INSIDE]].tolist() == [-1, -1]
    arcs = [graph.label[graph.first_arc[n] : graph.first_arc[n + 1]].tolist() for n in (START, INSIDE)]
    assert arcs == [[0, 1], [1]]
    assert np.all(graph.fail[2:] >= 0)
