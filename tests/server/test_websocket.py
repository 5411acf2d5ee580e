"""Sessions over a real socket, with a recogniser whose speech is known."""

import asyncio

import numpy as np
import pytest

from asr.model import Model
from tests.scripted import codes, say, scripted_model
from tests.server.live_server import client, eventually, pcm, run, serving, session


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


def test_audio_in_words_out_and_a_goodbye_with_the_delays(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server) as one:
            await one.audio(say(model, "the don't a"))
            await one.say("end")
            closed = await one.until("closed")
            assert one.text == "the don't a"
            assert closed["reason"] == "end"
            assert closed["delay_ms"]["audio"]["words"] == closed["delay_ms"]["wall"]["words"] == 3
            words = [word for message in one.of("words") for word in message["words"]]
            assert [word["text"] for word in words] == ["the", "don't", "a"]
            for word in words:
                assert 0 <= word["start_ms"] < word["end_ms"]
                assert word["delay_ms"]["audio"] == word["emitted_ms"] - word["end_ms"]
                assert isinstance(word["delay_ms"]["wall"], int)
            assert [segment["text"] for segment in one.of("segment")] == ["the don't a"]
            seqs = [message["seq"] for message in one.messages if "seq" in message]
            assert seqs == list(range(1, len(seqs) + 1))
            await one.socket.wait_closed()
            assert one.socket.close_code == 1000
            await eventually(lambda: not len(server.registry))

    run(scenario())


def test_flushes(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server) as one:
            await one.say("flush", id="empty")
            assert (await one.until("flushed"))["id"] == "empty"
            await one.audio(say(model, "the"))
            await one.say("flush", id=1)
            await one.say("flush", id=2)
            await one.audio(say(model, "a"))
            await one.say("end")
            await one.until("closed")
            assert [message["id"] for message in one.of("flushed")] == ["empty", 1, 2]
            kinds = [m["type"] for m in one.messages if m["type"] in ("words", "flushed")]
            assert kinds == ["flushed", "words", "flushed", "flushed", "words"]

    run(scenario())


def test_ready_says_what_holds_and_what_may_be(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model, idle_ms=7_000, session_ms=9_000) as server, session(server, delay_ms=480) as one:
            (ready,) = one.messages
            assert (ready["version"], ready["model"], ready["resumed"]) == (1, "scripted", False)
            assert ready["settings"]["delay_ms"] == 480
            assert ready["settings"]["chunk_ms"] == 80
            assert ready["settings"]["encoding"] == "pcm_f32le"
            limits = ready["limits"]
            assert (limits["idle_ms"], limits["session_ms"], limits["sessions"]) == (7_000, 9_000, 3)
            assert limits["delay_ms"] == [80, 160, 480]
            assert limits["chunk_ms"] == [80, 160, 320], "1600 ms is more than a server's sessions may have"
            assert ready["received_bytes"] == 0
            assert ready["features"] == {"phrases": True, "lm": False}

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"delay_ms": 240}, "bad_setting", "delay_ms=240"),
        ({"chunk_ms": 1_600}, "bad_setting", "chunk_ms is 1600; this server has up to 1280"),
        ({"lm_weight": 1.0}, "bad_setting", "there is no n-gram model"),
        ({"sample_rate": 0}, "bad_message", "sample_rate is 0"),
        ({"version": 3}, "bad_version", "speaks version 1"),
    ],
)
def test_a_start_that_cannot_be_is_refused_with_the_reason(
    model: Model, fields: dict[str, object], code: str, says: str
) -> None:
    async def scenario() -> None:
        async with serving(model) as server, client(server) as one:
            await one.say("start", **{"encoding": "pcm_f32le", "sample_rate": 16_000, **fields})
            error = await one.until("error")
            assert (error["code"], error["fatal"]) == (code, True)
            assert says in error["text"]
            await one.socket.wait_closed()
            assert (one.socket.close_code, one.socket.close_reason) == (1008, code)
            assert f'earlybird_refusals_total{{code="{code}"}} 1.0' in server.metrics.text().decode()

    run(scenario())


