"""One websocket with a session: a reader, a writer and a keeper that notices when the other side is gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from asr.errors import EarlybirdError, ProtocolError
from asr.pcm import BYTES_PER_SAMPLE
from asr.units import STEP_MS
from server.live import LiveSession
from server.messages import (
    HIGHEST_BOOST,
    HIGHEST_LM_WEIGHT,
    LONGEST_PHRASE,
    MOST_PHRASES,
    PROTOCOL,
    Ack,
    End,
    Flush,
    Keepalive,
    Start,
    Update,
    encode,
    error_code,
    parse,
)
from server.rate_check import RateCheck
from server.worker import as_phrases
from streaming.batcher import Audio, Finish, FlushRequest, Inbox, Setting
from streaming.session import Session

if TYPE_CHECKING:
    from server.websocket import CaptionServer

LEFT = (1000, 1001)
"""Close codes of a client that went on purpose: its session is not kept."""
TAKEN_OVER = 4000
MOST_ERRORS = 100
PING_SECONDS = 20.0


class Connection:
    """A client's connection, from `ready` on.

    Attributes:
        told_all: whether the session's last message was handed to the socket.
    """

    def __init__(self, server: CaptionServer, socket: ServerConnection, session: LiveSession) -> None:
        self._server, self._socket, self._session = server, socket, session
        self._written, self._room = asyncio.Event(), asyncio.Event()
        self._heard_ms = server.clock()
        self._deaf = False  # who does not read hears nothing
        self._rate = _rate_check(session.start)
        self.told_all = False

    def wake(self) -> None:
        """There may be something to send, or room for more audio."""
        self._written.set()
        self._room.set()

    def taken_over(self) -> None:
        """Another connection goes on with the session."""
        self._socket.transport.abort()

    async def run(self, start: Start) -> bool:
        """Talks until the connection ends; whether the client left on purpose."""
        try:
            await self._socket.send(self._ready(start))
        except ConnectionClosed:
            return False
        tasks = [asyncio.create_task(part()) for part in (self._read, self._write, self._keep)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, ConnectionClosed | TimeoutError):
                raise result
        if self.told_all:
            await self._socket.close(1000, "the session has ended")
        else:
            self._socket.transport.abort()
        received = self._socket.protocol.close_rcvd
        return received is not None and received.code in LEFT

    def _ready(self, start: Start) -> str:
        session, server, settings = self._session, self._server, self._server.settings
        limits = server.model.config.limits
        return encode(
            "ready",
            version=PROTOCOL,
            model=server.model.name,
            resumed=start.resume is not None,
            resume={"token": session.token, "kept_ms": settings.resume_ms},
            received_bytes=session.received_bytes,
            received_messages=session.received_messages,
            settings={
                "encoding": session.start.encoding,
                "sample_rate": session.start.sample_rate,
                "channels": session.start.channels,
                "channel": session.start.channel,
                "timestamps": session.start.timestamps,
                **session.settings,
            },
            phrases=session.phrases,
            limits={
                "message_bytes": settings.message_bytes,
                "idle_ms": settings.idle_ms,
                "session_ms": settings.session_ms,
                "sessions": settings.max_sessions,
                "delay_ms": [delay * STEP_MS for delay in limits.delays],
                "chunk_ms": [chunk.chunk_steps * STEP_MS for chunk in server.chunks],
                "phrases": MOST_PHRASES,
                "phrase_characters": LONGEST_PHRASE,
                "boost": HIGHEST_BOOST,
                "lm_weight": HIGHEST_LM_WEIGHT,
            },
            features={"phrases": True, "lm": server.worker.scorer.lm is not None},
        )

    # -- from the client -----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            message = await self._socket.recv()
            self._heard_ms = self._server.clock()
            self._session.heard_ms = int(self._heard_ms)
            try:
                if isinstance(message, bytes):
                    self._take_audio(message)
                else:
                    await self._take_message(message)
            except EarlybirdError as error:
                self._refuse(error)
            await self._wait_for_room()

    def _take_audio(self, audio: bytes) -> None:
        self._session.received_messages += 1
        session, most = self._session, self._server.settings.message_bytes
        if session.ending:
            raise ProtocolError("bad_sequence", f"{len(audio)} bytes of audio came after the end")
        if len(audio) > most:
            error = ProtocolError("too_large", f"a message has {len(audio)} bytes; at most {most} are taken")
            self._server.finish(session, Finish(reason="error", error=error))
            return
        session.received_bytes += len(audio)
        session.inbox_bytes += len(audio)
        self._put(Audio(bytes=audio, at_ms=int(self._heard_ms)))
        if self._rate is not None and (text := self._rate.step(len(audio), self._heard_ms)) is not None:
            session.outbox.commit("warning", {"code": "sample_rate", "text": text})
            self.wake()

    async def _take_message(self, text: str) -> None:
        most = self._server.settings.message_bytes
        if len(text) > most:
            raise ProtocolError("too_large", f"a message has {len(text)} characters; at most {most} are taken")
        message = parse(text)
        self._session.received_messages += isinstance(message, Update | Flush | End)
        if isinstance(message, Ack):
            self._session.outbox.acknowledge(message.seq)
        elif isinstance(message, Start):
            raise ProtocolError("bad_sequence", "`start` came a second time; it begins a connection")
        elif isinstance(message, End):
            self._server.finish(self._session, Finish(reason="end"))
        elif self._session.ending and not isinstance(message, Keepalive):
            raise ProtocolError("bad_sequence", f"{type(message).__name__.lower()} came after the end")
        elif isinstance(message, Flush):
            self._put(FlushRequest(id=message.id))
        elif isinstance(message, Update):
            await self._update(message)

    async def _update(self, message: Update) -> None:
        server, chunk_ms = self._server, self._session.settings["chunk_ms"]
        if message.delay_ms is not None:
            server.model.settings(delay_ms=message.delay_ms, chunk_ms=cast(int, chunk_ms))
        if message.phrases is not None:
            await asyncio.to_thread(server.worker.prepare, message.phrases, message.boost)

        def apply(session: Session) -> dict[str, object]:
            phrases = None if message.phrases is None else as_phrases(message.phrases)
            answers = session.update(phrases=phrases, boost=message.boost, lm_weight=message.lm_weight)
            if message.delay_ms is not None:
                session.change_delay(message.delay_ms)
            changed: dict[str, object] = {"delay_ms": session.delay_ms}
            if message.phrases is not None:
                changed["phrases"] = [answer.to_json() for answer in answers]
            for name in ("boost", "lm_weight"):
                if (value := getattr(message, name)) is not None:
                    changed[name] = value
            return changed

        self._put(Setting(apply=apply))

    def _put(self, item: Inbox) -> None:
        session = self._session
        session.inbox_items += 1
        self._server.worker.call(lambda batcher: batcher.put(session.key, item))

    def _refuse(self, error: EarlybirdError) -> None:
        session = self._session
        session.errors += 1
        self._server.metrics.errors.labels(error_code(error)).inc()
        session.outbox.commit("error", {"code": error_code(error), "text": str(error), "fatal": False})
        if session.errors == MOST_ERRORS:
            last = ProtocolError("too_many_errors", f"{MOST_ERRORS} messages could not be used")
            self._server.finish(session, Finish(reason="error", error=last))
        self.wake()

    async def _wait_for_room(self) -> None:
        """Reads no further while too much waits to be decoded or to be sent: the network then slows the sender."""
        session, settings = self._session, self._server.settings
        while (
            session.inbox_bytes > settings.inbox_bytes
            or session.inbox_items > settings.inbox_items
            or session.outbox.full
        ):
            self._room.clear()
            self._deaf = True
            await self._room.wait()
        if self._deaf:
            self._deaf, self._heard_ms = False, self._server.clock()
            if self._rate is not None:
                self._rate.restart()

    # -- to the client -------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        session = self._session
        while True:
            while (text := session.outbox.take()) is not None:
                async with asyncio.timeout(self._server.settings.stall_ms / 1000):
                    await self._socket.send(text)
                self._server.update_hold(session)
                self._room.set()
            if session.closed:
                self.told_all = True
                return
            self._written.clear()
            await self._written.wait()

    async def _keep(self) -> None:
        """Ends when the other side shows no sign of life."""
        quiet_ms = self._server.settings.quiet_ms
        while self._deaf or self._server.clock() - self._heard_ms < quiet_ms:
            pong = await self._socket.ping()
            asyncio.ensure_future(pong).add_done_callback(self._pong)
            await asyncio.sleep(min(PING_SECONDS, quiet_ms / 3000))

    def _pong(self, pong: asyncio.Future[float]) -> None:
        if not pong.cancelled() and pong.exception() is None:
            self._heard_ms = self._server.clock()


def _rate_check(start: Start) -> RateCheck | None:
    """None for audio that says itself how fast it is."""
    if start.encoding not in BYTES_PER_SAMPLE:
        return None
    return RateCheck(bytes_per_sample=BYTES_PER_SAMPLE[start.encoding] * start.channels, sample_rate=start.sample_rate)
