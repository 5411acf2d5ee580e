"""Many recordings through one pool of slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from asr.config import SessionSettings
from asr.decode import TokenScorer
from asr.drafting import Drafting
from asr.errors import ConfigError, EarlybirdError
from asr.model import Model
from asr.resample import Samples
from asr.slots import StreamEngine
from asr.text import WordLog
from asr.transcriber import Stream, advance
from asr.words import Transcript

__all__ = ["Job", "transcribe_streams"]

Job = tuple[str, Iterable[Samples]]


class _Running:
    """One job on its slot."""

    def __init__(self, key: str, pieces: Iterable[Samples], stream: Stream) -> None:
        self.key, self.stream, self.log = key, stream, WordLog()
        self._given = pieces
        self._pieces = iter(pieces)
        self._ended = False

    def supply(self) -> None:
        """Feeds until a block is due or the audio has ended.

        Raises:
            EarlybirdError: what the audio raises.
        """
        while not self.stream.due and not self._ended:
            samples = next(self._pieces, None)
            if samples is None:
                self._ended = True
                self.stream.begin_flush()
            else:
                self.stream.feed(samples)

    @property
    def done(self) -> bool:
        return self._ended and not self.stream.due

    def close(self) -> None:
        self.stream.close()
        for source in (self._pieces, self._given):
            if hasattr(source, "close"):  # a generator that holds a file open
                source.close()


def transcribe_streams(
    model: Model,
    jobs: Iterable[Job],
    *,
    delay_ms: int = 480,
    chunk_ms: int = 320,
    batch_size: int = 4,
    drafting: Drafting | None = None,
    scorer: TokenScorer | None = None,
    steering: Callable[[str], object] | None = None,
) -> Iterator[tuple[str, Transcript | EarlybirdError]]:
    """Each job's transcript or its error, in the order in which they finish.

    A job is opened when a slot is free for it, and a slot is filled anew as soon as its stream ends. The text of a job
    does not depend on the others.

    Args:
        model: what `asr.load` gave.
        jobs: (key, pieces of audio [N] at 16 kHz).
        delay_ms, chunk_ms: see `asr.transcribe`.
        batch_size: slots.
        drafting: see `asr.transcribe`.
        scorer: scores of text for all jobs, with as many slots; None: none.
        steering: a job's key to what its stream is steered by, see `StreamEngine.steer`; None: nothing of its own.

    Raises:
        ConfigError: at once, if the model was not made for the delay and the chunk, or `batch_size` is below 1.
    """
    settings = model.settings(delay_ms=delay_ms, chunk_ms=chunk_ms)
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; it must be at least 1")
    engine = StreamEngine(model, slots=batch_size, chunks=[settings.chunk], drafting=drafting, scorer=scorer)
    return _results(engine, iter(jobs), settings, steering)


def _results(
    engine: StreamEngine,
    jobs: Iterator[Job],
    settings: SessionSettings,
    steering: Callable[[str], object] | None,
) -> Iterator[tuple[str, Transcript | EarlybirdError]]:
    running: list[_Running] = []
    try:
        while True:
            while engine.free and (job := next(jobs, None)) is not None:
                steered = None if steering is None else steering(job[0])
                running.append(_Running(*job, Stream(engine, settings, steered)))
            if not running:
                return
            freed = False
            for one in list(running):
                try:
                    one.supply()
                except EarlybirdError as error:
                    result: Transcript | EarlybirdError = error
                else:
                    if not one.done:
                        continue
                    result = one.stream.transcript(one.log)
                running.remove(one)
                one.close()
                freed = True
                yield one.key, result
            if freed:
                continue
            logs = {id(one.stream): one.log for one in running}
            for stream, delta in advance(one.stream for one in running):
                logs[id(stream)].add(delta)
    finally:
        for one in running:
            one.close()
