from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soxr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asr.errors import AudioFormatError, ConfigError, InvalidSamples, Overloaded, StreamClosed
from asr.model import Model
from asr.slots import StreamEngine
from asr.transcriber import transcribe
from streaming.endpoint import EndpointConfig
from streaming.events import Closed, Event, Flushed, Heartbeat, Segment, Words
from streaming.session import Session
from tests.scripted import codes, say, scripted_model
from tests.tiny_model import bursts, tiny_additive_model, tiny_model

SLOW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


def session(model: Model, **options: object) -> Session:
    return Session(model, **{"delay_ms": 80, "chunk_ms": 80, **options})  # type: ignore[arg-type]


def pcm(audio: np.ndarray) -> bytes:
    return (audio * 32768).round().clip(-32768, 32767).astype("<i2").tobytes()


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Words))


# -- events --------------------------------------------------------------------------------------------------------


def test_words_come_as_the_audio_does(scripted: Model) -> None:
    live, seen = session(scripted), ""
    audio = say(scripted, "the don't a", lead=3)
    for at in range(0, len(audio), 1280):
        live.feed_audio(audio[at : at + 1280])
        seen += text_of(live.events())
    assert seen == "the don't"
    live.flush()
    events = live.events()
    assert text_of(events) == " a"
    assert isinstance(events[-1], Flushed)
    assert live.transcript().text == "the don't a"


def test_the_words_of_the_events_are_the_transcript(scripted: Model) -> None:
    live = session(scripted)
    live.feed_audio(say(scripted, "the don't . a , don't a", gap=1))
    live.close()
    words = []
    for event in live.events():
        if isinstance(event, Words):
            if event.amended is not None:
                words[event.amended[0]] = event.amended[1]
            assert event.first == len(words)
            words += event.words
    assert tuple(words) == live.transcript().words
    assert text_of(live.events()) == ""


def test_late_punctuation_is_appended_and_amends(scripted: Model) -> None:
    the, dot = (scripted.vocabulary.encode(piece)[0] + 1 for piece in (" the", "."))
    live = session(scripted)
    live.feed_audio(codes(0, the, 0, 0, 0, dot, 0, 0))
    first, second = [event for event in live.events() if isinstance(event, Words)]
    assert (first.text, first.words[0].text, first.amended) == ("the", "the", None)
    assert (second.text, second.words, second.first) == (".", (), 1)
    assert second.amended is not None
    assert second.amended[0] == 0
    assert second.amended[1].text == "the."
    assert second.amended[1].emitted_ms == first.words[0].emitted_ms


def test_segments_end_at_pauses_sentences_and_flushes(scripted: Model) -> None:
    live = session(scripted, endpoint=EndpointConfig())
    live.feed_audio(np.concatenate([say(scripted, "the a"), codes(*[0] * 60), say(scripted, "don't."), codes(0)]))
    live.flush()
    segments = [event for event in live.events() if isinstance(event, Segment)]
    assert [(s.text, s.first, s.count, s.reason) for s in segments] == [
        ("the a", 0, 2, "pause"),
        ("don't.", 2, 1, "flush"),
    ]
    assert segments[0].start_ms < segments[0].end_ms <= segments[1].start_ms


def test_the_heartbeat_tells_how_far_it_is(scripted: Model) -> None:
    live = session(scripted, chunk_ms=320)
    live.feed_audio(codes(0, 0, 0))
    assert live.events() == []
    live.feed_audio(codes(0, 0))
    (beat,) = live.events()
    assert isinstance(beat, Heartbeat)
    assert (beat.received_ms, beat.processed_ms, beat.lag_ms) == (400, 320, 80)


def test_heartbeats_that_nobody_fetched_do_not_pile_up(scripted: Model) -> None:
    live = session(scripted)
    for _ in range(500):
        live.feed_audio(codes(0))
    assert live.events() == [Heartbeat(received_ms=40_000, processed_ms=40_000)]


def test_every_flush_has_its_answer(scripted: Model) -> None:
    live = session(scripted)
    live.flush()
    live.flush()
    assert live.events() == [Flushed(audio_ms=0)] * 2
    live.feed_audio(say(scripted, "the"))
    live.flush()
    live.flush()
    events = live.events()
    assert text_of(events) == "the"
    assert [type(event) for event in events if not isinstance(event, Heartbeat)] == [Words, Segment, Flushed, Flushed]


def test_a_session_goes_on_after_a_flush_with_its_clock(scripted: Model) -> None:
    live = session(scripted)
    for _ in range(3):
        live.feed_audio(say(scripted, "the", lead=10))
        live.flush()
        live.feed_audio(codes(0))
    starts = [word.start_ms for word in live.transcript().words]
    assert starts == [starts[0], starts[0] + 12 * 80, starts[0] + 24 * 80]


def test_the_first_word_after_a_minute_of_silence(scripted: Model) -> None:
    live = session(scripted)
    live.feed_audio(np.concatenate([codes(*[0] * 750), say(scripted, "don't", lead=0)]))
    live.close()
    assert live.transcript().text == "don't"
    assert live.transcript().words[0].start_ms == pytest.approx(60_000 - 240, abs=100)


