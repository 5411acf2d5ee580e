"""LocalAgreement-2 with a transcriber whose hypotheses are written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from asr.errors import ConfigError
from asr.resample import Samples
from recipes.local_agreement import Agreement, Hypothesis, Streamed, TimedWord, audio_clock, finish, update, wall_clock

MS = 16
"""Samples a millisecond."""


def words(text: str, *, first_ms: int = 0, each_ms: int = 500) -> tuple[TimedWord, ...]:
    """A word every `each_ms`, a space before each."""
    return tuple(
        TimedWord(text=f" {word}", start_ms=first_ms + each_ms * i, end_ms=first_ms + each_ms * (i + 1), confidence=0.5)
        for i, word in enumerate(text.split())
    )


def hypothesis(text: str, *ends_ms: int, first_ms: int = 0, each_ms: int = 500) -> Hypothesis:
    return Hypothesis(words=words(text, first_ms=first_ms, each_ms=each_ms), segment_ends_ms=ends_ms)


def texts(found: Sequence[TimedWord]) -> str:
    return "".join(word.text for word in found).strip()


class Script:
    """Says one hypothesis after the other and keeps what it was asked."""

    def __init__(self, *hypotheses: Hypothesis) -> None:
        self.left = list(hypotheses)
        self.asked: list[tuple[int, str]] = []

    def __call__(self, samples: Samples, prompt: str) -> Hypothesis:
        self.asked.append((len(samples) // MS, prompt))
        return self.left.pop(0)


def silence(ms: int) -> Samples:
    return np.zeros(ms * MS, dtype=np.float32)


def run(script: Script, *chunks_ms: int) -> tuple[Agreement, list[str]]:
    state, found = Agreement(), []
    for ms in chunks_ms:
        state, new = update(state, silence(ms), script)
        found.append(texts(new))
    return state, found


def test_the_longest_common_prefix_of_two_looks_is_committed() -> None:
    script = Script(hypothesis("the cat"), hypothesis("the cap sat"), hypothesis("the cap sat on"))
    state, found = run(script, 1000, 1000, 1000)
    # The second look agrees with the first on "the", the third with the second on "cap sat".
    assert found == ["", "the", "cap sat"]
    assert script.asked == [(1000, ""), (2000, ""), (3000, "")]
    assert texts(state.committed) == "the cap sat"
    assert texts(finish(state)) == "on"


def test_a_word_must_be_written_alike_to_agree() -> None:
    _, found = run(Script(hypothesis("The cat."), hypothesis("The cat sat")), 1000, 1000)
    assert found == ["", "The"]


def test_what_was_committed_never_changes() -> None:
    script = Script(hypothesis("a dog"), hypothesis("a dog"), hypothesis("the hog ran"), hypothesis("the hog ran"))
    state, found = run(script, 1000, 500, 500, 500)
    assert found == ["", "a dog", "", "ran"]
    assert texts(state.committed) == "a dog ran"


def test_words_are_placed_by_the_newest_of_the_two_looks() -> None:
    script = Script(hypothesis("yes"), hypothesis("yes", first_ms=300))
    state, _ = run(script, 1000, 1000)
    assert (state.committed[0].start_ms, state.committed[0].end_ms) == (300, 800)


@pytest.mark.parametrize(
    ("again", "left"),
    [
        ("two three four", "four"),  # both committed words are heard again, a little later
        ("three four", "four"),
        ("four five", "four five"),
        ("two four", "two four"),  # one of them alone is no end of what is committed
    ],
)
def test_committed_words_that_are_heard_again_at_the_border_are_dropped(again: str, left: str) -> None:
    # "one two three" is committed up to 1500 ms; the next look places its words from 1450 ms on.
    script = Script(*[hypothesis("one two three")] * 2, hypothesis(again, first_ms=1450))
    state, _ = run(script, 1500, 500, 500)
    assert texts(finish(state)) == left


def test_words_far_behind_the_border_are_new_words() -> None:
    script = Script(*[hypothesis("no no")] * 2, hypothesis("no", first_ms=2000))
    state, _ = run(script, 1000, 500, 500)
    assert texts(finish(state)) == "no"  # said again 1 s later


def long_speech(text: str) -> Hypothesis:
    """A word a second; segments end at 6 and 14 s and at the end."""
    return hypothesis(text, 6000, 14_000, 16_000, each_ms=1000)


LONG = " ".join(f"w{i}" for i in range(16))


def test_long_audio_is_cut_at_the_last_segment_that_is_committed() -> None:
    script = Script(long_speech(LONG), long_speech(LONG), hypothesis("w14 w15 w16", 1500, each_ms=1000))
    state, _ = run(script, 15_000, 1000)
    assert (state.cut_ms, len(state.audio) // MS) == (14_000, 2000)
    state, new = update(state, silence(1000), script)
    assert script.asked[-1] == (3000, " " + " ".join(LONG.split()[:14]))
    assert texts(state.committed) == LONG  # times are on the stream's clock: w14 and w15 were committed before
    assert (texts(new), texts(finish(state))) == ("", "w16")
    assert finish(state)[0].start_ms == 16_000


def test_what_is_not_committed_is_not_cut() -> None:
    first, second = long_speech(LONG), long_speech(LONG.replace("w8", "wait"))
    state, _ = run(Script(first, second), 15_000, 1000)
    assert texts(state.committed).endswith("w7")
    assert state.cut_ms == 6000  # of two segments the first alone is committed
    state, _ = run(Script(first, long_speech("else")), 15_000, 1000)
    assert (state.cut_ms, len(state.audio) // MS) == (0, 16_000)


def test_the_last_segment_is_never_cut() -> None:
    whole = hypothesis(LONG, 16_000, each_ms=1000)
    state, _ = run(Script(whole, whole), 15_000, 1000)
    assert state.cut_ms == 0


def test_short_audio_is_not_cut() -> None:
    text = " ".join(LONG.split()[:15])
    state, _ = run(Script(long_speech(text), long_speech(text)), 14_000, 1000)
    assert (state.cut_ms, len(state.audio) // MS) == (0, 15_000)


def test_the_prompt_is_what_was_spoken_before_the_cut_and_no_longer_than_it_may_be() -> None:
    committed = words(" ".join(f"word{i:02}" for i in range(40)))  # 7 characters each with the space, until 20 s
    state = Agreement(cut_ms=19_000, committed=committed)
    before = state.prompt.split()
    assert before[-1] == "word37"  # ends at 19 s
    # A word counts one more than its text, so 23 of 8 are below 200 and 25 are enough.
    assert len(before) == 25
    assert Agreement(cut_ms=0, committed=committed).prompt == ""
    assert Agreement(cut_ms=99_000, committed=committed).prompt.split()[-1] == "word38"  # never the newest
    assert Agreement().prompt == ""


# -- clocks ----------------------------------------------------------------------------------------------------------


def looking(script: Callable[[Samples, str], Hypothesis], *seconds: float) -> Callable[..., tuple[Hypothesis, float]]:
    left = list(seconds)

    def look(samples: Samples, prompt: str) -> tuple[Hypothesis, float]:
        return script(samples, prompt), left.pop(0)

    return look


def test_on_the_audio_clock_computing_takes_no_time() -> None:
    script = Script(hypothesis("the cat"), hypothesis("the cap"), hypothesis("the cap sat"))
    found = audio_clock(silence(2300), looking(script, 9.0, 9.0, 9.0), chunk_ms=1000).words
    assert [(word.text, word.emitted_ms) for word in found] == [("the", 2000), ("cap", 2300), ("sat", 2300)]
    assert [(word.start_ms, word.end_ms) for word in found] == [(0, 500), (500, 1000), (1000, 1500)]
    assert [asked for asked, _ in script.asked] == [1000, 2000, 2300]


def test_on_the_wall_clock_a_word_is_there_when_its_look_is_done() -> None:
    script = Script(hypothesis("the cat"), hypothesis("the cap"), hypothesis("the cap sat"))
    found = wall_clock(silence(2300), looking(script, 0.4, 0.2, 0.1), chunk_ms=1000).words
    assert [(word.text, word.emitted_ms) for word in found] == [("the", 2200), ("cap", 2400), ("sat", 2400)]


def test_a_slow_look_makes_the_next_one_late_and_larger() -> None:
    script = Script(
        hypothesis("the"), hypothesis("the cat"), hypothesis("the cat sat"), hypothesis("the cat sat on", 2000)
    )
    found = wall_clock(silence(4000), looking(script, 1.7, 0.5, 0.5, 0.5), chunk_ms=1000).words
    # Looks begin at 1000, 2700 (the first is done), 3700 and 4200 ms; the last hears what came until the end.
    assert [asked for asked, _ in script.asked] == [1000, 2700, 3700, 4000]
    assert [(word.text, word.emitted_ms) for word in found] == [
        ("the", 3200),
        ("cat", 4200),
        ("sat", 4700),
        ("on", 4700),
    ]


def test_the_clocks_differ_by_the_computing_alone_where_looks_are_quick() -> None:
    def script() -> Script:
        return Script(hypothesis("the"), hypothesis("the cat"), hypothesis("the cat sat"))

    audio = audio_clock(silence(2800), looking(script(), *[0.9] * 3), chunk_ms=1000)
    wall = wall_clock(silence(2800), looking(script(), *[0.9] * 3), chunk_ms=1000)
    # The last look begins at 2900 ms rather than 2800: the one before began at 2000.
    assert [b.emitted_ms - a.emitted_ms for a, b in zip(audio.words, wall.words, strict=True)] == [900, 1000, 1000]
    assert audio.seconds == wall.seconds == pytest.approx(2.7)


def test_parts_without_a_space_belong_to_the_word_before() -> None:
    parts = [(" well", 0, 300), ("-known", 300, 700), (" ", 700, 800), (" tea", 800, 9000)]
    found = Hypothesis(
        words=tuple(TimedWord(text=text, start_ms=a, end_ms=b, confidence=b / 9000) for text, a, b in parts),
        segment_ends_ms=(),
    )
    heard = audio_clock(silence(1000), looking(Script(found), 0.1), chunk_ms=2000).words
    assert [(word.text, word.start_ms, word.end_ms) for word in heard] == [("well-known", 0, 700), ("tea", 800, 1000)]
    assert heard[0].confidence == 300 / 9000  # its least sure part's


def test_no_audio_has_no_words_and_a_chunk_has_some() -> None:
    assert audio_clock(silence(0), looking(Script()), chunk_ms=1000) == Streamed(words=(), seconds=0.0)
    with pytest.raises(ConfigError, match="chunk_ms is 0"):
        wall_clock(silence(10), looking(Script()), chunk_ms=0)