def test_what_comes_first_must_be_a_start(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model, start_ms=200) as server:
            for first in (b"\0\0", '{"type": "end"}', "hello", None):
                async with client(server) as one:
                    if first is not None:
                        await one.socket.send(first)
                    error = await one.until("error")
                    expected = {"hello": "bad_json", None: "start_timeout"}.get(first, "bad_sequence")  # type: ignore[call-overload]
                    assert (error["code"], error["fatal"]) == (expected, True)

    run(scenario())


def test_a_full_server_says_so_and_has_room_again_later(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model, max_sessions=1) as server, session(server) as first:
            async with client(server) as one:
                await one.say("start", encoding="pcm_f32le", sample_rate=16_000)
                error = await one.until("error")
                assert (error["code"], error["fatal"]) == ("overloaded", True)
                assert "all 1 sessions of this server are in use" in error["text"]
                await one.socket.wait_closed()
                assert one.socket.close_code == 1013
            await first.audio(say(model, "the"))
            await first.say("end")
            await first.until("closed")
            assert first.text == "the", "the refusal did it no harm"
            async with session(server) as next_one:
                assert next_one.messages[0]["type"] == "ready"

    run(scenario())


def test_messages_that_cannot_be_used_leave_the_session_as_it_was(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server) as one:
            await one.audio(say(model, "the"))
            for text in ("{", '{"type": "eof"}', '{"type": "start", "encoding": "mulaw", "sample_rate": 8000}'):
                await one.socket.send(text)
            await one.say("update", delay_ms=240)
            await one.say("ack", seq=1_000)
            await one.audio(say(model, "a", lead=1))
            await one.say("end")
            await one.until("closed")
            assert [(error["code"], error["fatal"]) for error in one.of("error")] == [
                ("bad_json", False),
                ("bad_message", False),
                ("bad_sequence", False),
                ("bad_setting", False),
                ("bad_message", False),
            ]
            assert one.text == "the a"

    run(scenario())


def test_too_many_bad_messages_end_it_after_its_words(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server) as one:
            await one.audio(say(model, "the"))
            for _ in range(100):
                await one.socket.send("?")
            closed = await one.until("closed")
            assert (closed["reason"], one.text) == ("error", "the")
            assert one.of("error")[-1]["code"] == "too_many_errors"

    run(scenario())


def test_what_comes_after_the_end_is_told(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server) as one:
            (mine,) = server.registry
            mine.ending = True  # as after an `end` whose words are still being decoded
            await one.socket.send(bytes(5_000))
            await one.say("flush")
            await one.say("keepalive")
            await one.say("ack", seq=0)
            for says in ("5000 bytes of audio came after the end", "flush came after the end"):
                error = await one.until("error")
                assert (error["code"], error["text"]) == ("bad_sequence", says)
            mine.ending = False
            await one.say("end")
            await one.until("closed")
            assert len(one.of("error")) == 2

    run(scenario())


def test_an_end_without_audio(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server) as one:
            await one.say("end")
            closed = await one.until("closed")
            assert (closed["audio_ms"], closed["delay_ms"]) == (0, {"audio": None, "wall": None})

    run(scenario())


def test_delay_and_phrases_change_mid_stream_and_are_answered(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server, delay_ms=480, phrases=["the"]) as one:
            assert [phrase["text"] for phrase in one.messages[0]["phrases"]] == ["the"]
            await one.audio(np.concatenate([say(model, "the"), codes(*[0] * 10)]))
            await one.say("update", delay_ms=80, phrases=["don't", {"text": "", "boost": 1}], boost=2)
            updated = await one.until("updated")
            assert (updated["delay_ms"], updated["boost"]) == (80, 2)
            assert [phrase["accepted"] for phrase in updated["phrases"]] == [True, False]
            assert updated["phrases"][1]["reason"]
            assert updated["audio_ms"] == (4 + 1 + 10) * 80
            await one.audio(np.concatenate([say(model, "the"), codes(*[0] * 10)]))
            await one.say("end")
            await one.until("closed")
            slow, quick = [word["delay_ms"]["audio"] for message in one.of("words") for word in message["words"]]
            assert slow - quick == 400

    run(scenario())


