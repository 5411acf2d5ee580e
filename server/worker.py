"""The thread that owns the model and the slot pool. Everybody else hands it calls and gets reports."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from asr.config import ChunkSetting
from asr.errors import Overloaded
from asr.model import Model
from asr.resample import Samples
from asr.slots import StreamEngine
from asr.units import STEP_MS
from server.messages import Start
from server.ogg_opus import OPUS_RATE, OggOpusDecoder
from streaming.batcher import Batcher, Said, Taken
from streaming.session import Session

__all__ = ["Report", "Worker"]

LOG = logging.getLogger(__name__)
T = TypeVar("T")
Call = Callable[[Batcher], None]
STOP_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a turn of the worker came to.

    Attributes:
        said: by session.
        taken: what left each session's inbox.
        factors: real-time factor by session that said something.
        rows: sessions in the step, 0 if there was none; took_ms: how long it was.
        failure: what ended the worker; it is the last report then.
    """

    said: Mapping[str, list[Said]] = field(default_factory=dict)
    taken: Mapping[str, Taken] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0
    took_ms: float = 0.0
    failure: Exception | None = None


class Worker:
    """Owns a pool of slots and steps whoever is due.

    Args:
        model: what `asr.load` gave.
        slots: sessions that may live at once.
        chunks: the chunk settings that they may have.
        clock: milliseconds that never go back, the clock of all delays.
        report: called in the worker's thread after every turn that has something to tell; must not block.
    """

    def __init__(
        self,
        model: Model,
        *,
        slots: int,
        chunks: Sequence[ChunkSetting],
        clock: Callable[[], float],
        report: Callable[[Report], None],
    ) -> None:
        self.model, self.slots = model, slots
        self._engine = StreamEngine(model, slots=slots, chunks=chunks)
        self._clock, self._report = clock, report
        self._batcher = Batcher()
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="recogniser", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the step under way; sessions are dropped."""
        self._calls.put(None)
        self._thread.join(STOP_SECONDS)

    def call(self, call: Call) -> None:
        """Has `call` made with the batcher before the next step."""
        self._calls.put(call)

    def open(self, key: str, start: Start, *, delay_ms: int, chunk_ms: int) -> Future[None]:
        """A new session; the future holds an error if it cannot be."""
        opened: Future[None] = Future()

        def make(batcher: Batcher) -> None:
            try:
                self._open(batcher, key, start, delay_ms, chunk_ms)
            except Exception as error:  # noqa: BLE001 - it is the caller's to see
                opened.set_exception(error)
            else:
                opened.set_result(None)

        self.call(make)
        return opened

    def _open(self, batcher: Batcher, key: str, start: Start, delay_ms: int, chunk_ms: int) -> None:
        if not self._engine.free:
            raise Overloaded(f"all {self.slots} sessions of this server are in use; try again later")
        opus = start.encoding == "ogg-opus"
        decode: Callable[[bytes], bytes | Samples] = OggOpusDecoder(channels=start.channels).step if opus else bytes
        session = Session(
            self.model,
            engine=self._engine,
            delay_ms=delay_ms,
            chunk_ms=chunk_ms,
            encoding="pcm_f32le" if start.encoding == "ogg-opus" else start.encoding,
            sample_rate=OPUS_RATE if opus else start.sample_rate,
            channels=start.channels,
            channel=start.channel,
            keep_words=False,
        )
        batcher.add(key, session, chunk_ms=chunk_ms, decode=decode)

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            # Errors of a session's step never come here: this one is a fault of the server, which has to end.
            LOG.exception("the worker failed outside any session's step")
            self._report(Report(failure=error))

    def _turn(self) -> bool:
        """Calls that wait, then one step; waits for a call if nothing is due. False when it is to stop."""
        keys = self._batcher.choose(int(self._clock()))
        if not self._publish(keys) and not keys and not self._take(block=True):
            return False
        return self._take(block=False)

    def _take(self, *, block: bool) -> bool:
        while True:
            try:
                call = self._calls.get(block=block)
            except queue.Empty:
                return True
            if call is None:
                for key in self._batcher.keys:
                    self._batcher.drop(key)
                return False
            call(self._batcher)
            block = False

    def _publish(self, keys: Sequence[str]) -> bool:
        """Steps those sessions and tells what came of it; whether there was anything."""
        before = self._clock()
        self._batcher.step(keys, int(before))
        after = self._clock()
        took_ms = after - before if keys else 0.0
        said = self._batcher.collect(int(after), took_ms=took_ms, stepped=keys)
        taken = self._batcher.taken()
        if not (said or taken or keys):
            return False
        factors = {key: self._batcher.real_time_factor(key) for key in said}
        self._report(Report(said=said, taken=taken, factors=factors, rows=len(keys), took_ms=took_ms))
        return True


def chunks_up_to(model: Model, longest_ms: int) -> tuple[ChunkSetting, ...]:
    """The model's chunk settings of at most so much audio."""
    return tuple(chunk for chunk in model.config.limits.chunks if chunk.chunk_steps * STEP_MS <= longest_ms)
