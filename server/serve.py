"""Running a server until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable
from pathlib import Path

from asr.errors import ConfigError, EarlybirdError
from asr.model import Model
from lm_fusion.fusion import Fusion
from server.settings import ServeSettings
from server.websocket import CaptionServer


class WorkerFailed(EarlybirdError):
    """The recogniser's thread has ended: whoever started the server shall start it anew."""


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What encrypts connections; None without a certificate.

    Raises:
        ConfigError: if only one of the two is given, or they cannot be used.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"certificate {cert} with key {key} cannot be used: {error}") from None
    return context


async def serve_until_stopped(
    model: Model,
    settings: ServeSettings,
    *,
    tls: ssl.SSLContext | None,
    scorer: Fusion | None,
    log: Callable[[str], None],
) -> None:
    """Serves until SIGINT or SIGTERM; sessions then say their last words.

    Raises:
        ConfigError: if the address cannot be had.
        WorkerFailed: if the recogniser's thread ended.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = CaptionServer(model, settings, tls=tls, scorer=scorer)
    try:
        await server.start()
    except OSError as error:
        raise ConfigError(f"{settings.host}:{settings.port} cannot be listened on: {error}") from None
    scheme = "http" if tls is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    log(f"captions at {scheme}://{host}:{server.port}/ with up to {settings.max_sessions} sessions")
    ends = [asyncio.create_task(event.wait()) for event in (stop, server.failed)]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        log("stopping: sessions say their last words")
        await server.stop()
    if server.failed.is_set():
        raise WorkerFailed("the recogniser's thread has ended; the log says why")


def set_up_logging() -> None:
    """The server's own log, to standard error; nothing of what was said is ever in it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("websockets").setLevel(logging.WARNING)
