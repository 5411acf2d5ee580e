"""A client of protocol v1: in order, paced by the server, and after a break gone on with, nothing lost or doubled."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from asr.errors import EarlybirdError

Message = dict[str, Any]
LONGEST_WAIT_SECONDS = 4.0
TRIES = 8
KEPT_BYTES = 4 * 1024 * 1024
LARGEST_MESSAGE = 16 * 1024 * 1024


class ConnectionLost(EarlybirdError):
    """The server is gone, or refuses to go on; the message says what it said last."""


class StreamClient:
    """One session of a server, over as many connections as it takes.

    Args:
        url: such as ws://127.0.0.1:8765/v1/stream.
        start: fields of the `start` message.
        token: bearer token, if the server wants one.
        tls: for wss; None: the system's certificates.

    Attributes:
        ready: the newest `ready` message; empty before the first.
        breaks: connections that broke.
    """

    def __init__(
        self, url: str, start: Mapping[str, object], *, token: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.ready: Message = {}
        self.breaks = 0
        self._url, self._start, self._tls = url, dict(start), tls
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._kept: deque[bytes | str] = deque()  # what the server has not said it has
        self._kept_bytes = 0
        self._first = 0  # number of the first of those
        self._next = 0  # number of the one to be sent next
        self._seq = 0
        self._more, self._room = asyncio.Event(), asyncio.Event()

    async def audio(self, audio: bytes) -> None:
        """Sends audio; waits while the server has not taken what was sent before."""
        while self._kept_bytes > KEPT_BYTES:
            self._room.clear()
            await self._room.wait()
        self._put(audio)

    def flush(self, id: str | int | None = None) -> None:
        """Asks for one `flushed`."""
        self._say("flush", id=id)

    def update(self, **fields: object) -> None:
        """Changes settings from here on."""
        self._say("update", **fields)

    def end(self) -> None:
        """No more audio."""
        self._say("end")

    def _say(self, kind: str, **fields: object) -> None:
        self._put(json.dumps({"type": kind, **{key: value for key, value in fields.items() if value is not None}}))

    def _put(self, message: bytes | str) -> None:
        self._kept.append(message)
        self._kept_bytes += len(message)
        self._more.set()

    async def messages(self) -> AsyncIterator[Message]:
        """What the server says, each committed message once, until `closed` or a fatal `error`, which come as well.

        Raises:
            ConnectionLost: if no connection can be had, or the session cannot be gone on with.
        """
        tries = 0
        while True:
            try:
                async with (
                    connect(
                        self._url,
                        ssl=self._tls,
                        additional_headers=self._headers,
                        compression=None,
                        max_size=LARGEST_MESSAGE,
                        ping_interval=None,
                    ) as socket,
                    aclosing(self._connection(socket)) as received,
                ):
                    async for message in received:
                        tries = 0
                        yield message
                        if message["type"] == "closed" or message.get("fatal"):
                            return
                reason = f"{socket.close_code} {socket.close_reason}"
            except (OSError, ConnectionClosed, InvalidHandshake) as error:
                reason = str(error)
            tries += 1
            self.breaks += bool(self.ready)
            if not self.ready or tries > TRIES:
                raise ConnectionLost(f"{self._url}: {reason}")
            await asyncio.sleep(min(LONGEST_WAIT_SECONDS, 0.1 * 2**tries))

    async def _connection(self, socket: ClientConnection) -> AsyncGenerator[Message, None]:
        resume = {"resume": {"token": self.ready["resume"]["token"], "seq": self._seq}} if self.ready else {}
        await socket.send(json.dumps({"type": "start", **self._start, **resume}))
        sender: asyncio.Task[None] | None = None
        try:
            async for text in socket:
                message: Message = json.loads(text)
                if message["type"] == "ready":
                    self.ready = message
                    self._forget(message["received_messages"])
                    self._next = message["received_messages"]
                    sender = asyncio.create_task(self._send(socket))
                elif message["type"] == "heartbeat":
                    self._forget(message["received_messages"])
                if (seq := message.get("seq")) is not None:
                    if seq <= self._seq:
                        continue
                    self._seq = seq
                yield message
                if message["type"] == "words":  # behind the yield: a break at the ack must not take the message along
                    # A server that has said all closes at once: what it said is still to be read.
                    with suppress(ConnectionClosed):
                        await socket.send(json.dumps({"type": "ack", "seq": seq}))
        finally:
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)

    async def _send(self, socket: ClientConnection) -> None:
        while True:
            while self._next < self._first + len(self._kept):
                message = self._kept[self._next - self._first]
                self._next += 1
                await socket.send(message)
            self._more.clear()
            await self._more.wait()

    def _forget(self, received: int) -> None:
        while self._first < received and self._kept:
            self._kept_bytes -= len(self._kept.popleft())
            self._first += 1
        self._room.set()
