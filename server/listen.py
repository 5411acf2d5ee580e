"""A terminal that shows captions: a microphone or a file in real time, committed text plain, the tail dim."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from asr.audio import open_audio
from asr.channels import Channel
from asr.resample import Samples
from asr.units import SAMPLE_RATE
from server.client import Message, StreamClient
from server.microphone import InputDevice, recording

PIECE_MS = 100
DIM, PLAIN, CLEAR = "\x1b[2m", "\x1b[0m", "\x1b[K"
SAVE, RESTORE = "\x1b7", "\x1b8"


def to_pcm(samples: Samples) -> bytes:
    """[N] samples as 16-bit PCM."""
    return (samples * 32768).round().clip(-32768, 32767).astype("<i2").tobytes()


async def file_pieces(path: Path, channel: Channel, *, clock: Callable[[], float]) -> AsyncIterator[bytes]:
    """A file's audio at 16 kHz, a tenth of a second at a time, as fast as it was spoken.

    Raises:
        AudioFormatError: if it cannot be read.
    """
    size = PIECE_MS * SAMPLE_RATE // 1000
    began = clock()
    sent = 0
    rest = np.zeros(0, dtype=np.float32)
    with open_audio(path, channel=channel) as source:
        for block in source.blocks():
            rest = np.concatenate([rest, block])
            while len(rest) >= size:
                sent += size
                await asyncio.sleep(max(0.0, began + sent / SAMPLE_RATE - clock()))
                yield to_pcm(rest[:size])
                rest = rest[size:]
    if len(rest):
        yield to_pcm(rest)


class TerminalView:
    """What a terminal shows of a session.

    Args:
        out: where committed text goes; a file or pipe gets nothing else.
        err: where the rest goes.
        plain: whether `out` is no terminal.
    """

    def __init__(self, out: TextIO, err: TextIO, *, plain: bool) -> None:
        self._out, self._err, self._plain = out, err, plain
        self._started = False
        self._before = ""  # owed before the next word

    def show(self, message: Message) -> None:
        """Shows one message of the server."""
        kind = message["type"]
        if kind == "words":
            text = message["text"]
            if "amended" in message:  # late punctuation belongs to the line before
                end = text.find(" ") % (len(text) + 1)
                self._write(text[:end])
                text = text[end:]
            if text:
                self._write(self._before + (text.lstrip() if self._before or not self._started else text))
                self._before, self._started = "", True
        elif kind == "tail" and not self._plain:
            tail = message["text"]
            self._out.write(f"{SAVE}{DIM}{' ' + tail if tail else ''}{PLAIN}{CLEAR}{RESTORE}")
        elif kind == "segment":
            self._before = "\n"
        elif kind in ("warning", "error"):
            self._err.write(f"{kind}: {message['text']}\n")
        elif kind == "closed":
            self._write("\n" if self._started else "")
            self._err.write(f"{closing_line(message)}\n")
        self._out.flush()

    def _write(self, text: str) -> None:
        self._out.write(text if self._plain else f"{CLEAR}{text}")


def closing_line(closed: Message) -> str:
    """A session's delays in one line.

    >>> closing_line({"reason": "end", "audio_ms": 4000, "delay_ms": {"wall": None, "audio": None}})
    'end: 4.0 s of audio, no word'
    """
    head = f"{closed['reason']}: {closed['audio_ms'] / 1000:.1f} s of audio"
    wall = closed["delay_ms"]["wall"]
    if wall is None:
        return f"{head}, no word"
    return (
        f"{head}, {wall['words']} words, delay from a word's end to its commitment: "
        f"median {wall['p50'] / 1000:.2f} s, 95 % within {wall['p95'] / 1000:.2f} s"
    )


async def listen(
    client: StreamClient, pieces: AsyncIterator[bytes], show: Callable[[Message], None], *, stop: asyncio.Event
) -> Message:
    """Sends audio until it ends or `stop` is set, shows what comes; gives the last message.

    Raises:
        ConnectionLost: if the server is gone.
        AudioFormatError: if the audio cannot be read.
    """

    async def send() -> None:
        async for piece in pieces:
            if stop.is_set():
                break
            await client.audio(piece)
        client.end()

    sender = asyncio.create_task(send())
    last: Message = {}
    try:
        async for message in client.messages():
            last = message
            show(message)
            if sender.done() and sender.exception() is not None:
                break
    finally:
        if not sender.done():
            sender.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sender
    return last


async def microphone_pieces(library: Any, device: InputDevice, stop: asyncio.Event) -> AsyncIterator[bytes]:
    """What the microphone gives until `stop` is set."""
    async with recording(library, device) as pieces:
        ends = asyncio.create_task(stop.wait())
        while not stop.is_set():
            piece = asyncio.create_task(pieces.get())
            await asyncio.wait([piece, ends], return_when=asyncio.FIRST_COMPLETED)
            if not piece.done():
                piece.cancel()
                break
            yield piece.result()
        ends.cancel()


def json_line(message: Message) -> str:
    """A message as a line of JSON."""
    return json.dumps(message, ensure_ascii=False)
