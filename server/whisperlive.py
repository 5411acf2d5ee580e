"""A client of WhisperLive, the public live server around faster-whisper, for load trials beside ours.

Its server re-transcribes what has come since the last complete segment and sends its newest segments again and again;
a word counts from when it no longer changes (`asr.metrics.commitments`). It has no flush: like its own client, this one
waits after the audio until nothing has come for 15 s. To start one (`pip install whisper-live faster-whisper`):

    OMP_NUM_THREADS=2 python -c "from whisper_live.server import TranscriptionServer as S; S().run('127.0.0.1', 9090,
    backend='faster_whisper', faster_whisper_custom_model_path='WHISPER-FOLDER', single_model=True, max_clients=16)"
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from asr.metrics import commitments
from server.listen import file_pieces
from server.load_clips import ArrivedWord, Heard, LoadClip

__all__ = ["QUIET_SECONDS", "Segments", "stream_clip"]

QUIET_SECONDS = 15.0
"""Its own client's patience."""
OPTIONS = {
    "language": "en",
    "task": "transcribe",
    "model": "tiny.en",  # the server's own folder goes first
    "use_vad": True,
    "send_last_n_segments": 10,
    "no_speech_thresh": 0.45,
    "clip_audio": False,
    "same_output_threshold": 10,
    "audio_format": "int16",
}
"""As its own client sends them, but for the format of the audio."""


@dataclass
class Segments:
    """The text so far: complete segments by their start, and the one under way."""

    complete: dict[float, str] = field(default_factory=dict)
    under_way: str = ""

    def take(self, segments: list[Mapping[str, Any]]) -> list[str]:
        """All words after a message with the newest segments."""
        self.under_way = ""
        for segment in segments:
            if segment["completed"]:
                self.complete[float(segment["start"])] = segment["text"]
            else:
                self.under_way = segment["text"]
        return " ".join([*(self.complete[start] for start in sorted(self.complete)), self.under_way]).split()


async def stream_clip(url: str, clip: LoadClip, *, quiet_seconds: float = QUIET_SECONDS) -> Heard:
    """One client, one clip, in real time.

    Args:
        url: such as ws://127.0.0.1:9090.
        clip: what to say.
        quiet_seconds: how long nothing must have come after the audio.
    """
    heard = Heard(clip)
    try:
        async with connect(url, compression=None, max_size=None, ping_interval=None) as socket:
            await socket.send(json.dumps({"uid": str(uuid.uuid4()), **OPTIONS}))
            while (message := json.loads(await socket.recv())).get("message") != "SERVER_READY":
                if message.get("status") in ("WAIT", "ERROR"):
                    heard.refused = message["status"].lower()
                    return heard
            partials = await _speak(socket, clip, quiet_seconds)
            await socket.send(b"END_OF_AUDIO")
    except (OSError, ConnectionClosed, InvalidHandshake) as error:
        heard.refused = str(error)
        return heard
    if partials:
        heard.text = " ".join(partials[-1][1])
        heard.words = [
            ArrivedWord(text=word, emitted_ms=commitment.final_ms, end_ms=None)
            for word, commitment in zip(partials[-1][1], commitments(partials), strict=True)
        ]
    return heard


async def _speak(socket: ClientConnection, clip: LoadClip, quiet_seconds: float) -> list[tuple[int, list[str]]]:
    """Says the clip; gives every text that was new, with the time at which it came."""
    began = time.monotonic()
    segments, partials = Segments(), list[tuple[int, list[str]]]()

    async def say() -> None:
        async for piece in file_pieces(clip.path, "mix", clock=time.monotonic):
            await socket.send(piece)

    saying = asyncio.create_task(say())
    try:
        while True:
            try:
                message = json.loads(await asyncio.wait_for(socket.recv(), quiet_seconds))
            except TimeoutError:
                if saying.done():
                    await saying  # raises what it raised
                    return partials
                continue
            if "segments" in message:
                words = segments.take(message["segments"])
                if not partials or words != partials[-1][1]:
                    partials.append((round(1000 * (time.monotonic() - began)), words))
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
