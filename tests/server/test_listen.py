import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.errors import AudioFormatError
from asr.model import Model
from server import listen as module
from server.client import ConnectionLost, Message, StreamClient
from server.listen import TerminalView, closing_line, file_pieces, json_line, listen, to_pcm
from tests.scripted import codes, say, scripted_model
from tests.server.live_server import eventually, run, serving, url

START = {"encoding": "pcm_s16le", "sample_rate": 16_000}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


async def pieces_of(samples: np.ndarray, size: int = 1_600) -> AsyncIterator[bytes]:
    for at in range(0, len(samples), size):
        yield to_pcm(samples[at : at + size])


def text_of(messages: list[Message]) -> str:
    return "".join(message["text"] for message in messages if message["type"] == "words")


def test_audio_goes_out_and_captions_come_in(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server:
            shown: list[Message] = []
            client = StreamClient(url(server), START)
            last = await listen(client, pieces_of(say(model, "the don't a")), shown.append, stop=asyncio.Event())
            assert (last["type"], last["reason"], text_of(shown)) == ("closed", "end", "the don't a")
            assert client.breaks == 0

    run(scenario())


def test_breaks_do_not_show_in_the_text(model: Model) -> None:
    samples = np.concatenate([say(model, "the don't a the a don't the"), codes(0, 0, 0)])

    async def scenario() -> None:
        async with serving(model) as server:
            shown: list[Message] = []
            client = StreamClient(url(server), START)

            async def torn() -> AsyncIterator[bytes]:
                number = 0
                async for piece in pieces_of(samples):
                    yield piece
                    number += 1
                    if number % 8 == 0:
                        await eventually(lambda: bool(server._connections))
                        for connection in list(server._connections.values()):
                            connection._socket.transport.abort()
                        await asyncio.sleep(0.02)

            await listen(client, torn(), shown.append, stop=asyncio.Event())
            assert text_of(shown) == "the don't a the a don't the"
            assert client.breaks >= 2
            seqs = [message["seq"] for message in shown if "seq" in message]
            assert seqs == list(range(1, len(seqs) + 1))

    run(scenario())


def test_flushes_and_updates_keep_their_place(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server:
            client = StreamClient(url(server), START)
            got: list[Message] = []
            await client.audio(to_pcm(say(model, "the")))
            client.flush(id=1)
            client.update(delay_ms=480)
            await client.audio(to_pcm(say(model, "a")))
            client.end()
            async for message in client.messages():
                got.append(message)
            kinds = [m["type"] for m in got if m["type"] in ("words", "flushed", "updated", "closed")]
            assert kinds == ["words", "flushed", "updated", "words", "closed"]

    run(scenario())


def test_a_session_is_stopped_after_its_words(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model) as server:
            stop = asyncio.Event()
            shown: list[Message] = []

            async def forever() -> AsyncIterator[bytes]:
                yield to_pcm(say(model, "the a"))
                while True:
                    yield to_pcm(codes(0))
                    await asyncio.sleep(0.01)
                    if text_of(shown) == "the a":
                        stop.set()

            last = await listen(StreamClient(url(server), START), forever(), shown.append, stop=stop)
            assert last["reason"] == "end"

    run(scenario())


def test_without_a_server_the_error_says_where_it_was_sought() -> None:
    client = StreamClient("ws://127.0.0.1:9/v1/stream", START)
    with pytest.raises(ConnectionLost, match=r"ws://127.0.0.1:9/v1/stream: "):
        run(listen(client, pieces_of(codes(0)), lambda message: None, stop=asyncio.Event()))  # type: ignore[arg-type]


def test_a_refusal_is_the_last_message(model: Model) -> None:
    async def scenario() -> None:
        async with serving(model, tokens=("0123456789abcdef",)) as server:
            shown: list[Message] = []
            for token, kind in (("wrong-token-for-it", "error"), ("0123456789abcdef", "closed")):
                client = StreamClient(url(server), START, token=token)
                last = await listen(client, pieces_of(codes(0)), shown.append, stop=asyncio.Event())
                assert last["type"] == kind
            assert shown[0]["code"] == "unauthorized"

    run(scenario())


def test_a_file_is_played_out_in_real_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.linspace(-0.5, 0.5, 24_050, dtype=np.float32)
    soundfile.write(tmp_path / "a.wav", samples, 16_000, subtype="FLOAT")
    now, slept = [100.0], []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(module.asyncio, "sleep", sleep)  # type: ignore[attr-defined]

    async def scenario() -> list[bytes]:
        return [piece async for piece in file_pieces(tmp_path / "a.wav", "mix", clock=lambda: now[0])]

    pieces = asyncio.run(scenario())
    assert b"".join(pieces) == to_pcm(samples)
    assert [len(piece) for piece in pieces] == [3_200] * 15 + [100]
    assert slept == pytest.approx([0.1] * 15)


def test_a_file_that_is_none(tmp_path: Path, model: Model) -> None:
    (tmp_path / "a.txt").write_text("no audio at all")

    async def scenario() -> None:
        async with serving(model) as server:
            pieces = file_pieces(tmp_path / "a.txt", "mix", clock=lambda: 0.0)
            await listen(StreamClient(url(server), START), pieces, lambda message: None, stop=asyncio.Event())

    with pytest.raises(AudioFormatError):
        run(scenario())


def message(kind: str, text: str = "", **fields: object) -> Message:
    return {"type": kind, "text": text, **fields}


SAID = [
    message("tail", "the do"),
    message("words", " the"),
    message("tail", "do"),
    message("words", " don't"),
    message("tail"),
    message("segment", "the don't"),
    message("words", ". a", amended={"index": 1, "text": "don't."}),
    message("words", ",", amended={"index": 2, "text": "a,"}),
    message("warning", "clipped"),
]


def test_a_terminal_shows_text_once_and_the_tail_dim() -> None:
    out, err = io.StringIO(), io.StringIO()
    view = TerminalView(out, err, plain=False)
    for one in SAID:
        view.show(one)
    screen = out.getvalue()
    assert "\x1b[2m the do\x1b[0m" in screen
    tails = screen.replace("\x1b[2m the do\x1b[0m", "").replace("\x1b[2m do\x1b[0m", "")
    for code in ("\x1b[2m", "\x1b[0m", "\x1b[K", "\x1b7", "\x1b8"):
        tails = tails.replace(code, "")
    assert tails == "the don't.\na,"
    assert err.getvalue() == "warning: clipped\n"


def test_a_pipe_gets_the_text_alone() -> None:
    out = io.StringIO()
    view = TerminalView(out, io.StringIO(), plain=True)
    for one in SAID:
        view.show(one)
    assert out.getvalue() == "the don't.\na,"


def test_the_last_line_has_the_delays() -> None:
    wall = {"words": 12, "p50": 560, "p90": 900, "p95": 1_010, "max": 1_500}
    line = closing_line({"reason": "end", "audio_ms": 4_000, "delay_ms": {"wall": wall, "audio": None}})
    assert line == (
        "end: 4.0 s of audio, 12 words, delay from a word's end to its commitment: median 0.56 s, 95 % within 1.01 s"
    )
    assert json.loads(json_line(message("words", "é"))) == message("words", "é")
