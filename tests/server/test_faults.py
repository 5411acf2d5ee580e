"""What goes wrong on a network and in a machine, and whom it may not touch."""

import asyncio
import contextlib
import random
import socket as sockets
import struct
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asr.model import Model
from asr.resample import Samples
from server.websocket import CaptionServer
from tests.scripted import codes, say, scripted_model
from tests.server.live_server import Client, client, eventually, pcm, run, serving, session


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


def slots_used(server: CaptionServer) -> int:
    return server.settings.max_sessions - server.worker._engine.free


def reset(one: Client) -> None:
    """Closes a connection so that the other side gets a TCP reset."""
    raw = one.socket.transport.get_extra_info("socket")
    if raw.fileno() >= 0:
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    one.socket.transport.abort()


HALF_A_FRAME = b"\x82\xfe\xff\xff\x01\x02\x03\x04" + bytes(100)
"""The beginning of a masked binary frame of 65535 bytes."""


def test_a_thousand_abrupt_ends_leave_no_slot_in_use(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.websocket.TICK_SECONDS", 0.02)
    rng = random.Random(0)

    async def leave(server: CaptionServer, how: int) -> None:
        async with client(server) as one:
            if how == 0:
                reset(one)  # before it said anything
                return
            await one.say("start", encoding="pcm_f32le", sample_rate=16_000)
            if how == 1:
                reset(one)  # while its session is being opened
                return
            message = await one.receive()
            if message["type"] != "ready":
                return
            await one.socket.send(pcm(say(model, "the"))[: rng.randint(1, 9_000)])
            if how == 2:
                one.socket.transport.write(HALF_A_FRAME)
            if how == 3:
                await one.say("end")
            if how == 4:
                await one.socket.close(1011, "the client fell over")
            reset(one)

    async def scenario() -> None:
        async with serving(model, resume_ms=50, max_sessions=8) as server:
            for _ in range(100):
                await asyncio.gather(*(leave(server, rng.randrange(5)) for _ in range(10)), return_exceptions=True)
            await eventually(lambda: slots_used(server) == 0 and len(server.registry) == 0)
            assert server._connections == {}
            await eventually(lambda: server._open_sockets == 0)
            async with session(server) as one:
                await one.audio(say(model, "the a"))
                await one.say("end")
                await one.until("closed")
                assert one.text == "the a"

    run(scenario(), seconds=120)


def test_a_client_that_went_without_a_word_is_noticed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-open: the connection stands, nobody is there."""
    monkeypatch.setattr("server.websocket.TICK_SECONDS", 0.02)

    async def scenario() -> None:
        async with serving(model, quiet_ms=300, resume_ms=100) as server, session(server) as one:
            one.socket.transport.pause_reading()  # and so no pong goes back
            await eventually(lambda: slots_used(server) == 0)
            reset(one)

    run(scenario())


def test_a_client_that_reads_nothing_costs_no_memory_and_nobody_else(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.websocket.TICK_SECONDS", 0.02)
    monkeypatch.setattr("server.outbox.FULL_BYTES", 4_000)

    async def scenario() -> None:
        async with (
            serving(model, stall_ms=1_000, inbox_bytes=100_000, resume_ms=100) as server,
            session(server, receive_bytes=4_096) as deaf,
            session(server) as other,
        ):
            (mine,) = [live for live in server.registry if live.outbox.seq == 0 and live.key == "s1"]
            kernel = server._connections["s1"]._socket.transport.get_extra_info("socket")
            kernel.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, 4_096)
            deaf.socket.transport.pause_reading()
            words = pcm(say(model, "the a the a the a the a", lead=0, gap=1))
            sending = asyncio.create_task(send_on(deaf, words))
            await eventually(lambda: mine.held)
            await other.audio(say(model, "the don't"))
            await other.say("end")
            await other.until("closed")
            assert other.text == "the don't"
            assert mine.outbox.unsent_bytes < 8_000
            assert mine.inbox_bytes < 100_000 + len(words)
            await eventually(lambda: server.registry.get("s1") is None)
            sending.cancel()
            reset(deaf)
            await eventually(lambda: slots_used(server) == 0)  # the worker hears of it a moment later

    run(scenario())


async def send_on(one: Client, data: bytes) -> None:
    with contextlib.suppress(Exception):
        while True:
            await one.socket.send(data)


@pytest.mark.parametrize("minutes", [3, pytest.param(60, marks=pytest.mark.nightly)])
def test_hours_at_once_are_paced_and_nothing_of_them_is_lost(model: Model, minutes: int) -> None:
    chunk = codes(*[0] * 4)
    said = say(model, "the don't a", lead=0)
    minute = np.concatenate([said, *[chunk] * ((60 * 16_000 - len(said)) // len(chunk))])

    async def scenario() -> None:
        async with serving(model, chunk_ms=320, inbox_bytes=300_000) as server:
            async with session(server, encoding="pcm_s16le") as blast, session(server) as live:
                (mine,) = [one for one in server.registry if one.key == "s1"]
                data = (minute * 32768).round().astype("<i2").tobytes()
                most = 0

                async def send() -> None:
                    nonlocal most
                    for _ in range(minutes):
                        for at in range(0, len(data), 200_000):
                            await blast.socket.send(data[at : at + 200_000])
                            most = max(most, mine.inbox_bytes)
                    await blast.say("end")

                sending = asyncio.create_task(send())
                await live.audio(say(model, "a the a"))
                await live.say("end")
                await live.until("closed")
                assert live.text == "a the a"
                closed = await blast.until("closed")
                await sending
            assert closed["audio_ms"] == minutes * len(minute) // 16
            assert blast.text.split() == ["the", "don't", "a"] * minutes
            assert most <= 300_000 + 200_000

    run(scenario(), seconds=600)


def test_a_step_that_fails_ends_the_session_that_made_it_fail(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server) as bad, session(server) as good:
            step = server.worker._engine.step

            def breaks(blocks: dict[int, Samples]) -> object:
                if any(float(np.abs(block).max()) > 2 for block in blocks.values()):
                    raise RuntimeError("CUDA error: /secret/path")
                return step(blocks)

            monkeypatch.setattr(server.worker._engine, "step", breaks)
            await good.audio(say(model, "the"))
            await bad.audio(np.full(1280, 3.0, np.float32))
            closed = await bad.until("closed")
            (error,) = bad.of("error")
            assert (closed["reason"], error["code"]) == ("error", "internal")
            assert "secret" not in error["text"]
            await good.audio(say(model, "a", lead=1))
            await good.say("end")
            await good.until("closed")
            assert good.text == "the a"
            assert slots_used(server) == 0

    run(scenario())


def test_a_message_above_the_limit_is_told_with_the_limit(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model, message_bytes=10_000) as server:
            async with session(server) as one:
                await one.audio(say(model, "the"))
                await one.socket.send(bytes(10_001))
                closed = await one.until("closed")
                (error,) = one.of("error")
                assert (error["code"], closed["reason"], one.text) == ("too_large", "error", "the")
                assert "10001 bytes; at most 10000" in error["text"]
            async with session(server) as one:
                await one.socket.send(" " * 10_001)
                assert (await one.until("error"))["code"] == "too_large"
            async with session(server) as one:
                await one.socket.send(bytes(50_000))
                await one.socket.wait_closed()
                assert one.socket.close_code == 1009
                assert "40000" in (one.socket.close_reason or "")

    run(scenario())


def test_two_minutes_of_nothing_then_speech(model: Model) -> None:
    async def scenario() -> None:
        now = [0.0]
        async with serving(model, clock=lambda: now[0], idle_ms=300_000) as server, session(server) as one:
            await one.audio(say(model, "the"))
            await one.say("flush")
            await one.until("flushed")
            now[0] += 120_000
            await asyncio.sleep(0.1)
            await one.audio(say(model, "don't a"))
            await one.say("end")
            closed = await one.until("closed")
            assert (closed["reason"], one.text) == ("end", "the don't a")

    run(scenario())


def test_a_storm_of_flushes_is_answered_one_by_one(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model, inbox_items=20) as server, session(server) as storm, session(server) as calm:

            async def rage() -> None:
                for number in range(60):
                    await storm.socket.send(pcm(codes(0)))
                    await storm.say("flush", id=number)
                await storm.say("end")

            raging = asyncio.create_task(rage())
            await calm.audio(say(model, "the a"))
            await calm.say("end")
            await calm.until("closed")
            assert calm.text == "the a"
            await storm.until("closed")
            await raging
            assert [flushed["id"] for flushed in storm.of("flushed")] == list(range(60))

    run(scenario())


def test_the_loop_answers_while_the_model_works(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that takes long holds nobody's ping, health check or new connection."""

    async def scenario() -> None:
        async with serving(model) as server, session(server) as one:
            step, release = server.worker._engine.step, threading.Event()

            def slow(blocks: dict[int, Samples]) -> object:
                release.wait(20)
                return step(blocks)

            monkeypatch.setattr(server.worker._engine, "step", slow)
            await one.audio(say(model, "the"))
            await asyncio.sleep(0.05)
            await (await one.socket.ping())
            async with client(server) as other:
                await (await other.socket.ping())
            release.set()
            await one.say("end")
            await one.until("closed")
            assert one.text == "the"

    run(scenario())


def test_when_the_worker_fails_the_server_says_so(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(model) as server, session(server):
            assert server._unready() is None

            def fails(*args: object) -> None:
                raise RuntimeError("a bug outside any step")

            monkeypatch.setattr(server.worker._batcher, "collect", fails)
            server.worker.call(lambda batcher: None)
            await asyncio.wait_for(server.failed.wait(), 5)
            await eventually(lambda: not server.worker.alive)
            assert server._unready() == "the recogniser's thread has ended"

    run(scenario())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    encoding=st.sampled_from(["pcm_s16le", "pcm_f32le", "mulaw", "alaw", "ogg-opus"]),
    frames=st.lists(st.binary(max_size=400) | st.text(max_size=40), max_size=8),
)
def test_bytes_of_any_kind_are_answered_with_a_typed_error(
    model: Model, encoding: str, frames: list[bytes | str]
) -> None:
    async def scenario() -> None:
        async with serving(model) as server:
            rate = 48_000 if encoding == "ogg-opus" else 8_000
            async with session(server, encoding=encoding, sample_rate=rate) as one:
                for frame in frames:
                    await one.socket.send(frame)
                await one.say("end")
                closed = await one.until("closed")
                codes_told = {error["code"] for error in one.of("error")}
                assert codes_told <= {"bad_json", "bad_message", "bad_audio", "bad_sequence"}
                assert closed["reason"] == ("error" if "bad_audio" in codes_told else "end")
            await eventually(lambda: slots_used(server) == 0)

    run(scenario())
