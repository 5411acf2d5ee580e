"""The client of WhisperLive, with a server that sends what one of them sends."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from websockets.asyncio.server import ServerConnection, serve

from server.load import main
from server.load_clips import Heard, LoadClip, SpokenWord
from server.whisperlive import Segments, stream_clip

SPOKEN = (SpokenWord(text="the", end_ms=100), SpokenWord(text="cat", end_ms=200), SpokenWord(text="sat", end_ms=300))


def segment(start: float, text: str, *, completed: bool = False) -> dict[str, Any]:
    return {"start": f"{start:.3f}", "end": f"{start + 1:.3f}", "text": text, "completed": completed}


@pytest.fixture
def clip(tmp_path: Path) -> LoadClip:
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 16_000)  # five pieces of 100 ms
    return LoadClip(path=tmp_path / "a.wav", text="the cat sat", words=SPOKEN)


class Peer:
    """Answers the n-th piece of audio with the n-th list of segments; keeps what it was sent."""

    def __init__(self, *answers: list[dict[str, Any]], first: dict[str, Any] | None = None) -> None:
        self.answers, self.first = answers, first or {"message": "SERVER_READY", "backend": "faster_whisper"}
        self.options: dict[str, Any] = {}
        self.samples = 0
        self.ended = False

    async def __call__(self, socket: ServerConnection) -> None:
        self.options = json.loads(await socket.recv())
        await socket.send(json.dumps({"uid": self.options["uid"], **self.first}))
        pieces = 0
        async for data in socket:
            assert isinstance(data, bytes)
            if data == b"END_OF_AUDIO":
                self.ended = True
                return
            self.samples += len(data) // 2
            if pieces < len(self.answers):
                await socket.send(json.dumps({"uid": self.options["uid"], "segments": self.answers[pieces]}))
            pieces += 1

    def hear(self, clip: LoadClip) -> Heard:
        async def run() -> Heard:
            async with serve(self, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                return await stream_clip(f"ws://127.0.0.1:{port}", clip, quiet_seconds=0.5)

        return asyncio.run(run())


def test_a_word_counts_from_when_it_stays(clip: LoadClip) -> None:
    peer = Peer(
        [segment(0, " The")],
        [segment(0, " A cat")],
        [segment(0, " The cat", completed=True), segment(1, " sad")],
        [segment(0, " The cat", completed=True), segment(1, " sat.")],
        [segment(0, " The cat", completed=True), segment(1, " sat.")],  # nothing new
    )
    heard = peer.hear(clip)
    assert (heard.text, heard.refused) == ("The cat sat.", None)
    the, cat, sat = [word.emitted_ms for word in heard.words]
    # Pieces are sent at 100, 200, … ms; "The" is there at first, gone with the second and back with the third.
    assert 200 <= cat <= the <= sat
    assert the >= 300
    assert sat >= 400
    assert heard.delays_ms == [the - 100, cat - 200, sat - 300]
    assert (peer.samples, peer.ended) == (8000, True)
    assert (peer.options["audio_format"], peer.options["language"]) == ("int16", "en")


def test_complete_segments_stay_when_the_server_sends_them_no_more() -> None:
    segments = Segments()
    assert segments.take([segment(0, " one", completed=True), segment(2, " too")]) == ["one", "too"]
    assert segments.take([segment(2, " two", completed=True), segment(4, " three")]) == ["one", "two", "three"]
    assert segments.take([segment(2, " two", completed=True)]) == ["one", "two"]


@pytest.mark.parametrize(("status", "refused"), [("WAIT", "wait"), ("ERROR", "error")])
def test_a_full_server_refuses(clip: LoadClip, status: str, refused: str) -> None:
    heard = Peer(first={"status": status, "message": 1.5}).hear(clip)
    assert (heard.refused, heard.text, heard.words) == (refused, "", [])


def test_nothing_heard_is_no_words(clip: LoadClip) -> None:
    heard = Peer().hear(clip)
    assert (heard.text, heard.words, heard.refused) == ("", [], None)


def test_no_server_and_one_that_goes_are_refusals(clip: LoadClip) -> None:
    assert asyncio.run(stream_clip("ws://127.0.0.1:9", clip)).refused

    class Leaving(Peer):
        async def __call__(self, socket: ServerConnection) -> None:
            await socket.recv()
            await socket.close()

    assert Leaving().hear(clip).refused


def test_the_load_command_speaks_to_it(
    clip: LoadClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []

    async def spoken(url: str, clip: LoadClip) -> Heard:
        asked.append((url, clip.path.name))
        return Heard(clip, text="the cat sat")

    monkeypatch.setattr("server.whisperlive.stream_clip", spoken)
    (tmp_path / "clips.jsonl").write_text(json.dumps({"audio": "a.wav", "text": clip.text}))
    words = [{"text": word.text, "end_ms": word.end_ms} for word in SPOKEN]
    (tmp_path / "aligned.jsonl").write_text(json.dumps({"audio": "a.wav", "words": words}))
    files = ["--clips", str(tmp_path / "clips.jsonl"), "--alignments", str(tmp_path / "aligned.jsonl")]
    flags = [*files, "--peer", "whisperlive", "--url", "ws://peer:9090", "--sessions", "1", "2"]
    assert main([*flags, "--out", str(tmp_path / "r.json")]) == 0
    assert asked == [("ws://peer:9090", "a.wav")] * 3
    told = json.loads((tmp_path / "r.json").read_text())
    assert (told["peer"], [one["wer"] for one in told["runs"]]) == ("whisperlive", [0.0, 0.0])
    assert capsys.readouterr().out.split()[0] == "sessions"
