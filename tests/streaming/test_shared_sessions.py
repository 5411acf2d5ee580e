"""Sessions that share steps: decoding is the caller's, one batch at a time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asr.errors import ConfigError, StreamClosed
from asr.model import Model
from asr.slots import StreamEngine
from streaming.events import Event, Flushed, Heartbeat, Words
from streaming.session import Session, advance_sessions
from tests.scripted import codes, say, scripted_model
from tests.tiny_model import bursts, tiny_model


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


def session(model: Model, engine: StreamEngine, **options: int) -> Session:
    return Session(model, engine=engine, **{"delay_ms": 80, "chunk_ms": 80, **options})  # type: ignore[arg-type]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Words))


def test_taken_audio_is_decoded_a_block_of_each_at_a_time(scripted: Model) -> None:
    engine = StreamEngine(scripted, slots=3)
    sessions = [session(scripted, engine) for _ in range(3)]
    for number, one in enumerate(sessions):
        one.take_audio(codes(*[0] * number))
    assert [one.due for one in sessions] == [False, True, True]
    assert [one.processed_ms for one in sessions] == [0, 0, 0]
    assert advance_sessions(sessions) == sessions[1:]
    assert advance_sessions(sessions) == sessions[2:]
    assert advance_sessions(sessions) == []
    assert [one.processed_ms for one in sessions] == [0, 80, 160]


def test_a_flush_that_others_decode_beside_is_answered_when_it_is_over(scripted: Model) -> None:
    engine = StreamEngine(scripted, slots=2)
    flushed, other = session(scripted, engine), session(scripted, engine)
    flushed.take_audio(say(scripted, "the a"))
    other.take_audio(np.concatenate([say(scripted, "don't"), codes(0, 0)]))
    flushed.begin_flush()
    assert flushed.flushing
    with pytest.raises(ConfigError, match="a flush is under way"):
        flushed.begin_flush()
    flushed.take_audio(say(scripted, "don't"))  # what comes during a flush belongs to what follows it
    seen: list[Event] = []
    while flushed.flushing:
        assert flushed in advance_sessions([flushed, other])
        seen += flushed.events()
    assert text_of(seen) == "the a"
    assert [event for event in seen if isinstance(event, Flushed)] == [Flushed(audio_ms=flushed.received_ms)]
    flushed.flush()
    assert text_of(flushed.events()) == " don't"
    assert other.transcript().text == "don't"


def test_a_flush_of_nothing_is_answered_at_once(scripted: Model) -> None:
    one = session(scripted, StreamEngine(scripted, slots=1))
    one.begin_flush()
    assert not one.flushing
    assert one.events() == [Flushed(audio_ms=0)]


def test_closing_during_a_flush_gives_the_last_words(scripted: Model) -> None:
    one = session(scripted, StreamEngine(scripted, slots=1))
    one.take_audio(say(scripted, "the a"))
    one.begin_flush()
    one.close()
    assert text_of(one.events()) == "the a"


def test_a_step_that_raises_moves_nobody_and_may_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path)
    alone = [session(model, StreamEngine(model, slots=1)) for _ in range(2)]
    engine = StreamEngine(model, slots=2)
    together = [session(model, engine) for _ in range(2)]
    for seed, pair in enumerate(zip(alone, together, strict=True)):
        for one in pair:
            one.take_audio(bursts(4, seed).numpy())
    recogniser, rows = type(model.recogniser), 0
    row = recogniser.row

    def breaks(self: object, *args: object) -> object:
        """Every tenth row of the decoder, half-way through a block's work."""
        nonlocal rows
        rows += 1
        if rows % 10 == 0:
            raise RuntimeError("out of memory")
        return row(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(recogniser, "row", breaks)
    failures = 0
    while any(one.due for one in together):
        before = [one.processed_ms for one in together]
        try:
            advance_sessions(together)
        except RuntimeError:
            failures += 1
            assert [one.processed_ms for one in together] == before
    monkeypatch.undo()
    assert failures >= 4
    for one in alone:
        while advance_sessions([one]):
            pass
    for mine, its in zip(together, alone, strict=True):
        mine.flush()
        its.flush()
        assert [replace(word, confidence=0.0) for word in mine.transcript().words] == [
            replace(word, confidence=0.0) for word in its.transcript().words
        ]
        assert len(mine.transcript().words) > 3
        assert mine.stats.re_anchors == its.stats.re_anchors > 0


def test_another_delay_holds_from_the_next_block_on(scripted: Model) -> None:
    one = session(scripted, StreamEngine(scripted, slots=1), delay_ms=480)
    one.feed_audio(say(scripted, "the don't"))
    one.feed_audio(codes(*[0] * 12))
    slow = one.transcript().words
    one.change_delay(80)
    one.feed_audio(say(scripted, "the don't"))
    one.feed_audio(codes(*[0] * 12))
    quick = one.transcript().words[len(slow) :]
    assert [word.text for word in quick] == [word.text for word in slow] == ["the", "don't"]
    assert {word.delay_ms for word in slow} == {word.delay_ms + 400 for word in quick}


def test_a_delay_that_the_model_was_not_made_for(scripted: Model) -> None:
    one = session(scripted, StreamEngine(scripted, slots=1))
    with pytest.raises(ConfigError, match="delay_ms=240"):
        one.change_delay(240)
    one.close()
    with pytest.raises(StreamClosed):
        one.change_delay(480)


def test_heartbeats_count_what_was_taken_and_what_was_decoded(scripted: Model) -> None:
    one = session(scripted, StreamEngine(scripted, slots=1))
    one.take_audio(np.concatenate([codes(0, 0), np.zeros(160, np.float32)]))
    advance_sessions([one])
    assert one.events() == [Heartbeat(received_ms=170, processed_ms=80)]


def test_one_whose_text_cannot_be_made_takes_nothing_from_the_others(scripted: Model) -> None:
    engine = StreamEngine(scripted, slots=3)
    sessions = [session(scripted, engine) for _ in range(3)]
    for one in sessions:
        one.take_audio(np.concatenate([say(scripted, "the a"), codes(0, 0)]))
    broken = sessions[1]

    def raises(*args: object, **options: object) -> None:
        raise RuntimeError("a bug")

    broken._endpointer.step = raises  # type: ignore[method-assign, assignment]
    while any(one.due for one in sessions):
        try:
            advance_sessions(sessions)
        except RuntimeError:
            sessions = [one for one in sessions if one is not broken]
            with pytest.raises(RuntimeError, match="a bug"):
                advance_sessions([broken])
    assert [one.transcript().text for one in sessions] == ["the a", "the a"]
