"""The websocket server: connections in asyncio, the recogniser in its own thread (`server/worker.py`)."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from asr.config import ChunkSetting
from asr.drafting import Drafting
from asr.errors import ConfigError, EarlybirdError, Overloaded, ProtocolError
from asr.model import Model
from lm_fusion.fusion import Fusion
from server.connection import Connection
from server.live import LiveSession, Registry
from server.messages import Resume, Start, encode, error_code, error_text, parse
from server.metrics import Metrics
from server.routes import Routes
from server.settings import ServeSettings, bearer, origin_fits, token_fits
from server.worker import Report, Worker, chunks_up_to
from streaming.batcher import Finish

LOG = logging.getLogger(__name__)
TICK_SECONDS = 0.5
QUIET_BEAT_MS = 10_000
STREAM_PATH = "/v1/stream"
RECEIVE_BYTES = 64 * 1024
BACKLOG = 256


def monotonic_ms() -> float:
    """The server's clock."""
    return time.monotonic() * 1000


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket whose connections hold little that was not read: what a client sends after a lot of audio, its
    pings too, would otherwise wait in the system's buffers for minutes.

    Raises:
        OSError: if the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        found.bind((host, port))
        found.listen(BACKLOG)
    except BaseException:
        found.close()
        raise
    return found


