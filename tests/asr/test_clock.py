from hypothesis import given
from hypothesis import strategies as st

from asr.clock import KEPT_GAPS, ClockMap

EVENTS = st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60)


def run(events: list[tuple[bool, int]]) -> tuple[ClockMap, list[int]]:
    """The map, and for every model sample the audio sample that it was, or at which its silence began."""
    clock, truth, audio = ClockMap(), [], 0
    for silent, samples in events:
        clock = clock.insert(samples) if silent else clock.hear(samples)
        truth += [audio] * samples if silent else range(audio, audio + samples)
        audio += 0 if silent else samples
    return clock, truth


@given(EVENTS)
def test_every_recent_model_sample_has_its_audio_sample(events: list[tuple[bool, int]]) -> None:
    clock, truth = run(events)
    assert clock.model == len(truth)
    oldest = clock.gaps[0][0] if clock.forgotten else 0
    assert [clock.to_audio(at) for at in range(oldest, len(truth))] == truth[oldest:]


@given(EVENTS)
def test_audio_counts_the_audio_alone(events: list[tuple[bool, int]]) -> None:
    assert run(events)[0].audio == sum(samples for silent, samples in events if not silent)


@given(EVENTS)
def test_there_and_back(events: list[tuple[bool, int]]) -> None:
    clock, truth = run(events)
    oldest = clock.to_audio(clock.gaps[0][0]) if clock.gaps else 0
    for at in range(oldest, clock.audio):
        assert clock.to_audio(clock.to_model(at)) == at
        assert truth[clock.to_model(at)] == at


@given(EVENTS)
def test_it_never_runs_backwards_or_out_of_the_stream(events: list[tuple[bool, int]]) -> None:
    clock, truth = run(events)
    places = [clock.to_audio(at) for at in range(-3, len(truth) + 50)]
    assert places == sorted(places)
    assert places[0] >= 0
    assert places[-1] == clock.audio


def test_memory_is_constant_and_the_newest_silences_stay_exact() -> None:
    clock = ClockMap()
    for _ in range(1000):
        clock = clock.hear(7).insert(5)
    assert len(clock.gaps) == KEPT_GAPS
    assert clock.audio == 7000
    assert clock.to_audio(clock.model - 5 - 7) == 6993
    assert clock.to_audio(clock.model - 5 * 12) == 7000 - 5 * 7


def test_what_was_heard_at_a_silence_lies_behind_it() -> None:
    assert ClockMap().hear(3).insert(2).hear(1).to_model(3) == 5
    assert ClockMap().hear(3).insert(2).hear(1).to_model(2) == 2


def test_adjoining_silences_are_one() -> None:
    assert ClockMap().hear(3).insert(2).insert(2).gaps == ((3, 7),)
    assert ClockMap().hear(3).insert(0).gaps == ()