def test_without_timestamps_words_are_texts(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server, timestamps=False) as one:
            await one.audio(say(model, "the a"))
            await one.say("end")
            await one.until("closed")
            assert [word for message in one.of("words") for word in message["words"]] == [
                {"text": "the"},
                {"text": "a"},
            ]

    run(scenario())


@pytest.mark.parametrize("encoding", ["pcm_s16le", "pcm_f32le"])
def test_channels_are_chosen(model: Model, encoding: str) -> None:
    async def scenario() -> None:
        async with (
            serving(model) as server,
            session(server, encoding=encoding, channels=2, channel=1) as one,
        ):
            right = say(model, "the a")
            both = np.stack([np.zeros_like(right), right], axis=1)
            data = both.astype("<f4") if encoding == "pcm_f32le" else (both * 32768).round().astype("<i2")
            raw = data.tobytes()
            for at in range(0, len(raw), 1_001):  # never a whole frame
                await one.socket.send(raw[at : at + 1_001])
            await one.say("end")
            await one.until("closed")
            assert one.text == "the a"

    run(scenario())


@pytest.mark.parametrize("head", [b"RIFF\x24\x00\x00\x00WAVEfmt ", b"OggS\x00\x02" + bytes(20)])
def test_a_container_sent_as_pcm_is_told(model: Model, head: bytes) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server, encoding="pcm_s16le") as one:
            await one.socket.send(head)
            closed = await one.until("closed")
            (error,) = one.of("error")
            assert (error["code"], closed["reason"]) == ("bad_audio", "error")
            assert "begins like a" in error["text"]

    run(scenario())


def test_a_microphone_at_another_rate_than_it_said_is_told(model: Model) -> None:
    now_ms = 0.0

    async def scenario() -> None:
        nonlocal now_ms
        async with serving(model, clock=lambda: now_ms) as server, session(server, encoding="pcm_s16le") as one:
            (live,) = server.registry
            for second in range(1, 14):
                await one.socket.send(bytes(2 * 24_000))
                await eventually(lambda sent=second: live.received_bytes == sent * 2 * 24_000)
                now_ms += 1000
            while (warning := await one.until("warning"))["code"] != "sample_rate":
                pass  # the clock of this test runs ahead of the model: it may be told that it is behind
            assert "recorded at 24000 Hz" in warning["text"]
            await one.say("end")
            assert (await one.until("closed"))["audio_ms"] == 13 * 1500
            assert [told["code"] for told in one.of("warning")].count("sample_rate") == 1

    run(scenario())


def test_a_quiet_session_hears_that_the_server_lives_and_ends_when_it_is_idle(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.websocket.TICK_SECONDS", 0.05)
    monkeypatch.setattr("server.websocket.QUIET_BEAT_MS", 100)

    async def scenario() -> None:
        async with serving(model, idle_ms=600) as server, session(server) as one:
            for _ in range(8):
                await one.say("keepalive")
                await asyncio.sleep(0.1)
            assert len(server.registry) == 1, "a keepalive keeps"
            closed = await one.until("closed")
            assert closed["reason"] == "idle"
            assert len(one.of("heartbeat")) >= 3
            assert set(one.of("heartbeat")[0]) == {
                "type",
                "received_bytes",
                "received_messages",
                "received_ms",
                "processed_ms",
                "lag_ms",
                "real_time_factor",
            }

    run(scenario())


def test_a_session_of_limited_length_says_why_it_ends(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.websocket.TICK_SECONDS", 0.05)

    async def scenario() -> None:
        async with serving(model, session_ms=1_000) as server, session(server) as one:
            await one.audio(np.concatenate([say(model, "the a"), codes(*[0] * 10)]))
            closed = await one.until("closed")
            assert (closed["reason"], one.text) == ("length", "the a")

    run(scenario())


def test_a_server_that_stops_lets_sessions_say_their_last_words(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server:
            async with session(server) as one:
                await one.audio(say(model, "the don't"))
                (mine,) = server.registry
                await eventually(lambda: mine.received_bytes == len(pcm(say(model, "the don't"))))
                stopping = asyncio.create_task(server.stop())
                closed = await one.until("closed")
                assert (closed["reason"], one.text) == ("shutdown", "the don't")
                await stopping
            assert not server.worker.alive

    run(scenario())