# -- closing -------------------------------------------------------------------------------------------------------


def test_closing_gives_the_last_words_and_then_nothing(scripted: Model) -> None:
    live = session(scripted)
    live.feed_audio(say(scripted, "the a"))
    live.close()
    live.close()
    events = live.events()
    assert text_of(events) == "the a"
    assert isinstance(events[-1], Closed)
    assert events[-1].audio_ms == live.transcript().duration_ms
    assert events[-1].stats == live.stats
    assert not any(isinstance(event, Flushed) for event in events)
    assert live.events() == []
    for call in (lambda: live.feed_audio(b""), live.flush):
        with pytest.raises(StreamClosed, match="session was closed"):
            call()


def test_a_session_may_be_dropped(scripted: Model) -> None:
    engine = StreamEngine(scripted, slots=1)
    live = session(scripted, engine=engine)
    live.feed_audio(say(scripted, "the a"))
    before = text_of(live.events())
    live.close(decode_rest=False)
    assert before == "the"
    assert [type(event) for event in live.events()] == [Closed]
    assert engine.free == 1


def test_as_a_context_it_closes_and_drops_on_an_error(scripted: Model) -> None:
    with session(scripted) as live:
        live.feed_audio(say(scripted, "the"))
    assert live.transcript().text == "the"
    engine = StreamEngine(scripted, slots=1)
    with pytest.raises(InvalidSamples), session(scripted, engine=engine) as live:
        live.feed_audio(np.full(9, np.inf, dtype=np.float32))
    assert engine.free == 1
    assert live.transcript().text == ""


# -- intake --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tiny_model, tiny_additive_model])
def test_bytes_in_random_pieces_give_the_files_text(make: type, tmp_path: Path) -> None:
    model = make(tmp_path)
    data = pcm(bursts(2.07).numpy())
    whole = transcribe(model, np.frombuffer(data, dtype="<i2").astype(np.float32) / 32768, delay_ms=80, chunk_ms=160)
    assert whole.words

    @SLOW
    @given(cuts=st.lists(st.integers(0, len(data)), max_size=30))
    def law(cuts: list[int]) -> None:
        live = session(model, chunk_ms=160)
        for start, end in pairwise([0, *sorted(cuts), len(data)]):
            live.feed_audio(data[start:end])
        live.close()
        assert live.transcript() == whole
        assert text_of(live.events()) == whole.text

    law()


@pytest.mark.parametrize("sample_rate", [8_000, 44_100, 48_000])
def test_other_rates_are_resampled_and_keep_their_times(scripted: Model, sample_rate: int) -> None:
    audio = codes(*[0] * 10, 100, 100)
    live = session(scripted, sample_rate=sample_rate, encoding="pcm_f32le")
    for _ in range(3):
        live.feed_audio(soxr.resample(audio, 16_000, sample_rate).astype("<f4").tobytes())
        live.flush()
    events = live.events()
    flushed = [event.audio_ms for event in events if isinstance(event, Flushed)]
    assert flushed == [pytest.approx(12 * 80 * n, abs=2) for n in (1, 2, 3)]
    assert live.stats.audio_samples == pytest.approx(3 * len(audio), abs=6)


def test_channels(scripted: Model) -> None:
    audio = say(scripted, "the a")
    stereo = np.stack([np.zeros_like(audio), audio], axis=1)
    right = session(scripted, channels=2, channel=1)
    right.feed_audio(stereo)
    right.close()
    assert right.transcript().text == "the a"
    as_bytes = session(scripted, channels=2, channel=1, encoding="pcm_f32le")
    as_bytes.feed_audio(stereo.tobytes())
    as_bytes.close()
    assert as_bytes.transcript() == right.transcript()
    anti = session(scripted, channels=2)
    anti.feed_audio(np.stack([audio, -audio], axis=1))
    anti.close()
    assert "cancel each other" in anti.events()[-1].warnings[0]


def test_a_frame_may_be_torn_by_a_flush_and_is_missed_at_the_end(scripted: Model) -> None:
    data = pcm(say(scripted, "the a"))
    live = session(scripted)
    live.feed_audio(data[:10_001])
    live.flush()
    live.feed_audio(data[10_001:])
    live.feed_audio(b"\0")
    live.close()
    assert live.transcript().audio_samples == len(data) // 2
    closed = live.events()[-1]
    assert isinstance(closed, Closed)
    assert closed.warnings == ("the stream ended with 1 bytes of an unfinished frame; a frame has 2",)


def test_bytes_and_arrays_do_not_mix(scripted: Model) -> None:
    live = session(scripted)
    live.feed_audio(codes(0))
    with pytest.raises(ConfigError, match="both bytes and arrays"):
        live.feed_audio(b"\0\0")
    live.feed_audio(codes(0))
    assert live.stats.steps == 2


