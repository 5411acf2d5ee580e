"""A connection breaks, a session does not: nothing is lost, nothing doubled, and the clock goes on."""

import asyncio
import json
import random

import numpy as np
import pytest

from asr.errors import ProtocolError
from asr.model import Model
from asr.words import DecodeStats
from server.live import Registry
from server.messages import Start
from server.websocket import CaptionServer
from streaming.batcher import Said
from streaming.events import Closed, Heartbeat, Segment, Tail
from tests.scripted import codes, say, scripted_model
from tests.server.live_server import Client, client, eventually, pcm, run, serving, session
from tests.server.test_faults import reset, slots_used

TEXT = "the don't a the a don't the"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


async def resume(one: Client, token: str, seq: int, **fields: object) -> dict[str, object]:
    await one.say(
        "start", **{"encoding": "pcm_f32le", "sample_rate": 16_000, "resume": {"token": token, "seq": seq}, **fields}
    )
    return await one.receive()


@pytest.mark.parametrize("seed", range(6))
def test_whenever_a_connection_breaks_the_words_are_those_of_an_unbroken_one(model: Model, seed: int) -> None:
    rng = random.Random(seed)
    data = pcm(np.concatenate([say(model, TEXT), codes(*[0] * 6)]))

    async def scenario() -> None:
        async with serving(model) as server:
            async with session(server) as whole:
                await whole.socket.send(data)
                await whole.say("end")
                await whole.until("closed")
            got: list[dict[str, object]] = []
            token, seq, received, known = "", 0, 0, 0
            while received < len(data):
                async with client(server) as one:
                    if token:
                        ready = await resume(one, token, seq)
                    else:
                        await one.say("start", encoding="pcm_f32le", sample_rate=16_000)
                        ready = await one.receive()
                    assert ready["type"] == "ready"
                    token, at = ready["resume"]["token"], ready["received_bytes"]  # type: ignore[index]
                    assert at >= known, "what was received stays received"
                    known = at
                    for _ in range(rng.randint(1, 6)):
                        size = rng.randint(1, 20_000)  # in the middle of a word, a step, a sample
                        await one.socket.send(data[at : at + size])
                        at = min(len(data), at + size)
                    received = at
                    await asyncio.sleep(rng.random() * 0.05)
                    if rng.random() < 0.7:
                        with_timeout = rng.random() * 0.05
                        seq = await read_for(one, with_timeout, seq, got)
                    reset(one)
            async with client(server) as last:
                ready = await resume(last, token, seq)
                await last.socket.send(data[ready["received_bytes"] :])  # type: ignore[misc]
                await last.say("end")
                await last.until("closed")
                got += [m for m in last.messages if m.get("seq", 0) > seq]
        assert words(got) == words(whole.messages)
        assert [message["seq"] for message in got] == list(range(1, len(got) + 1))

    run(scenario())


