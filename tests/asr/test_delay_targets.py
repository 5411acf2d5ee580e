"""The target builder: known answers and the laws of docs/design.md §3."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.delay_targets import Grammar, Targets, TimedPieces, build_targets, due_step, strip_outputs
from asr.errors import ConfigError

WAIT, MARKER = 90, 91


def word(end_ms: int, *pieces: int) -> TimedPieces:
    return TimedPieces(pieces=pieces, end_ms=end_ms)


def build(words: list[TimedPieces], **settings: Any) -> Targets:
    settings = {"delay_steps": 0, "wait": WAIT} | settings
    return build_targets(words, **settings)


@st.composite
def timed_words(draw: st.DrawFn) -> list[TimedPieces]:
    """Words in order, often crowded, sometimes at equal ends."""
    words, end = [], 0
    for _ in range(draw(st.integers(0, 8))):
        end += draw(st.integers(0, 400))
        words.append(word(end, *draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))))
    return words


GRAMMARS = st.sampled_from([("none", None), ("voxtral", MARKER)])
Settings = tuple[Grammar, int | None]


def test_a_word_is_written_when_it_has_been_heard_and_the_delay_is_over() -> None:
    # Ends at 161 ms: step 2 hears up to 240 ms and is the first that has heard all of it; two steps more.
    assert build([word(161, 1, 2)], delay_steps=2, steps=8).outputs == (WAIT,) * 4 + (1, 2) + (WAIT,) * 2


def test_the_border_of_a_step_belongs_to_it() -> None:
    assert [due_step(end_ms, 0) for end_ms in (1, 79, 80, 81, 240, 241)] == [0, 0, 0, 1, 2, 3]


def test_crowded_words_shift_right_and_say_so() -> None:
    targets = build([word(80, 1, 2, 3), word(160, 4), word(800, 5)])
    assert targets.outputs == (1, 2, 3, 4, *[WAIT] * 5, 5)
    assert [p.lag for p in targets.placements] == [0, 2, 0]
    assert (targets.max_lag, targets.shifted_share, targets.wait_share) == (2, 1 / 3, 0.5)


def test_text_past_the_audio_runs_on_and_waits_follow_it() -> None:
    targets = build([word(160, 1, 2, 3)], steps=2, trailing_waits=2)
    assert targets.outputs == (WAIT, 1, 2, 3, WAIT, WAIT)


def test_trailing_waits_come_out_of_the_audio_where_there_is_room() -> None:
    assert len(build([word(80, 1)], steps=10, trailing_waits=4).outputs) == 10


def test_without_words_all_is_wait_and_shares_are_unknown() -> None:
    targets = build([], steps=3)
    assert targets.outputs == (WAIT,) * 3
    assert (targets.max_lag, targets.shifted_share, targets.wait_share) == (0, None, 1.0)
    assert build([]).wait_share is None


def test_voxtral_writes_a_marker_before_a_group_only() -> None:
    # The first two are due together, the third while the second is being written, the last long after.
    words = [word(80, 1), word(80, 2), word(240, 3), word(560, 4, 5)]
    targets = build(words, grammar="voxtral", marker=MARKER)
    assert targets.outputs == (MARKER, 1, 2, 3, WAIT, WAIT, MARKER, 4, 5)
    # Due on the very step after a group: a group of its own.
    assert build([word(80, 1), word(240, 2)], grammar="voxtral", marker=MARKER).outputs == (MARKER, 1, MARKER, 2)


def test_a_late_word_is_open_from_the_step_it_was_due() -> None:
    targets = build([word(80, 1), word(160, 2)], overdue=[3, 0], steps=6)
    assert targets.outputs == (WAIT, WAIT, WAIT, 1, 2, WAIT)
    first, second = targets.placements
    assert (first.due, first.open_from, first.first, first.lag) == (0, 0, 3, 0)
    assert (second.due, second.open_from, second.first, second.lag) == (1, 4, 4, 3)


def test_a_draft_begins_at_the_first_free_step() -> None:
    words = [word(80, 1), word(800, 2)]
    targets = build(words, first_step=5)
    assert (targets.first_step, targets.outputs) == (5, (1, WAIT, WAIT, WAIT, 2))
    assert build(words, first_step=5, steps=12).outputs == (1, WAIT, WAIT, WAIT, 2, WAIT, WAIT)


def test_a_draft_joins_the_group_before_it_only_after_text() -> None:
    words = [word(80, 1)]
    alone = build(words, first_step=5, grammar="voxtral", marker=MARKER)
    joined = build(words, first_step=5, grammar="voxtral", marker=MARKER, after_text=True)
    assert (alone.outputs, joined.outputs) == ((MARKER, 1), (1,))


@given(words=timed_words(), delay=st.integers(0, 12), grammar=GRAMMARS, steps=st.none() | st.integers(0, 40))
def test_round_trip(words: list[TimedPieces], delay: int, grammar: Settings, steps: int | None) -> None:
    targets = build(words, delay_steps=delay, grammar=grammar[0], marker=grammar[1], steps=steps)
    text = tuple(piece for w in words for piece in w.pieces)
    assert strip_outputs(targets.outputs, wait=WAIT, marker=MARKER) == text
    for w, p in zip(words, targets.placements, strict=True):
        assert targets.outputs[p.first : p.last + 1] == w.pieces
    assert targets.waits == targets.outputs.count(WAIT)
    assert steps is None or len(targets.outputs) >= steps


@given(words=timed_words(), delay=st.integers(0, 12), grammar=GRAMMARS)
def test_one_more_step_of_delay_shifts_everything_by_one(
    words: list[TimedPieces], delay: int, grammar: Settings
) -> None:
    sooner = build(words, delay_steps=delay, grammar=grammar[0], marker=grammar[1])
    later = build(words, delay_steps=delay + 1, grammar=grammar[0], marker=grammar[1])
    assert later.outputs == ((WAIT, *sooner.outputs) if words else ())
    assert later.max_lag == sooner.max_lag


@given(words=timed_words(), delay=st.integers(0, 12), grammar=GRAMMARS, data=st.data())
def test_never_early_never_out_of_order_never_needlessly_late(
    words: list[TimedPieces], delay: int, grammar: Settings, data: st.DataObject
) -> None:
    overdue = data.draw(st.lists(st.integers(0, 5), min_size=len(words), max_size=len(words)))
    targets = build(words, delay_steps=delay, grammar=grammar[0], marker=grammar[1], overdue=overdue)
    free = 0
    for w, late, p in zip(words, overdue, targets.placements, strict=True):
        heard_ms = (p.start - delay + 1) * 80
        assert heard_ms >= w.end_ms
        assert p.due <= p.open_from <= p.start <= p.first <= p.last
        assert p.start == max(p.due + late, free)  # at once, unless the step is taken
        assert p.last - p.first == len(w.pieces) - 1
        free = p.last + 1


@given(words=timed_words(), delay=st.integers(0, 12), grammar=GRAMMARS)
def test_a_stream_that_goes_on_is_the_file_without_its_last_waits(
    words: list[TimedPieces], delay: int, grammar: Settings
) -> None:
    stream = build(words, delay_steps=delay, grammar=grammar[0], marker=grammar[1])
    file = build(words, delay_steps=delay, grammar=grammar[0], marker=grammar[1], steps=60)
    assert file.outputs[: len(stream.outputs)] == stream.outputs
    assert set(file.outputs[len(stream.outputs) :]) <= {WAIT}


@given(words=timed_words(), delay=st.integers(0, 6), grammar=GRAMMARS, data=st.data())
def test_going_on_from_any_word_gives_the_rest(
    words: list[TimedPieces], delay: int, grammar: Settings, data: st.DataObject
) -> None:
    whole = build(words, delay_steps=delay, grammar=grammar[0], marker=grammar[1])
    done = data.draw(st.integers(0, len(words)))
    first_step = whole.placements[done - 1].last + 1 if done else 0
    rest = build(
        words[done:],
        delay_steps=delay,
        grammar=grammar[0],
        marker=grammar[1],
        first_step=first_step,
        after_text=done > 0,
    )
    assert rest.outputs == whole.outputs[first_step:]
    assert rest.placements == whole.placements[done:]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delay_steps": -1}, "delay_steps is -1; it must be 0 or more"),
        ({"trailing_waits": -2}, "trailing_waits is -2"),
        ({"grammar": "kyutai"}, "grammar is 'kyutai'; there are 'none' and 'voxtral'"),
        ({"grammar": "voxtral"}, "grammar 'voxtral' needs a marker, got None"),
        ({"marker": 3}, "grammar 'none' has no marker, got 3"),
        ({"grammar": "voxtral", "marker": WAIT}, "wait and marker are both 90"),
        ({"overdue": [1, 2]}, r"overdue needs 1 counts of 0 or more, got \[1, 2\]"),
        ({"overdue": [-1]}, r"overdue needs 1 counts of 0 or more, got \[-1\]"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build([word(80, 1)], **settings)


def test_words_that_cannot_be_placed_are_refused() -> None:
    good = word(80, 1)
    with pytest.raises(ConfigError, match="word 1 has 0 pieces"):
        build([good, replace(good, pieces=())])
    with pytest.raises(ConfigError, match=re.escape("ends at -1 ms")):
        build([replace(good, end_ms=-1)])
    with pytest.raises(ConfigError, match=r"word 0 has pieces \(90,\), among them the wait"):
        build([replace(good, pieces=(WAIT,))])


def spoken_step_by_step(words: list[TimedPieces], delay: int, marker: int | None, steps: int) -> list[int]:
    """The grammar of docs/design.md §3 as a speaker who lives through the steps one by one."""
    outputs: list[int] = []
    waiting = list(words)
    unsaid: list[int] = []
    while len(outputs) < steps or waiting or unsaid:
        t = len(outputs)
        idle = not outputs or outputs[-1] == WAIT
        heard_ms = (t - delay + 1) * 80
        if not unsaid and waiting and max(waiting[0].end_ms, 1) <= heard_ms:
            # Was it due before this step already? Then it follows its neighbour directly.
            joins = not idle and max(waiting[0].end_ms, 1) <= heard_ms - 80
            unsaid = [*([] if joins or marker is None else [marker]), *waiting.pop(0).pieces]
        outputs.append(unsaid.pop(0) if unsaid else WAIT)
    return outputs


@given(words=timed_words(), delay=st.integers(0, 12), grammar=GRAMMARS, steps=st.integers(0, 40))
def test_the_builder_says_what_a_speaker_would(
    words: list[TimedPieces], delay: int, grammar: Settings, steps: int
) -> None:
    # Out of order ends would make the speaker and the builder differ only in what "heard" means; ends here rise.
    targets = build(words, delay_steps=delay, grammar=grammar[0], marker=grammar[1], steps=steps)
    assert list(targets.outputs) == spoken_step_by_step(words, delay, grammar[1], steps)


@given(words=timed_words(), delay=st.integers(0, 12), cut=st.integers(0, 60))
def test_words_not_yet_spoken_do_not_change_what_is_due_before_them(
    words: list[TimedPieces], delay: int, cut: int
) -> None:
    whole = build(words, delay_steps=delay, steps=80)
    known = [w for w in words if due_step(w.end_ms, delay) < cut]
    draft = build(known, delay_steps=delay, steps=80)
    assert whole.outputs[:cut] == draft.outputs[:cut]


def test_the_published_clock() -> None:
    # LLHB eq. 1 counts slots from 1 (t_k = ceil(e_k / 80) + tau); here steps count from 0, so it is one less.
    for end_ms, delay in ((1, 0), (80, 6), (81, 6), (2000, 12)):
        (placement,) = build([word(end_ms, 1)], delay_steps=delay).placements
        assert placement.first + 1 == -(-end_ms // 80) + delay


def test_order_of_the_text_beats_order_of_the_ends() -> None:
    targets = build([word(800, 1), word(160, 2)])
    assert targets.outputs == (*[WAIT] * 9, 1, 2)
    assert targets.placements[1].lag == 9