@pytest.mark.parametrize(
    "audio", [np.zeros(9, dtype=np.float64), np.zeros((9, 2), dtype=np.float32), np.zeros((), dtype=np.float32)]
)
def test_arrays_that_were_not_declared(scripted: Model, audio: np.ndarray) -> None:
    live = session(scripted)
    with pytest.raises(AudioFormatError, match=r"float32 \[N, 1\] is needed"):
        live.feed_audio(audio)
    live.feed_audio(codes(0)[:, None])
    assert live.stats.steps == 1


def test_an_error_leaves_the_session_and_its_neighbours_as_they_were(scripted: Model) -> None:
    engine = StreamEngine(scripted, slots=2)
    good, bad = session(scripted, engine=engine), session(scripted, engine=engine)
    spoken = say(scripted, "the don't a")
    half = len(spoken) // 2
    for live in (good, bad):
        live.feed_audio(spoken[:half])
    broken = spoken[half:].copy()
    broken[5] = np.nan
    with pytest.raises(InvalidSamples, match=f"sample {half + 5} is nan"):
        bad.feed_audio(broken)
    for live in (good, bad):
        live.feed_audio(spoken[half:])
        live.close()
        assert live.transcript().text == "the don't a"


def test_a_container_sent_as_pcm_is_an_error(scripted: Model) -> None:
    with pytest.raises(AudioFormatError, match="WAV"):
        session(scripted).feed_audio(b"RIFF" + bytes(100))


# -- sharing, memory, delays ---------------------------------------------------------------------------------------


def test_sessions_that_share_an_engine_say_what_they_say_alone(tiny: Model) -> None:
    engine = StreamEngine(tiny, slots=3)
    clips = [bursts(2.0, seed).numpy() for seed in range(3)]
    choices = [(80, 80), (160, 320), (480, 160)]
    lives = [Session(tiny, delay_ms=d, chunk_ms=c, engine=engine) for d, c in choices]
    with pytest.raises(Overloaded):
        session(tiny, engine=engine)
    for at in range(0, 32_000, 700):
        for number, (live, clip) in enumerate(zip(lives, clips, strict=True)):
            if (at // 700 + number) % 3:
                live.feed_audio(clip[live.stats.audio_samples : at + 700])
    for live, clip, (delay_ms, chunk_ms) in zip(lives, clips, choices, strict=True):
        live.feed_audio(clip[live.stats.audio_samples :])
        live.close()
        alone = transcribe(tiny, clip, delay_ms=delay_ms, chunk_ms=chunk_ms)
        assert live.transcript().text == alone.text
        assert [w.emitted_ms for w in live.transcript().words] == [w.emitted_ms for w in alone.words]
    assert engine.free == 3


def test_an_engine_of_another_model(tiny: Model, scripted: Model) -> None:
    with pytest.raises(ConfigError, match="the engine runs 'tiny', the session asks for 'scripted'"):
        session(scripted, engine=StreamEngine(tiny, slots=1))


def test_settings_are_checked_before_a_slot_is_taken(scripted: Model) -> None:
    engine = StreamEngine(scripted, slots=1)
    for options in ({"delay_ms": 240}, {"chunk_ms": 100}, {"sample_rate": 7_000}, {"channels": 0}, {"encoding": "mp3"}):
        with pytest.raises(ConfigError):
            session(scripted, engine=engine, **options)
    assert engine.free == 1


def test_without_its_words_a_session_keeps_nothing(scripted: Model) -> None:
    live = session(scripted, keep_words=False)
    seen = ""
    for _ in range(50):
        live.feed_audio(say(scripted, "the don't."))
        seen += text_of(live.events())
    assert len(seen.split()) == 99
    assert live._log is None
    assert live._events == []
    assert len(live._endpointer._words) < 100
    with pytest.raises(ConfigError, match="keep_words=False"):
        live.transcript()


def test_delays_on_both_clocks(scripted: Model) -> None:
    live = session(scripted)
    audio = np.concatenate([say(scripted, "the don't a", lead=10, gap=5), codes(*[0] * 5)])
    now_ms = 7_000
    for at in range(0, len(audio), 1280):
        now_ms += 80
        live.feed_audio(audio[at : at + 1280], now_ms=now_ms)
        live.events(now_ms=now_ms + 30)
    audio_clock, wall_clock = live.delays.audio(), live.delays.wall()
    assert audio_clock is not None
    assert wall_clock is not None
    assert audio_clock.count == wall_clock.count == 3
    assert wall_clock.max_ms >= audio_clock.max_ms + 30


def test_delays_without_a_clock_at_the_drain_use_that_of_the_call(scripted: Model) -> None:
    live = session(scripted)
    live.feed_audio(say(scripted, "the"), now_ms=500)
    live.flush(now_ms=900)
    live.events()
    wall, word = live.delays.wall(), live.transcript().words[0]
    assert wall is not None
    assert wall.max_ms == 900 - (500 - live.stats.audio_samples // 16) - word.end_ms