async def read_for(one: Client, seconds: float, seq: int, got: list[dict[str, object]]) -> int:
    """Reads for a while what may come, and keeps what is new."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = json.loads(await one.socket.recv())
                if message.get("seq", 0) > seq:
                    got.append(message)
                    seq = message["seq"]
    except TimeoutError:
        return seq


def words(messages: list[dict[str, object]]) -> list[object]:
    """All that is said of the words but how long it took."""
    found = []
    for message in messages:
        if message["type"] == "words":
            for word in message["words"]:  # type: ignore[attr-defined]
                found.append({**word, "delay_ms": word["delay_ms"]["audio"]})
    return found


def test_a_break_is_bridged_while_its_session_is_kept(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.websocket.TICK_SECONDS", 0.02)

    async def scenario() -> None:
        async with serving(model, resume_ms=300) as server:
            token = await broken(server, model)
            assert slots_used(server) == 1
            async with client(server) as one:
                ready = await resume(one, token, 0)
                assert (ready["resumed"], ready["received_bytes"]) == (True, len(pcm(say(model, "the"))))
                reset(one)
            await eventually(lambda: slots_used(server) == 0)
            async with client(server) as late:
                error = await resume(late, token, 0)
                assert (error["code"], error["fatal"]) == ("resume_unknown", True)
                assert "kept for 0.3 s" in str(error["text"])

    run(scenario())


async def broken(server: CaptionServer, model: Model) -> str:
    """A session whose client fell off after a word; its token."""
    before = {live.key for live in server.registry}
    async with session(server) as one:
        await one.audio(say(model, "the"))
        token: str = one.messages[0]["resume"]["token"]
        (mine,) = [live for live in server.registry if live.key not in before]
        await eventually(lambda: mine.received_bytes == len(pcm(say(model, "the"))))
        reset(one)
    await eventually(lambda: mine.connection is None)
    return token


def test_a_session_without_a_client_gives_way_to_a_client(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model, max_sessions=2) as server:
            first, second = await broken(server, model), await broken(server, model)
            async with session(server), client(server) as one:
                error = await resume(one, first, 0)
                assert error["code"] == "resume_unknown", "the one that had been away longest went"
                async with client(server) as other:
                    assert (await resume(other, second, 0))["type"] == "ready"

    run(scenario())


def test_whoever_leaves_on_purpose_is_not_waited_for(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server:
            for code in (1000, 1001):
                async with session(server) as one:
                    await one.audio(say(model, "the"))
                    await one.socket.close(code)
                await eventually(lambda: slots_used(server) == 0)
                assert len(server.registry) == 0

    run(scenario())


def test_a_second_connection_takes_a_session_over(model: Model) -> None:
    """The client came back before the server knew that it had been away."""

    async def scenario() -> None:
        async with serving(model) as server, session(server) as old:
            await old.audio(say(model, "the"))
            async with client(server) as new:
                token = old.messages[0]["resume"]["token"]
                ready = await resume(new, token, 0)
                await new.socket.send(pcm(say(model, "the a"))[ready["received_bytes"] :])  # type: ignore[misc]
                await new.say("end")
                await new.until("closed")
                assert new.text == "the a"
            await old.socket.wait_closed()
            assert slots_used(server) == 0

    run(scenario())


def test_a_goodbye_that_did_not_arrive_is_said_again(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server:
            async with session(server) as one:
                token = one.messages[0]["resume"]["token"]
                await one.audio(say(model, "the"))
                await one.say("end")
                (mine,) = server.registry
                await eventually(lambda: mine.ending)
                reset(one)
            await eventually(lambda: mine.closed or server.registry.get(mine.key) is None)
            if server.registry.get(mine.key) is None:
                pytest.skip("it arrived after all")
            async with client(server) as back:
                await resume(back, token, 0)
                back.messages.clear()
                await back.until("closed")
                assert back.text == "the"

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "seq", "code"),
    [
        ({"sample_rate": 8_000}, 0, "resume_differs"),
        ({"encoding": "mulaw"}, 0, "resume_differs"),
        ({}, 999, "bad_message"),
    ],
)
def test_what_cannot_be_gone_on_with(model: Model, fields: dict[str, object], seq: int, code: str) -> None:
    async def scenario() -> None:
        async with serving(model) as server:
            token = await broken(server, model)
            async with client(server) as one:
                error = await resume(one, token, seq, **fields)
                assert (error["code"], error["fatal"]) == (code, True)
            async with client(server) as one:
                assert (await resume(one, token, 0))["type"] == "ready", "the session is still there"

    run(scenario())


# -- the registry, without a socket --------------------------------------------------------------------------------

START = Start(encoding="pcm_s16le", sample_rate=16_000)


def test_tokens_are_long_and_all_different() -> None:
    registry = Registry(resume_ms=1_000)
    tokens = {registry.add(registry.new_key(), START, settings={}, phrases=[], now_ms=0).token for _ in range(100)}
    assert len(tokens) == 100
    assert min(len(token) for token in tokens) >= 32


def test_sessions_expire_by_the_time_their_client_has_been_away() -> None:
    registry = Registry(resume_ms=1_000)
    first, second = (registry.add(key, START, settings={}, phrases=[], now_ms=at) for key, at in (("a", 0), ("b", 500)))
    assert registry.expired(999) == []
    assert registry.expired(1_000) == [first]
    first.away_ms = None
    assert registry.expired(1_499) == []
    assert registry.away() == [second]
    registry.remove("a")
    registry.remove("a")
    assert [one.key for one in registry] == ["b"]
    with pytest.raises(ProtocolError, match="no such session"):
        registry.find(first.token, START)


def test_heartbeats_are_rare_and_count_what_waits_undecoded() -> None:
    live = Registry(resume_ms=1).add("a", START, settings={}, phrases=[], now_ms=0)
    live.received_bytes, live.inbox_bytes = 96_000, 32_000  # 3 s, of which 1 s has not been looked at
    for now_ms in (0, 100, 999, 1_000):
        live.note(Said(event=Heartbeat(received_ms=2_000, processed_ms=1_760)), now_ms, real_time_factor=0.5)
        text = live.outbox.take()
        assert (text is None) == (now_ms in (100, 999))
    beat = json.loads(text or "")
    assert (beat["received_ms"], beat["processed_ms"], beat["lag_ms"]) == (3_000, 1_760, 1_240)


def test_being_behind_is_told_once_until_it_has_caught_up() -> None:
    live = Registry(resume_ms=1).add("a", START, settings={}, phrases=[], now_ms=0)
    for factor in (1.2, 1.3, 0.9, 1.1, 0.5, 1.2):
        live.note(Said(event=Heartbeat(received_ms=1, processed_ms=1)), 0, real_time_factor=factor)
    warnings = [json.loads(text) for text in iter(live.outbox.take, None) if '"warning"' in text]
    assert [warning["code"] for warning in warnings] == ["behind", "behind"]
    assert "steps take 1.20 of the time of their audio" in warnings[0]["text"]


def test_a_session_ends_with_its_warnings_an_empty_tail_and_its_delays() -> None:
    live = Registry(resume_ms=1).add("a", START, settings={}, phrases=[], now_ms=0)
    live.note(Said(event=Tail(text="unsure")), 0)
    live.note(Said(event=Segment(text="a b", first=0, count=2, start_ms=0, end_ms=9, reason="pause")), 0)
    live.note(Said(event=Closed(audio_ms=10, stats=DecodeStats(steps=3), warnings=("clipped",)), reason="end"), 0)
    messages = [json.loads(text) for text in iter(live.outbox.take, None)]
    assert [message["type"] for message in messages] == ["segment", "warning", "closed", "tail"]
    assert (messages[2]["stats"]["steps"], messages[2]["reason"], messages[3]["text"]) == (3, "end", "")
    assert live.closed


def test_last_words_that_broke_off_on_their_way_are_fetched_again(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server:
            async with session(server) as torn:
                token = torn.messages[0]["resume"]["token"]
                (live,) = server.registry
                torn.socket.transport.pause_reading()
                await torn.audio(say(model, TEXT))
                await torn.say("end")
                await eventually(lambda: live.closed and server._connections["s1"].told_all)
                reset(torn)
            await eventually(lambda: live.connection is None)
            async with client(server) as again:
                assert (await resume(again, token, 0))["type"] == "ready"
                closed = await again.until("closed")
                assert again.text == TEXT
                assert closed["reason"] == "end"
            await eventually(lambda: not list(server.registry))
            await eventually(lambda: slots_used(server) == 0)

    run(scenario())
