"""A server on a free port with a recogniser whose speech is known, and raw clients of it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from asr.model import Model
from server.settings import ServeSettings
from server.websocket import CaptionServer, monotonic_ms

Message = dict[str, Any]


def run(scenario: Coroutine[Any, Any, None], seconds: float = 60.0) -> None:
    """Runs a scenario; one that takes longer hangs, and fails."""

    async def limited() -> None:
        async with asyncio.timeout(seconds):
            await scenario

    asyncio.run(limited())


@asynccontextmanager
async def serving(
    model: Model, *, clock: Callable[[], float] = monotonic_ms, **options: Any
) -> AsyncIterator[CaptionServer]:
    settings = ServeSettings(**{"port": 0, "max_sessions": 3, "delay_ms": 80, "chunk_ms": 80, **options})
    async with CaptionServer(model, settings, clock=clock) as server:
        yield server


def url(server: CaptionServer) -> str:
    return f"ws://127.0.0.1:{server.port}/v1/stream"


def pcm(audio: np.ndarray) -> bytes:
    return audio.astype("<f4").tobytes()


class Client:
    """One connection that keeps every message it got."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.messages = socket, list[Message]()

    async def say(self, kind: str, **fields: object) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def audio(self, audio: np.ndarray, size: int = 5_000) -> None:
        data = pcm(audio)
        for at in range(0, len(data), size):
            await self.socket.send(data[at : at + size])

    async def receive(self) -> Message:
        message: Message = json.loads(await self.socket.recv())
        self.messages.append(message)
        return message

    async def until(self, kind: str) -> Message:
        while (message := await self.receive())["type"] != kind:
            pass
        return message

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.messages if message["type"] == kind]

    @property
    def text(self) -> str:
        return "".join(message["text"] for message in self.of("words"))


@asynccontextmanager
async def client(server: CaptionServer, *, receive_bytes: int | None = None, **options: Any) -> AsyncIterator[Client]:
    """A connection without a session; `receive_bytes`: how much the system keeps for one that does not read."""
    plain = socket.socket()
    plain.setblocking(False)
    if receive_bytes is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", server.port))
    async with connect(url(server), sock=plain, **{"compression": None, **options}) as connected:
        yield Client(connected)


@asynccontextmanager
async def session(
    server: CaptionServer, *, receive_bytes: int | None = None, **fields: object
) -> AsyncIterator[Client]:
    """A connection with a session; its `ready` is its first message."""
    async with client(server, receive_bytes=receive_bytes) as one:
        await one.say("start", **{"encoding": "pcm_f32le", "sample_rate": 16_000, **fields})
        await one.until("ready")
        yield one


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits until it is so."""
    while not condition():
        await asyncio.sleep(0.01)