class CaptionServer:
    """Serves one model to many websockets.

    Args:
        model: what `asr.load` gave.
        settings: addresses and limits.
        tls: of the connections; None: they are not encrypted.
        scorer, drafting: of the pool, see `server.worker.Worker`.
        clock: milliseconds that never go back.

    Raises:
        ConfigError: if the model was not made for the default delay and chunk.
    """

    def __init__(
        self,
        model: Model,
        settings: ServeSettings,
        *,
        tls: ssl.SSLContext | None = None,
        scorer: Fusion | None = None,
        drafting: Drafting | None = None,
        clock: Callable[[], float] = monotonic_ms,
    ) -> None:
        model.settings(delay_ms=settings.delay_ms, chunk_ms=settings.chunk_ms)
        self.model, self.settings, self.clock = model, settings, clock
        self.chunks: tuple[ChunkSetting, ...] = chunks_up_to(model, settings.longest_chunk_ms)
        self.metrics = Metrics()
        self.metrics.slots.set(settings.max_sessions)
        self.registry = Registry(resume_ms=settings.resume_ms)
        self.worker = Worker(
            model,
            slots=settings.max_sessions,
            chunks=self.chunks,
            clock=clock,
            report=self._report_from_thread,
            scorer=scorer,
            drafting=drafting,
        )
        self.failed = asyncio.Event()
        self._routes = Routes(metrics=self.metrics, tokens=settings.tokens, ready=self._unready)
        self._tls = tls
        self._connections: dict[str, Connection] = {}
        self._open_sockets = 0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        port: int = next(iter(self._server.sockets)).getsockname()[1]
        return port

    async def start(self) -> None:
        """Starts the worker and listens.

        Raises:
            OSError: if the address cannot be had.
        """
        self._loop = asyncio.get_running_loop()
        listening = listen_on(self.settings.host, self.settings.port)
        self.worker.start()
        self._server = await serve(
            self._serve,
            sock=listening,
            ssl=self._tls,
            process_request=self._answer,
            compression=None,  # costs memory for each connection and saves little on audio
            max_size=4 * self.settings.message_bytes,  # up to there the answer is a typed error
            max_queue=4,
            open_timeout=self.settings.start_ms / 1000,
            close_timeout=5,
            ping_interval=None,  # `Connection` knows when it is its own reading that waits
            server_header=None,
        )
        self._ticker = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Lets sessions say their last words, then closes all."""
        self._stopping = True
        assert self._server is not None
        self._server.close(close_connections=False)
        for session in self.registry:
            self.finish(session, Finish(reason="shutdown"))
        until = self.clock() + self.settings.grace_ms
        while any(session.connection is not None for session in self.registry) and self.clock() < until:
            await asyncio.sleep(0.02)
        if self._ticker is not None:
            self._ticker.cancel()
        self._server.close()
        await self._server.wait_closed()
        await asyncio.to_thread(self.worker.stop)

    # -- plain HTTP ----------------------------------------------------------------------------------------------

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        if self._routes.is_stream(request.path, STREAM_PATH):
            if not origin_fits(request.headers.get("Origin"), request.headers.get("Host"), self.settings.origins):
                self.metrics.refused.labels("forbidden_origin").inc()
                return self._respond(self._routes.forbidden(request.headers.get("Origin")))
            if self._open_sockets >= self.settings.max_connections:
                self.metrics.refused.labels("too_many_connections").inc()
                return self._respond(self._routes.too_many(self.settings.max_connections))
            return None
        return self._respond(self._routes.answer(request.path, bearer(request.headers.get("Authorization"))))

    def _respond(self, answer: tuple[int, str, dict[str, str], bytes]) -> Response:
        status, phrase, headers, body = answer
        return Response(status, phrase, Headers(headers), body)

    def _unready(self) -> str | None:
        """Why no session can be taken; None if one can be, or all slots are in use."""
        if self._stopping:
            return "the server is stopping"
        if not self.worker.alive:
            return "the recogniser's thread has ended"
        return None if self.worker.warm.is_set() else "the recogniser makes its first step"

    # -- a connection's life -------------------------------------------------------------------------------------

    async def _serve(self, connected: ServerConnection) -> None:
        self._open_sockets += 1
        self.metrics.connections.set(self._open_sockets)
        try:
            admitted = await self._admit(connected)
            if admitted is not None:
                await self._talk(connected, *admitted)
        except ConnectionClosed:
            pass  # before there was a session, or while it was refused
        finally:
            self._open_sockets -= 1
            self.metrics.connections.set(self._open_sockets)

    async def _admit(self, connected: ServerConnection) -> tuple[LiveSession, Start] | None:
        """The session of a new connection; None if it was refused."""
        try:
            start = await self._first_message(connected)
            if start.resume is not None:
                return self._resume(start, start.resume), start
            return await self._open(start), start
        except EarlybirdError as error:
            code = error_code(error)
            self.metrics.refused.labels(code).inc()
            await connected.send(encode("error", code=code, text=error_text(error), fatal=True))
            await connected.close(1013 if code == "overloaded" else 1008, code)
            return None

    async def _first_message(self, connected: ServerConnection) -> Start:
        try:
            async with asyncio.timeout(self.settings.start_ms / 1000):
                first = await connected.recv()
        except TimeoutError:
            raise ProtocolError(
                "start_timeout", f"no message within {self.settings.start_ms} ms; `start` must come first"
            ) from None
        if isinstance(first, bytes):
            raise ProtocolError("bad_sequence", f"the first message is {len(first)} bytes of audio; `start` must be")
        start = parse(first)
        if not isinstance(start, Start):
            raise ProtocolError("bad_sequence", f"the first message is {type(start).__name__.lower()}; `start` must be")
        assert connected.request is not None
        given = bearer(connected.request.headers.get("Authorization")) or start.token
        if self.settings.tokens and not token_fits(given, self.settings.tokens):
            raise ProtocolError("unauthorized", "a bearer token of this server is needed, in a header or in `start`")
        return start

    async def _open(self, start: Start) -> LiveSession:
        if self._stopping:
            raise Overloaded("the server is stopping")
        delay_ms, chunk_ms = start.delay_ms or self.settings.delay_ms, start.chunk_ms or self.settings.chunk_ms
        chosen = self.model.settings(delay_ms=delay_ms, chunk_ms=chunk_ms)
        if chosen.chunk not in self.chunks:
            raise ConfigError(f"chunk_ms is {chunk_ms}; this server has up to {self.settings.longest_chunk_ms}")
        if start.phrases:
            await asyncio.to_thread(self.worker.prepare, start.phrases, start.boost)
        self._make_room()
        key = self.registry.new_key()
        try:
            opening = self.worker.open(key, start, delay_ms=delay_ms, chunk_ms=chunk_ms)
            phrases = await asyncio.wrap_future(opening)
        except BaseException:
            self.worker.call(lambda batcher: batcher.drop(key))
            raise
        self.metrics.opened.inc()
        settings = {**chosen.to_json(), "boost": start.boost, "lm_weight": start.lm_weight}
        return self.registry.add(key, start, settings=settings, phrases=phrases, now_ms=int(self.clock()))

    def _make_room(self) -> None:
        """A session whose client is away gives way to a client that is there."""
        holding = [session for session in self.registry if not session.closed]
        if len(holding) >= self.settings.max_sessions:
            for session in self.registry.away():
                if not session.closed:
                    LOG.info("%s gives way to a new client", session.key)
                    self.drop(session)
                    return

    def _resume(self, start: Start, resume: Resume) -> LiveSession:
        session = self.registry.find(resume.token, start)
        session.outbox.rewind(resume.seq)
        self.metrics.resumed.inc()
        return session

    async def _talk(self, connected: ServerConnection, session: LiveSession, start: Start) -> None:
        """Both directions of a connection until it ends, and what becomes of its session then."""
        old = self._connections.get(session.key)
        connection = Connection(self, connected, session)
        self._connections[session.key] = connection
        session.connection, session.away_ms = connection, None
        if old is not None:
            old.taken_over()
        left = await connection.run(start)
        if self._connections.get(session.key) is not connection:
            return  # another connection goes on with the session
        del self._connections[session.key]
        session.connection, session.away_ms = None, int(self.clock())
        self.update_hold(session)
        if left:  # its close frame says that it has read all before it; else it may come back for its last words
            self.drop(session)

    # -- sessions ------------------------------------------------------------------------------------------------

    def finish(self, session: LiveSession, finish: Finish) -> None:
        """Ends a session after its last words; harmless when it is ending."""
        if not session.ending:
            session.ending = True
            self.worker.call(lambda batcher: batcher.put(session.key, finish))

    def drop(self, session: LiveSession) -> None:
        """Ends a session at once."""
        self.registry.remove(session.key)
        self.worker.call(lambda batcher: batcher.drop(session.key))

    def update_hold(self, session: LiveSession) -> None:
        """A session whose client does not read is not decoded further."""
        held = session.outbox.full and session.connection is not None
        if held != session.held:
            session.held = held
            self.worker.call(lambda batcher: batcher.hold(session.key, held))

    def _report_from_thread(self, report: Report) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._report, report)
        except RuntimeError:
            LOG.info("the event loop has ended before the worker")

    def _report(self, report: Report) -> None:
        self.metrics.report(report)
        now_ms = int(self.clock())
        for key, (size, items) in report.taken.items():
            if (session := self.registry.get(key)) is not None:
                session.inbox_bytes -= size
                session.inbox_items -= items
                self._wake(session)
        for key, said in report.said.items():
            if (session := self.registry.get(key)) is None:
                continue
            for one in said:
                session.note(one, now_ms, real_time_factor=report.factors.get(key, 0.0))
                if one.error is not None:
                    self.metrics.errors.labels(error_code(one.error)).inc()
                    LOG.warning("%s: %s", key, one.error, exc_info=one.error)
            self.update_hold(session)
            self._wake(session)
        if report.failure is not None:
            self.failed.set()

    def _wake(self, session: LiveSession) -> None:
        if (connection := self._connections.get(session.key)) is not None:
            connection.wake()

    async def _tick(self) -> None:
        """What happens because time passes."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now_ms = int(self.clock())
            for session in self.registry.expired(now_ms):
                LOG.info("%s: its client did not come back", session.key)
                self.drop(session)
            for session in self.registry:
                self._limits(session, now_ms)
                if session.quiet_beat(now_ms, QUIET_BEAT_MS):
                    self._wake(session)
            away = len(self.registry.away())
            self.metrics.sessions.labels("away").set(away)
            self.metrics.sessions.labels("there").set(len(self.registry) - away)

    def _limits(self, session: LiveSession, now_ms: int) -> None:
        if now_ms - session.heard_ms >= self.settings.idle_ms and not session.inbox_items:
            self.finish(session, Finish(reason="idle"))
        elif self.settings.session_ms is not None and session.received_ms >= self.settings.session_ms:
            self.finish(session, Finish(reason="length"))
