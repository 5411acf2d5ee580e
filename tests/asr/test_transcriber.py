from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asr
from asr.errors import AudioFormatError, ConfigError, EmptyAudio, InvalidSamples, StreamClosed
from asr.model import Model
from asr.slots import StreamEngine
from asr.text import WordLog
from asr.transcriber import FlushRule, Stream, advance, transcribe
from asr.units import STEP_SAMPLES
from tests.scripted import LATCH, LOOP, codes, say, scripted_model
from tests.tiny_model import bursts, tiny_additive_model, tiny_model

SLOW = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


def open_stream(model: Model, *, delay_ms: int = 80, chunk_ms: int = 80) -> Stream:
    chosen = model.settings(delay_ms=delay_ms, chunk_ms=chunk_ms)
    return Stream(StreamEngine(model, slots=1, chunks=[chosen.chunk]), chosen)


def drain(stream: Stream, log: WordLog) -> str:
    text = ""
    while moved := advance([stream]):
        log.add(moved[0][1])
        text += moved[0][1].text
    return text


# -- known speech --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_ms", [80, 160, 480])
@pytest.mark.parametrize("chunk_ms", [80, 320, 1600])
@pytest.mark.parametrize("cut", [0, 1, 700, 1279])
def test_the_last_word_comes_though_the_audio_ends_on_it(
    scripted: Model, delay_ms: int, chunk_ms: int, cut: int
) -> None:
    audio = say(scripted, "the don't a $5")
    audio = audio[: len(audio) - cut]
    transcript = transcribe(scripted, audio, delay_ms=delay_ms, chunk_ms=chunk_ms)
    assert transcript.text == "the don't a $5"
    assert transcript.audio_samples == len(audio)
    assert transcript.words[-1].emitted_ms <= transcript.duration_ms
    assert all(0 <= w.start_ms < w.end_ms <= transcript.duration_ms for w in transcript.words)


def test_words_have_the_times_of_what_was_said_and_of_the_chunk_that_brought_them(scripted: Model) -> None:
    audio = say(scripted, "the a", lead=10, gap=10)  # spoken in steps 10 and 21
    audio = np.concatenate([audio, codes(*[0] * 20)])
    first, second = transcribe(scripted, audio, delay_ms=160, chunk_ms=320).words
    # Frame 4 * 10 + 3 is read, due at step 12, whose chunk ends with step 15.
    assert (first.start_ms, first.end_ms, first.emitted_ms) == (860 - 300, 860 - 300 + 30 + 3 * 60, 16 * 80)
    assert (second.start_ms, second.end_ms, second.emitted_ms) == (1740 - 300, 1740 - 300 + 30 + 60, 24 * 80)
    assert first.confidence == pytest.approx(1, abs=0.05)


def test_settings_and_counts_are_in_the_transcript(scripted: Model) -> None:
    transcript = transcribe(scripted, say(scripted, "the a"), delay_ms=160, chunk_ms=320)
    assert transcript.settings == {
        "model": "scripted",
        "delay_ms": 160,
        "chunk_ms": 320,
        "right_context_ms": 80,
        "silence_ms": 120,
        "draft": "auto",
        "draft_mode": "exact",
    }
    stats = transcript.stats
    assert stats.steps == stats.decoder_calls == stats.decoder_rows
    assert stats.blocks * 4 == stats.steps
    assert stats.audio_samples == transcript.audio_samples
    assert (stats.re_anchors, stats.watchdog_re_anchors) == (0, 0)


@pytest.mark.parametrize("samples", [0, 1, 159])
def test_no_audio_gives_no_words_and_no_error(tiny: Model, samples: int) -> None:
    transcript = transcribe(tiny, np.zeros(samples, dtype=np.float32), delay_ms=80, chunk_ms=80)
    assert transcript.text == ""
    assert transcript.audio_samples == samples
    assert transcript.stats.steps == 0


