from __future__ import annotations

import pytest

from asr.comparison import KeywordCounts, PairedDifference, count_keywords, paired_difference
from asr.errors import ConfigError
from asr.metrics import WordErrors


def errors(count: int, words: int = 10) -> WordErrors:
    return WordErrors(hits=words - count, substitutions=count)


def test_keywords_are_counted_clip_by_clip() -> None:
    keywords = {"zoe", "colors"}
    one = count_keywords(keywords, "ZOE's colours, Zoe", "zoe is here; colors!")
    assert one == KeywordCounts(spoken=3, written=2, found=2)  # the normaliser writes colors and takes 's apart
    other = count_keywords(keywords, "nobody", "Zoe")
    assert (one + other, (one + other).recall, (one + other).precision) == (KeywordCounts(3, 3, 2), 2 / 3, 2 / 3)
    # One found in another clip than it was spoken in is not found.
    swapped = count_keywords(keywords, "zoe", "") + count_keywords(keywords, "", "zoe")
    assert (swapped.recall, swapped.precision) == (0, 0)
    assert (KeywordCounts().recall, KeywordCounts().precision) == (None, None)


def test_a_steady_gain_is_told_from_a_lucky_one() -> None:
    base = [errors(5)] * 40
    steady = paired_difference([errors(4)] * 40, base, seed=1)
    assert steady == PairedDifference(difference=-0.1, low=-0.1, high=-0.1)
    assert steady.better
    lucky = paired_difference([errors(0), *[errors(5)] * 39], base, seed=1)
    assert lucky.difference == pytest.approx(-5 / 400)
    assert lucky.low < lucky.difference < lucky.high == 0
    assert not lucky.better
    worse = paired_difference(base, [errors(4)] * 40, seed=1)
    assert (worse.difference, worse.better) == (0.1, False)


def test_the_interval_is_drawn_from_pairs() -> None:
    # Clips differ much, the two ways never do: nothing is uncertain.
    clips = [errors(n % 10) for n in range(30)]
    assert paired_difference(clips, clips, seed=3) == PairedDifference(difference=0.0, low=0.0, high=0.0)


def test_what_cannot_be_compared_is_refused() -> None:
    for first, second in (([], []), ([errors(1)], []), ([errors(1)], [errors(1, 9)]), ([errors(0, 0)], [errors(0, 0)])):
        with pytest.raises(ConfigError, match="errors of the same clips"):
            paired_difference(first, second, seed=1)
