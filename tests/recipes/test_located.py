"""Word errors with their times: known alignments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asr.metrics import WordErrors, count_errors
from recipes.located import TimedText, count_by_place, is_near, locate


def timed(text: str, *, first_ms: int = 1000, gap_ms: int = 1000) -> list[TimedText]:
    """A word a second."""
    return [TimedText(text=word, at_ms=first_ms + i * gap_ms) for i, word in enumerate(text.split())]


def kinds(reference: str, hypothesis: str) -> list[tuple[str, str, int]]:
    return [(unit.kind, unit.text, unit.at_ms) for unit in locate(timed(reference), timed(hypothesis))]


def test_equal_texts_are_hits_at_the_reference_s_times() -> None:
    found = locate(timed("One two"), timed("one, two.", first_ms=1500))
    assert [(unit.kind, unit.at_ms) for unit in found] == [("hit", 1000), ("hit", 2000)]


def test_every_kind_of_error_has_its_time() -> None:
    assert kinds("a cat sat here", "a dog sat") == [
        ("hit", "a", 1000),
        ("substitution", "cat", 2000),
        ("hit", "sat", 3000),
        ("deletion", "here", 4000),
    ]
    assert kinds("big cat", "big red cat") == [("hit", "big", 1000), ("insertion", "red", 2000), ("hit", "cat", 2000)]


def test_a_side_without_words_is_all_deletions_or_insertions() -> None:
    assert kinds("a cat", "") == [("deletion", "a", 1000), ("deletion", "cat", 2000)]
    assert kinds("", "cat") == [("insertion", "cat", 1000)]
    assert kinds("hmm -", "") == []


def test_a_word_that_becomes_several_has_its_time_twice() -> None:
    assert kinds("it's late", "it's late") == [("hit", "it", 1000), ("hit", "is", 1000), ("hit", "late", 2000)]


def test_only_a_repeat_close_by_is_doubled() -> None:
    near = locate(timed("we saw the cat"), timed("we saw we saw the cat"))
    assert [unit.text for unit in near if unit.doubled] == ["we", "saw"]
    far = locate(timed("we saw the big old cat"), timed("we saw the big old cat we"))
    assert [(unit.text, unit.doubled) for unit in far if unit.kind == "insertion"] == [("we", False)]


def test_errors_are_counted_near_the_marks_and_elsewhere() -> None:
    found = locate(timed("a b c d e f"), timed("a x c d e e f"))
    counts = count_by_place(found, [2500], within_ms=600)
    assert counts["near"] == (WordErrors(1, 1, 0, 0), 0)
    errors, doubled = counts["elsewhere"]
    assert (errors.hits, errors.substitutions, errors.insertions, doubled) == (4, 0, 1, 1)
    nowhere = count_by_place(found, [], within_ms=600)
    assert nowhere["near"] == (WordErrors(0, 0, 0, 0), 0)
    assert nowhere["elsewhere"][0] == counts["near"][0] + errors


def test_near_counts_both_sides_and_its_border() -> None:
    assert is_near(4000, [2000], within_ms=2000)
    assert is_near(0, [9000, 2000], within_ms=2000)
    assert not is_near(4001, [2000], within_ms=2000)
    assert not is_near(1, [], within_ms=2000)


WORDS = st.lists(st.sampled_from(["cat", "sat", "red", "old"]), max_size=8)


@given(reference=WORDS, hypothesis=WORDS)
def test_located_errors_are_as_many_as_counted_ones(reference: list[str], hypothesis: list[str]) -> None:
    found = locate(timed(" ".join(reference)), timed(" ".join(hypothesis)))
    count = [unit.kind for unit in found].count
    errors = WordErrors(count("hit"), count("substitution"), count("deletion"), count("insertion"))
    assert errors.reference_length == len(reference)
    assert errors.hits + errors.substitutions + errors.insertions == len(hypothesis)
    assert errors.errors == count_errors(" ".join(reference), " ".join(hypothesis)).errors


@given(reference=WORDS, hypothesis=WORDS, marks=st.lists(st.integers(0, 9000), max_size=3))
def test_near_and_elsewhere_add_up(reference: list[str], hypothesis: list[str], marks: list[int]) -> None:
    found = locate(timed(" ".join(reference)), timed(" ".join(hypothesis)))
    counts = count_by_place(found, marks, within_ms=1500)
    (near, near_doubled), (far, far_doubled) = counts["near"], counts["elsewhere"]
    assert near.reference_length + far.reference_length == len(reference)
    assert near.hits + far.hits == sum(unit.kind == "hit" for unit in found)
    assert near_doubled + far_doubled == sum(unit.doubled for unit in found)
    assert near_doubled <= near.insertions
    assert far_doubled <= far.insertions