def test_kinds_of_audio(scripted: Model, tmp_path: Path) -> None:
    audio = say(scripted, "the don't a")
    soundfile.write(tmp_path / "a.wav", audio, 16_000, subtype="FLOAT")
    options = {"delay_ms": 80, "chunk_ms": 160}
    expected = transcribe(scripted, audio, **options)
    assert expected.text == "the don't a"
    for other in (audio.astype(np.float64), torch.from_numpy(audio), tmp_path / "a.wav", str(tmp_path / "a.wav")):
        assert transcribe(scripted, other, **options) == expected


@pytest.mark.parametrize("audio", [np.zeros((2, 100), dtype=np.float32), np.zeros(100, dtype=np.int16), np.float32(1)])
def test_arrays_that_are_no_mono_audio(scripted: Model, audio: np.ndarray) -> None:
    with pytest.raises(AudioFormatError, match="mono float samples at 16000 Hz"):
        transcribe(scripted, audio)


def test_errors_of_audio_and_settings(scripted: Model, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16_000)
    with pytest.raises(EmptyAudio, match=r"empty\.wav"):
        transcribe(scripted, tmp_path / "empty.wav")
    audio = np.zeros(2000, dtype=np.float32)
    audio[1234] = np.inf
    with pytest.raises(InvalidSamples, match="sample 1234 is inf"):
        transcribe(scripted, audio)
    with pytest.raises(ConfigError, match=r"chunk_ms \[80, 160, 320, 1600\], delay_ms \[80, 160, 480\]"):
        transcribe(scripted, audio, delay_ms=240, chunk_ms=80)


# -- flush ---------------------------------------------------------------------------------------------------------


def test_the_rule_of_the_flush() -> None:
    rule = FlushRule(least_steps=10, quiet_steps=8, most_steps=40)
    assert not rule.over(silence_steps=17, quiet_steps=30)
    assert rule.over(silence_steps=18, quiet_steps=8)
    assert not rule.over(silence_steps=30, quiet_steps=7)
    assert rule.over(silence_steps=40, quiet_steps=0)


def test_a_flush_is_bounded_though_the_model_never_stops(scripted: Model) -> None:
    piece = scripted.vocabulary.encode(" a")[0]
    with open_stream(scripted) as stream:
        stream._watchdog.config = type(stream._watchdog.config)(repeats=100)
        stream.feed(codes(piece + 1, LOOP))
        stream.begin_flush()
        log = WordLog()
        drain(stream, log)
        assert not stream.flushing
        assert 100 <= stream.stats.steps <= 102
        assert {word.emitted_ms for word in log.words} == {160}


