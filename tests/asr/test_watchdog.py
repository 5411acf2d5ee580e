from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import ConfigError
from asr.recogniser import WAIT
from asr.watchdog import Alarm, Watchdog, WatchdogConfig, WatchdogState

SPEECH = [-20.0, -50.0, -20.0, -25.0]  # a step of four frames, one of them between words
SILENCE = [-60.0] * 4


def run(dog: Watchdog, steps: list[tuple[int, list[float]]], block: int = 4) -> list[tuple[int, Alarm]]:
    """The alarms of a stream, with the steps heard by then; a step is its output and its levels."""
    state, alarms = WatchdogState(), []
    for start in range(0, len(steps), block):
        part = steps[start : start + block]
        alarm, state = dog.step([token for token, _ in part], [level for _, levels in part for level in levels], state)
        if alarm is not None:
            alarms.append((start + len(part), alarm))
    return alarms


@pytest.fixture
def dog() -> Watchdog:
    return Watchdog(grace_steps=10)


def test_waiting_over_speech_is_noticed_after_four_seconds(dog: Watchdog) -> None:
    assert run(dog, [(WAIT, SPEECH)] * 60)[0] == (52, "wait")


def test_waiting_over_silence_is_right(dog: Watchdog) -> None:
    assert run(dog, [(WAIT, SILENCE)] * 2000) == []


@pytest.mark.parametrize("level", [-70.0, -45.0, -10.0])
def test_steady_noise_is_no_speech_even_after_silence(dog: Watchdog, level: float) -> None:
    random = np.random.default_rng(0)
    noise = [(WAIT, [level + float(x) for x in random.normal(0, 0.5, 4)]) for _ in range(1000)]
    assert run(dog, noise) == []
    loud_after_silence = [(WAIT, SILENCE)] * 200 + noise
    assert len(run(dog, loud_after_silence)) <= 1  # the onset itself may look like speech, the rest may not


def test_speech_that_is_written_is_no_fault(dog: Watchdog) -> None:
    written = [(step if step % 6 == 0 else WAIT, SPEECH) for step in range(600)]
    assert run(dog, written) == []


def test_speech_too_new_for_its_text_says_nothing() -> None:
    """A minute of silence, then so much speech as may lawfully be unwritten yet."""
    dog = Watchdog(grace_steps=30)
    assert run(dog, [(WAIT, SILENCE)] * 750 + [(WAIT, SPEECH)] * 30) == []
    assert len(run(dog, [(WAIT, SILENCE)] * 750 + [(WAIT, SPEECH)] * 60)) == 1


def test_speech_behind_a_blocks_last_token_counts(dog: Watchdog) -> None:
    loud = [(WAIT, [-20.0] * 4)] * 25
    assert run(dog, [(5, SILENCE), *loud, *[(WAIT, SILENCE)] * 26], block=26) == [(52, "wait")]
    assert run(dog, [*loud, (5, SILENCE), *[(WAIT, SILENCE)] * 52], block=26) == []


def test_too_little_speech_says_nothing(dog: Watchdog) -> None:
    few = [(WAIT, SPEECH if step < 12 else SILENCE) for step in range(200)]
    assert run(dog, few) == []


def test_it_gets_more_patient_and_text_makes_it_impatient_again(dog: Watchdog) -> None:
    waits = [(WAIT, SPEECH)] * 400
    alarms = run(dog, waits)
    assert [at for at, _ in alarms] == [52, 152, 352]
    after_text = run(dog, [*waits, (5, SPEECH), *waits[:60]])
    assert [at for at, _ in after_text] == [52, 152, 352, 452]


def test_patience_has_a_bound() -> None:
    dog = Watchdog(grace_steps=2, config=WatchdogConfig(longest_wait_steps=100))
    alarms = [at for at, _ in run(dog, [(WAIT, SPEECH)] * 1000, block=1)]
    assert {later - earlier for earlier, later in pairwise(alarms[1:])} == {100}


@pytest.mark.parametrize("size", range(1, 9))
def test_the_same_words_four_times_are_a_loop(dog: Watchdog, size: int) -> None:
    phrase = [(token, SPEECH) for token in range(size)]
    lead = [(100, SPEECH), (101, SPEECH)]
    assert run(dog, lead + phrase * 3, block=1) == []
    assert run(dog, lead + phrase * 4, block=1) == [(2 + 4 * size, "loop")]
    assert len(run(dog, phrase * 8, block=1)) == 2  # the next one needs four of its own


def test_waits_within_a_loop_do_not_hide_it(dog: Watchdog) -> None:
    steps = [(token, SPEECH) for token in (1, WAIT, WAIT, 2, WAIT)] * 4
    assert run(dog, steps, block=1)[-1][1] == "loop"


def test_a_longer_phrase_or_other_words_are_no_loop(dog: Watchdog) -> None:
    assert run(dog, [(token, SPEECH) for token in [*range(9)] * 6]) == []
    assert run(dog, [(token * token % 31, SPEECH) for token in range(200)]) == []


@given(
    steps=st.lists(st.tuples(st.integers(WAIT, 40), st.sampled_from([SPEECH, SILENCE])), max_size=300),
    block=st.integers(1, 20),
)
def test_its_memory_is_bounded(steps: list[tuple[int, list[float]]], block: int) -> None:
    dog = Watchdog(grace_steps=10)
    state = WatchdogState()
    for start in range(0, len(steps), block):
        part = steps[start : start + block]
        _, state = dog.step([token for token, _ in part], [level for _, levels in part for level in levels], state)
        assert len(state.levels) <= 240
        assert len(state.tokens) <= 32


def test_it_remembers_no_more_text_than_the_longest_loop_needs(dog: Watchdog) -> None:
    _, state = dog.step(range(200), SPEECH * 200, WatchdogState())
    assert state.tokens == tuple(range(168, 200))


@pytest.mark.parametrize(
    "values",
    [{"loud_frames": 0}, {"loud_frames": 201}, {"longest_wait_steps": 49}, {"repeats": 1}, {"longest_loop": 0}],
)
def test_settings_that_cannot_work(values: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(values.values())))):
        WatchdogConfig(**values)
