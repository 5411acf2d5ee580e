"""A server in a thread of its own, for tests whose clients block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asr.model import Model
from server.settings import ServeSettings
from server.websocket import CaptionServer


@contextmanager
def served(model: Model, **options: Any) -> Iterator[CaptionServer]:
    """A running server on a free port."""
    started = threading.Event()
    found: list[CaptionServer] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with CaptionServer(model, ServeSettings(**{"port": 0, **options})) as server:
            found.append(server)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(60), "the server did not start"
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"
        loop.close()