def test_long_chunks_are_not_flushed_in_long_blocks(scripted: Model) -> None:
    with open_stream(scripted, chunk_ms=1600) as stream:
        stream.feed(codes(*[0] * 23))
        stream.begin_flush()
        drain(stream, WordLog())
        silence = -(-(stream._rule.least_steps + 8 - 13) // 16) * 16 + 13
        assert stream.stats.steps == 23 + silence


def test_flushing_again_without_audio_does_nothing(scripted: Model) -> None:
    with open_stream(scripted) as stream:
        stream.begin_flush()
        assert not stream.flushing
        stream.feed(say(scripted, "the"))
        stream.begin_flush()
        log = WordLog()
        assert drain(stream, log) == "the"
        steps = stream.stats.steps
        stream.begin_flush()
        assert not stream.flushing
        assert advance([stream]) == []
        assert stream.stats.steps == steps


@pytest.mark.parametrize("chunk_ms", [80, 320])
def test_times_stay_right_after_flushes_in_mid_stream(scripted: Model, chunk_ms: int) -> None:
    log, said = WordLog(), []
    with open_stream(scripted, chunk_ms=chunk_ms) as stream:
        for number in range(40):
            lead = 9 + number % 3
            said.append(stream.received // 16 + 80 * lead)
            spoken = say(scripted, "the", lead=lead)
            stream.feed(spoken[: len(spoken) - number * 37 % 1000])
            stream.begin_flush()
            drain(stream, log)
        assert stream.received == stream.processed
        assert len(log.words) == 40
        for word, begin in zip(log.words, said, strict=True):
            assert abs(word.start_ms + 240 - begin) <= 160  # the scripted model reads a word where it begins
            assert word.end_ms <= stream.received // 16
            assert 0 <= word.emitted_ms - begin <= 81


def test_audio_that_comes_while_a_flush_is_under_way_waits_for_its_end(scripted: Model) -> None:
    log = WordLog()
    with open_stream(scripted, chunk_ms=320) as stream:
        stream.feed(say(scripted, "the"))
        stream.begin_flush()
        moved = advance([stream])
        log.add(moved[0][1])
        stream.feed(say(scripted, "don't a"))
        drain(stream, log)
        stream.begin_flush()
        drain(stream, log)
    assert [word.text for word in log.words] == ["the", "don't", "a"]


# -- watchdog ------------------------------------------------------------------------------------------------------


def talk(model: Model, seconds: int) -> np.ndarray:
    """Speech of pieces that are all unlike, with the gaps that speech has."""
    pieces = [model.vocabulary.encode(" " + letter)[0] + 1 for letter in "abcdefghijklmnopqrstuvwxyz"]
    steps = [pieces[number // 4 % 26] if number % 4 else 0 for number in range(int(seconds * 12.5))]
    return codes(*steps)


@pytest.mark.parametrize("chunk_ms", [80, 320])
def test_a_decoder_that_latches_on_waiting_is_freed(scripted: Model, chunk_ms: int) -> None:
    audio = np.concatenate([talk(scripted, 3), codes(LATCH), talk(scripted, 12)])
    transcript = transcribe(scripted, audio, delay_ms=80, chunk_ms=chunk_ms)
    assert transcript.stats.watchdog_re_anchors == 1
    assert transcript.stats.re_anchors == 1
    gaps = np.diff([word.start_ms for word in transcript.words])
    assert 4000 < gaps.max() < 6500


def test_a_loop_is_broken(scripted: Model) -> None:
    audio = np.concatenate([talk(scripted, 3), codes(LOOP), codes(*[0] * 60), talk(scripted, 3)])
    transcript = transcribe(scripted, audio, delay_ms=80, chunk_ms=80)
    assert transcript.stats.watchdog_re_anchors == 1
    words = [word.text for word in transcript.words]
    assert max(words.count(word) for word in set(words)) < 12


def test_the_silence_of_a_flush_is_not_watched(scripted: Model) -> None:
    """The wait over speech is too short to alarm; what the flush adds must not count."""
    audio = np.concatenate([talk(scripted, 3), codes(LATCH), talk(scripted, 3)])
    assert transcribe(scripted, audio, delay_ms=80, chunk_ms=80).stats.watchdog_re_anchors == 0


def test_speech_that_is_written_and_silence_leave_the_watchdog_alone(scripted: Model) -> None:
    audio = np.concatenate([talk(scripted, 10), codes(*[0] * 400)])
    assert transcribe(scripted, audio, delay_ms=480, chunk_ms=320).stats.watchdog_re_anchors == 0


# -- laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tiny_model, tiny_additive_model])
@pytest.mark.parametrize("chunk_ms", [80, 320])
def test_pieces_of_any_size_give_the_same_transcript(make: type, chunk_ms: int, tmp_path: Path) -> None:
    model = make(tmp_path)
    audio = bursts(2.03).numpy()
    whole = transcribe(model, audio, delay_ms=160, chunk_ms=chunk_ms)
    assert whole.words

    @SLOW
    @given(cuts=st.lists(st.integers(0, len(audio)), max_size=12), eager=st.booleans())
    def law(cuts: list[int], eager: bool) -> None:
        log = WordLog()
        with open_stream(model, delay_ms=160, chunk_ms=chunk_ms) as stream:
            edges = [0, *sorted(cuts), len(audio)]
            for start, end in pairwise(edges):
                stream.feed(audio[start:end])
                if eager:
                    drain(stream, log)
            stream.begin_flush()
            drain(stream, log)
            assert stream.transcript(log) == whole

    law()


def test_text_and_times_are_the_same_in_any_batch(tiny: Model) -> None:
    clips = [bursts(seconds, seed).numpy() for seed, seconds in enumerate((2.0, 0.5, 3.1, 1.27))]
    alone = [transcribe(tiny, clip, delay_ms=80, chunk_ms=160) for clip in clips]
    chosen = tiny.settings(delay_ms=80, chunk_ms=160)
    engine = StreamEngine(tiny, slots=5)
    streams = [Stream(engine, chosen) for _ in clips]
    logs = {id(stream): WordLog() for stream in streams}
    for stream, clip in zip(streams, clips, strict=True):
        stream.feed(clip)
        stream.begin_flush()
    while moved := advance(streams):
        for stream, delta in moved:
            logs[id(stream)].add(delta)
    for stream, expected in zip(streams, alone, strict=True):
        got = stream.transcript(logs[id(stream)])
        assert got.text == expected.text
        assert [(w.start_ms, w.end_ms, w.emitted_ms) for w in got.words] == [
            (w.start_ms, w.end_ms, w.emitted_ms) for w in expected.words
        ]


@SLOW
@given(samples=st.integers(160, 40_000), seed=st.integers(0, 5), chunk_ms=st.sampled_from([80, 160, 320, 1600]))
def test_every_word_lies_within_the_audio(tiny: Model, samples: int, seed: int, chunk_ms: int) -> None:
    transcript = transcribe(tiny, bursts(3, seed)[:samples], delay_ms=80, chunk_ms=chunk_ms)
    for word in transcript.words:
        assert 0 <= word.start_ms < word.end_ms <= transcript.duration_ms
        assert 0 < word.emitted_ms <= transcript.duration_ms


def test_what_a_stream_holds_does_not_grow(scripted: Model) -> None:
    with open_stream(scripted, chunk_ms=320) as stream:
        size = stream.engine.state_bytes
        for number in range(60):
            stream.feed(talk(scripted, 1))
            if number % 7 == 0:
                stream.begin_flush()
            drain(stream, WordLog())
        assert stream.engine.state_bytes == size
        assert sum(map(len, stream._waiting)) < 4 * STEP_SAMPLES
        assert len(stream._text.word.text if stream._text.word else "") < 50
        assert len(stream._watched.levels) < 400
        assert len(stream._clock.gaps) <= 32


# -- misuse --------------------------------------------------------------------------------------------------------


def test_a_closed_stream(scripted: Model) -> None:
    stream = open_stream(scripted)
    stream.feed(codes(5, 5))
    stream.close()
    stream.close()
    assert stream.engine.free == 1
    assert advance([stream]) == []
    for call in (lambda: stream.feed(codes(5)), stream.begin_flush):
        with pytest.raises(StreamClosed, match="was closed"):
            call()


def test_feeding_what_is_no_audio_takes_nothing(scripted: Model) -> None:
    with open_stream(scripted) as stream:
        stream.feed(codes(0))
        with pytest.raises(AudioFormatError, match=r"shape \(2, 3\)"):
            stream.feed(np.zeros((2, 3), dtype=np.float32))
        with pytest.raises(InvalidSamples, match="sample 1282 is nan"):
            stream.feed(np.array([0, 0, np.nan], dtype=np.float32))
        assert stream.received == 1280


def test_the_callers_array_may_change_after_it_was_fed(scripted: Model) -> None:
    with open_stream(scripted) as stream:
        audio = say(scripted, "the a")
        stream.feed(audio)
        audio[:] = 0
        stream.begin_flush()
        assert drain(stream, WordLog()) == "the a"


def test_streams_of_two_engines_are_no_batch(scripted: Model) -> None:
    streams = [open_stream(scripted), open_stream(scripted)]
    for stream in streams:
        stream.feed(codes(0))
    with pytest.raises(ConfigError, match="several engines"):
        advance(streams)


def test_the_package_gives_it(scripted: Model) -> None:
    assert asr.transcribe is transcribe
