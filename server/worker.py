"""The thread that owns the model and the slot pool. Everybody else hands it calls and gets reports."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch

from asr.config import ChunkSetting, SessionSettings
from asr.drafting import Drafting
from asr.errors import Overloaded
from asr.model import Model
from asr.resample import Samples
from asr.slots import StreamEngine
from asr.units import STEP_MS, STEP_SAMPLES
from asr.word_times import ctc_span_ms
from lm_fusion.fusion import Fusion
from lm_fusion.phrases import Phrase
from server.messages import PhraseText, Start
from server.ogg_opus import OPUS_RATE, OggOpusDecoder
from streaming.batcher import Batcher, Said, Taken
from streaming.session import Session

__all__ = ["Report", "Worker"]

LOG = logging.getLogger(__name__)
Opened = list[dict[str, object]]
"""What became of each phrase of a new session."""
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
        scorer: of the pool; None: one for sessions' own phrases, without an n-gram model.
        drafting: see `StreamEngine`.

    Attributes:
        warm: set when the first step has been made, which takes long.
    """

    def __init__(
        self,
        model: Model,
        *,
        slots: int,
        chunks: Sequence[ChunkSetting],
        clock: Callable[[], float],
        report: Callable[[Report], None],
        scorer: Fusion | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        self.model, self.slots = model, slots
        self.scorer = Fusion.of(model, slots=slots) if scorer is None else scorer
        self.warm = threading.Event()
        self._engine = StreamEngine(model, slots=slots, chunks=chunks, scorer=self.scorer, drafting=drafting)
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

    def prepare(self, phrases: Sequence[PhraseText], boost: float | None) -> None:
        """Builds a phrase list ahead of its use, so that no step waits for it; for any thread.

        Raises:
            PhraseError: if it cannot be built.
        """
        level = self.scorer.builder.default_boost if boost is None else boost
        for builder in (self.scorer.builder, self.scorer.preview_builder):
            if builder is not None:
                builder.build(as_phrases(phrases), boost=level)

    def open(self, key: str, start: Start, *, delay_ms: int, chunk_ms: int) -> Future[Opened]:
        """A new session: what holds, and what became of its phrases; the future has an error if it cannot be."""
        opened: Future[Opened] = Future()

        def make(batcher: Batcher) -> None:
            try:
                opened.set_result(self._open(batcher, key, start, delay_ms, chunk_ms))
            except Exception as error:  # noqa: BLE001 - it is the caller's to see
                opened.set_exception(error)

        self.call(make)
        return opened

    def _open(self, batcher: Batcher, key: str, start: Start, delay_ms: int, chunk_ms: int) -> Opened:
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
            phrases=as_phrases(start.phrases) if start.phrases else None,
            boost=start.boost,
            lm_weight=start.lm_weight,
        )
        batcher.add(key, session, chunk_ms=chunk_ms, decode=decode)
        return [answer.to_json() for answer in session.phrase_answers]

    def _run(self) -> None:
        try:
            warm_up(self.model, self._engine)
            self.warm.set()
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


def as_phrases(phrases: Sequence[PhraseText]) -> tuple[Phrase, ...]:
    """As the pool's scorer takes them."""
    return tuple(Phrase(text=phrase.text, boost=phrase.boost) for phrase in phrases)


def warm_up(model: Model, engine: StreamEngine) -> None:
    """Makes one step, and one word's alignment: what is compiled or loaded at first use is, before anybody speaks."""
    limits = model.config.limits
    settings = SessionSettings(chunk=engine.chunks[0], delay_steps=limits.delays[0])
    row = engine.acquire(settings)
    engine.step({row: np.full(settings.chunk.chunk_steps * STEP_SAMPLES, 1e-3, dtype=np.float32)})
    engine.release(row)
    if model.ctc_tokenizer is not None:
        labels = len(model.ctc_tokenizer.pieces) + 1
        ctc_span_ms(
            "a",
            480,
            480,
            log_probs=torch.zeros(12, labels).log_softmax(-1),
            step_end_ms=[STEP_MS * (step + 1) for step in range(12)],
            tokenizer=model.ctc_tokenizer,
            previous_end_ms=0,
        )


def chunks_up_to(model: Model, longest_ms: int) -> tuple[ChunkSetting, ...]:
    """The model's chunk settings of at most so much audio."""
    return tuple(chunk for chunk in model.config.limits.chunks if chunk.chunk_steps * STEP_MS <= longest_ms)
