"""Word errors and word delays: known answers by construction."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr import metrics
from asr.errors import ConfigError
from asr.metrics import (
    CharacterErrors,
    MarkCounts,
    WordDelays,
    WordErrors,
    align_words,
    bootstrap_interval,
    count_character_errors,
    count_corpus,
    count_errors,
    count_marks,
    delay_stats,
    normalize_english,
    sum_word_errors,
    word_delays,
)
from asr.words import Word


@dataclass(frozen=True)
class Spoken:
    text: str
    end_ms: int


def committed(*pairs: tuple[str, int]) -> list[Word]:
    return [Word(text=text, start_ms=0, end_ms=1, emitted_ms=at, confidence=1.0) for text, at in pairs]


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("the cat sat", "the cat sat", WordErrors(3, 0, 0, 0)),
        ("the cat sat", "the dog sat", WordErrors(2, 1, 0, 0)),
        ("the cat sat", "the sat", WordErrors(2, 0, 1, 0)),
        ("the cat sat", "the big cat sat down", WordErrors(3, 0, 0, 2)),
        ("the cat sat", "", WordErrors(0, 0, 3, 0)),
        ("", "the cat", WordErrors(0, 0, 0, 2)),
        ("", "", WordErrors(0, 0, 0, 0)),
        ("no no no", "no", WordErrors(1, 0, 2, 0)),
        ("COLOUR, it's Mr. Smith!", "color it is mister smith", WordErrors(5, 0, 0, 0)),
        ("twenty two trees", "22 trees", WordErrors(2, 0, 0, 0)),
        ("uh, yes", "yes hmm", WordErrors(1, 0, 0, 0)),
    ],
)
def test_known_word_errors(reference: str, hypothesis: str, expected: WordErrors) -> None:
    assert count_errors(reference, hypothesis) == expected


def test_rates() -> None:
    assert WordErrors(2, 1, 1, 1).rate() == 3 / 4
    assert WordErrors(0, 0, 0, 0).rate() == 0.0
    assert WordErrors(0, 0, 0, 1).rate() == math.inf
    assert WordErrors(0, 0, 1, 3).rate() == 4.0  # above 1 is legal


def test_a_corpus_is_a_sum_of_counts_not_a_mean_of_rates() -> None:
    long, short = WordErrors(hits=9, substitutions=1), WordErrors(deletions=2)
    assert sum_word_errors([long, short]).rate() == 3 / 12
    assert (long + short).rate() != (long.rate() + short.rate()) / 2


def test_words_and_characters_do_not_add() -> None:
    with pytest.raises(TypeError):
        WordErrors(1) + CharacterErrors(1)  # type: ignore[operator]


def test_known_character_errors() -> None:
    assert count_character_errors("The cat", "the cart") == CharacterErrors(7, 0, 0, 1)
    assert count_character_errors("ab cd", "abcd") == CharacterErrors(4, 0, 1, 0)


def test_corpus_by_tag_with_empty_references_apart() -> None:
    corpus = count_corpus(
        [
            ("b", "one day", "one day"),
            ("a", "the cat", "the dog"),
            ("b", "hmm", "invented words"),  # nothing is left of the reference
            ("b", "yes", ""),
        ]
    )
    assert list(corpus.by_tag) == ["a", "b"]
    assert corpus.by_tag["b"] == WordErrors(hits=2, deletions=1)
    assert corpus.total == WordErrors(hits=3, substitutions=1, deletions=1)
    assert len(corpus.clips) == 3
    assert corpus.empty_references == WordErrors(insertions=2)


WORDS = st.lists(st.sampled_from(["cat", "dog", "tree", "house"]), max_size=6)


@given(reference=WORDS, hypothesis=WORDS)
@settings(max_examples=50, deadline=None)
def test_counts_add_up(reference: list[str], hypothesis: list[str]) -> None:
    errors = count_errors(" ".join(reference), " ".join(hypothesis))
    assert errors.reference_length == len(reference)
    assert errors.hits + errors.substitutions + errors.insertions == len(hypothesis)
    assert abs(len(reference) - len(hypothesis)) <= errors.errors <= max(len(reference), len(hypothesis))
    back = count_errors(" ".join(hypothesis), " ".join(reference))
    assert errors.errors == back.errors
    assert (errors.errors == 0) == (reference == hypothesis)


def test_bootstrap_of_equal_clips_has_no_width() -> None:
    assert bootstrap_interval([WordErrors(9, 1)] * 5, seed=0) == (0.1, 0.1)


def test_bootstrap_holds_the_rate_repeats_with_its_seed_and_widens_with_the_level() -> None:
    clips = [WordErrors(10 - i % 4, i % 4) for i in range(60)]
    rate = sum_word_errors(clips).rate()
    interval = bootstrap_interval(clips, seed=1)
    assert interval == bootstrap_interval(clips, seed=1)
    assert interval != bootstrap_interval(clips, seed=2)
    wide = bootstrap_interval(clips, seed=1, level=0.999)
    assert interval is not None
    assert wide is not None
    assert wide[0] < interval[0] < rate < interval[1] < wide[1]
    # Each clip has 10 words and i % 4 errors: sd of a clip's rate is 0.1118, of the mean of 60 0.0144.
    assert interval[1] - interval[0] == pytest.approx(2 * 1.96 * 0.0144, rel=0.15)


def test_bootstrap_weighs_clips_by_their_words() -> None:
    # Either clip twice, or one of each: 0, 1, or 1/100; never 1/2, the mean of the rates.
    interval = bootstrap_interval([WordErrors(99), WordErrors(0, 1)], seed=0, resamples=200, level=0.2)
    assert interval == (0.01, 0.01)


def test_bootstrap_without_references_is_unknown_and_settings_are_checked() -> None:
    assert bootstrap_interval([], seed=0) is None
    assert bootstrap_interval([WordErrors(insertions=3)], seed=0) is None
    with pytest.raises(ConfigError, match=r"resamples >= 1 and 0 < level < 1, got 0 and 0\.95"):
        bootstrap_interval([WordErrors(1)], seed=0, resamples=0)
    with pytest.raises(ConfigError, match="got 10 and 1"):
        bootstrap_interval([WordErrors(1)], seed=0, resamples=10, level=1)


def pairs(reference: str, hypothesis: str) -> tuple[tuple[int, int], ...]:
    return align_words(reference.split(), hypothesis.split()).matched


def test_alignment_matches_equal_words_only() -> None:
    alignment = align_words("The black Cat, sat there".split(), "the cat sat where now".split())
    assert alignment.matched == ((0, 0), (2, 1), (3, 2))
    assert alignment.deleted == (1,)
    assert alignment.reference_words == 5


def test_alignment_of_repeats_keeps_order() -> None:
    assert pairs("no no yes no", "no no yes no") == ((0, 0), (1, 1), (2, 2), (3, 3))
    assert pairs("go home go away", "go away") in (((0, 0), (3, 1)), ((2, 0), (3, 1)))


def test_words_of_which_nothing_is_left_are_left_out_of_both_sides() -> None:
    alignment = align_words(["Well", "-", "hmm", "yes"], ["well", "uh", "Yes."])
    assert alignment.matched == ((0, 0), (3, 2))
    assert (alignment.reference_words, alignment.deleted) == (2, ())


def test_a_word_that_becomes_several_matches_as_a_whole_or_not_at_all() -> None:
    assert pairs("it's late", "It's late") == ((0, 0), (1, 1))
    assert pairs("it's late", "it late") == ((1, 1),)
    assert pairs("it late", "it's late") == ((1, 1),)
    assert pairs("it's late", "it is late") == ((1, 2),)


def test_nothing_against_something() -> None:
    assert align_words([], ["a"]).matched == ()
    assert align_words(["cat", "dog"], []).deleted == (0, 1)


@given(reference=WORDS, hypothesis=WORDS)
@settings(max_examples=50, deadline=None)
def test_matches_are_equal_words_in_rising_order_as_many_as_hits(reference: list[str], hypothesis: list[str]) -> None:
    alignment = align_words(reference, hypothesis)
    assert all(reference[i] == hypothesis[j] for i, j in alignment.matched)
    for side in zip(*alignment.matched, strict=True):
        assert list(side) == sorted(set(side))
    errors = count_errors(" ".join(reference), " ".join(hypothesis))
    assert (len(alignment.matched), len(alignment.deleted)) == (errors.hits, errors.deletions)


def test_delays_of_matched_words_with_negative_ones_kept() -> None:
    reference = [Spoken("the", 200), Spoken("black", 500), Spoken("cat", 900), Spoken("sat", 1200)]
    delays = word_delays(reference, committed(("The", 480), ("cat,", 880), ("sang", 2000)))
    assert delays == WordDelays(delays_ms=(280, -20), reference_words=4, deletions=1)


def test_delay_quantiles_pooled_and_of_utterance_means() -> None:
    stats = delay_stats(
        [
            WordDelays(delays_ms=(0, 100, 200, 300), reference_words=5, deletions=1),
            WordDelays(delays_ms=(1000,), reference_words=3, deletions=0),
            WordDelays(delays_ms=(), reference_words=2, deletions=2),
        ]
    )
    # Pooled: 0 100 200 300 1000, quantile q lies at place 4 q. Means: 150 and 1000.
    assert stats.pooled is not None
    assert stats.utterance_means is not None
    assert astuple(stats.pooled) == pytest.approx((200, 720, 860))
    assert astuple(stats.utterance_means) == pytest.approx((575, 915, 957.5))
    assert (stats.matched, stats.reference_words, stats.deletions) == (5, 10, 3)
    assert stats.deletion_rate == 0.3


def test_no_matched_word_gives_none_not_zero() -> None:
    stats = delay_stats([])
    assert (stats.pooled, stats.utterance_means, stats.matched, stats.deletion_rate) == (None, None, 0, None)
    deleted = delay_stats([WordDelays(delays_ms=(), reference_words=2, deletions=2)])
    assert (deleted.pooled, deleted.deletion_rate) == (None, 1.0)


def test_the_normalizer_is_the_leaderboards() -> None:
    # openai/whisper, tests/test_normalizer.py
    assert normalize_english("he's like") == "he is like"
    assert normalize_english("  Mr. Park visited Assoc. Prof. Kim Jr. ") == (
        "mister park visited associate professor kim junior"
    )


@pytest.mark.parametrize("package", ["jiwer", "whisper_normalizer"])
def test_without_the_extra_the_error_names_it(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def refuse(name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] = (), level: int = 0) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(f"No module named {package!r}")
        return real_import(name, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", refuse)
    metrics._normalizer.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"pip install 'earlybird-asr\[eval\]'"):
            count_errors("a", "b")
    finally:
        metrics._normalizer.cache_clear()


def edit_distance(reference: list[str], hypothesis: list[str]) -> int:
    """Levenshtein, written out (independent of jiwer)."""
    row = list(range(len(hypothesis) + 1))
    for i, word in enumerate(reference, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(hypothesis, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]


@given(reference=WORDS, hypothesis=WORDS)
@settings(max_examples=80, deadline=None)
def test_errors_are_the_edit_distance(reference: list[str], hypothesis: list[str]) -> None:
    assert count_errors(" ".join(reference), " ".join(hypothesis)).errors == edit_distance(reference, hypothesis)


@given(words=WORDS, shift=st.integers(-500, 500))
@settings(max_examples=40, deadline=None)
def test_a_perfect_transcript_has_the_delay_it_was_committed_with(words: list[str], shift: int) -> None:
    reference = [Spoken(word, 300 * (i + 1)) for i, word in enumerate(words)]
    hypothesis = committed(*((word.text.title() + ".", word.end_ms + shift) for word in reference))
    assert word_delays(reference, hypothesis) == WordDelays(
        delays_ms=(shift,) * len(words), reference_words=len(words), deletions=0
    )


@given(groups=st.lists(st.lists(st.integers(-1000, 3000), max_size=5), max_size=5))
def test_quantiles_rise_and_lie_within_the_delays(groups: list[list[int]]) -> None:
    stats = delay_stats(WordDelays(delays_ms=tuple(g), reference_words=len(g), deletions=0) for g in groups)
    pooled = [delay for group in groups for delay in group]
    assert stats.matched == stats.reference_words == len(pooled)
    for quantiles in (stats.pooled, stats.utterance_means):
        assert (quantiles is None) == (not pooled)
        if quantiles is not None:
            assert min(pooled) <= quantiles.p50 <= quantiles.p90 <= quantiles.p95 <= max(pooled)


def test_leaving_words_out_makes_delays_shorter_and_deletions_more() -> None:
    reference = [Spoken("quick", 300), Spoken("hard", 600), Spoken("easy", 900)]
    everything = delay_stats([word_delays(reference, committed(("quick", 700), ("hard", 2600), ("easy", 1300)))])
    lazy = delay_stats([word_delays(reference, committed(("quick", 700), ("easy", 1300)))])
    assert everything.pooled is not None
    assert lazy.pooled is not None
    assert lazy.pooled.p90 < everything.pooled.p90
    assert (everything.deletion_rate, lazy.deletion_rate) == (0.0, 1 / 3)


def test_a_word_half_deleted_is_not_deleted() -> None:
    alignment = align_words(["it's", "late"], ["it", "late"])
    assert (alignment.matched, alignment.deleted) == (((1, 1),), ())


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("No, I said. Why?", "No, I said. Why?", MarkCounts(3, 3, 3, 4, 4)),
        ("No, I said. Why?", "No. I said Why!", MarkCounts(0, 2, 3, 4, 4)),  # another mark is no hit
        ("No, I said. Why?", "no, i said. why?", MarkCounts(3, 3, 3, 1, 4)),
        ("No, I said.", "Now, I said.", MarkCounts(1, 1, 1, 2, 2)),  # what was misheard counts nowhere
        ('He said "no."', "He said no.", MarkCounts(1, 1, 1, 3, 3)),  # quotes aside
        ("NO, I SAID.", "No, I said.", MarkCounts()),
        ("no i said", "No, I said.", MarkCounts()),
        ("No.", "", MarkCounts()),
    ],
)
def test_marks_and_capitals_of_words_recognised(reference: str, hypothesis: str, expected: MarkCounts) -> None:
    assert count_marks(reference, hypothesis) == expected


def test_marks_of_many_clips_add_up_and_none_have_no_score() -> None:
    total = sum((count_marks("Yes, sir.", heard) for heard in ("Yes, sir.", "Yes sir.")), MarkCounts())
    assert total == MarkCounts(hits=3, written=3, wanted=4, capitals=4, words=4)
    assert total.f1() == pytest.approx(6 / 7)
    assert MarkCounts().f1() is None
