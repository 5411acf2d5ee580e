"""Audio to words: the one path that files, batches and sessions share.

A `Stream` is all of a stream that is not the recogniser's: audio that waits for its block, clocks, the word under way,
the watchdog, counts. `advance` decodes one block of any number of streams in one batch. What a stream says depends on
its audio, its settings and where it was flushed, and not on the size of the pieces it came in, or on other streams.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from asr.audio import open_audio
from asr.clock import ClockMap
from asr.config import SessionSettings
from asr.decode import TokenScorer
from asr.drafting import Drafting
from asr.errors import AudioFormatError, ConfigError, InvalidSamples, StreamClosed
from asr.loudness import Leveller, Quiet, levels_db
from asr.model import Model
from asr.preview import preview_words
from asr.recogniser import WAIT
from asr.resample import Samples
from asr.slots import RowResult, StreamEngine
from asr.text import AssemblerState, Locate, StepText, TextDelta, WordLog
from asr.units import FRAME_SAMPLES, MEL_SAMPLES, SAMPLE_RATE, STEP_SAMPLES, samples_to_ms
from asr.watchdog import Watchdog, WatchdogState
from asr.word_times import ctc_span_ms
from asr.words import DecodeStats, DraftCount, Transcript

__all__ = ["FlushRule", "HeardWord", "Stream", "advance", "decode_due", "transcribe"]

LEAST_SAMPLES = MEL_SAMPLES
"""A stream shorter than one hop of the front end holds no word, and has no room for one."""
FLUSH_BLOCK_STEPS = 16
GRACE_STEPS = 8
"""How late text may be beyond what the model states, before the watchdog takes its silence for a fault."""


@dataclass(frozen=True, kw_only=True)
class FlushRule:
    """How much silence a flush lets the model hear.

    Attributes:
        least_steps: until then something that is held back can still come.
        quiet_steps: so many more steps without text end it.
        most_steps: all that a flush may take.
    """

    least_steps: int
    quiet_steps: int = 8
    most_steps: int = 100

    def over(self, *, silence_steps: int, quiet_steps: int) -> bool:
        """Whether a flush that has fed so much silence, the last part of it without text, is over."""
        settled = silence_steps >= self.least_steps + self.quiet_steps and quiet_steps >= self.quiet_steps
        return settled or silence_steps >= self.most_steps


@dataclass(frozen=True, kw_only=True)
class HeardWord:
    """A word of the preview, with the audio of its steps."""

    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, kw_only=True)
class _Block:
    """What comes next: audio, then silence up to a whole number of steps; `heard`: levelled, for the recogniser."""

    samples: Samples
    audio: int
    heard: Samples

    @property
    def silence(self) -> int:
        return len(self.samples) - self.audio


class Stream:
    """One stream on one slot of an engine.

    Args:
        engine: the pool that it takes a slot of.
        settings: delay and chunk.
        steering: see `StreamEngine.steer`.

    Attributes:
        received: samples fed; processed: those decoded.
        flushing: whether a flush is under way.
        stats: counts so far.

    Raises:
        Overloaded, ConfigError: as `StreamEngine.acquire`.
    """

    def __init__(self, engine: StreamEngine, settings: SessionSettings, steering: object = None) -> None:
        self.engine, self.settings = engine, settings
        self.flushing = False
        self.stats = DecodeStats()
        self._chunk = settings.chunk.chunk_steps * STEP_SAMPLES
        self._watched = WatchdogState()
        self._time(settings)
        self._waiting: deque[Samples] = deque()
        self._owed = 0  # samples that waited when the flush began
        self._block: _Block | None = None
        self._result: RowResult | None = None  # of the block, until it is absorbed
        self._flushed_at = 0
        self._silence = 0  # of the flush under way
        self._quiet_steps = 0
        self._clock = ClockMap()
        self._text = AssemblerState()
        self._quiet = Quiet()
        self._leveller = Leveller()
        self._labels: tuple[int, ...] = ()
        self._closed = False
        self._log_probs: Tensor | None = None
        self._row = engine.acquire(settings, steering)

    def _time(self, settings: SessionSettings) -> None:
        """What follows from how late text may be."""
        late = self.engine.model.lateness_steps(settings)
        self._rule = FlushRule(least_steps=late)
        self._watchdog = Watchdog(grace_steps=late + GRACE_STEPS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def received(self) -> int:
        """Samples fed."""
        return self.stats.audio_samples

    @property
    def processed(self) -> int:
        """Samples of audio decoded."""
        return self._clock.audio

    @property
    def due(self) -> bool:
        """Whether a block can be decoded without more audio."""
        return not self._closed and (self.flushing or self._buffered >= self._chunk)

    @property
    def quiet_ms(self) -> int:
        """For how long the decoded audio has not been louder than its background."""
        return self._quiet.ms

    @property
    def word_open(self) -> bool:
        """Whether a word is under way that was not handed out."""
        return self._text.open

    def steer(self, steering: object) -> None:
        """See `StreamEngine.steer`.

        Raises:
            StreamClosed: after `close`.
            ConfigError: if the engine's scorer cannot be steered so.
        """
        self._check_open()
        self.engine.steer(self._row, steering)

    def preview(self, relabel: Callable[[Tensor], Sequence[int]] | None = None) -> list[HeardWord]:
        """What the CTC head heard lately, committed or not; empty without a head.

        Args:
            relabel: log-probabilities [W, V'+1] to the labels [W] to take; None: the best ones.
        """
        tokenizer = self.engine.model.ctc_tokenizer
        if tokenizer is None:
            return []
        labels = self._labels if relabel is None or self._log_probs is None else relabel(self._log_probs)
        return [
            HeardWord(text=word.text, start_ms=self._step_end_ms(word.first - 1), end_ms=self._step_end_ms(word.last))
            for word in preview_words(labels, tokenizer)
        ]

    def _step_end_ms(self, step: int) -> int:
        """Where a step of the CTC head's window ends on the audio clock."""
        behind = len(self._labels) - 1 - step
        return samples_to_ms(self._clock.to_audio(self._clock.model - behind * STEP_SAMPLES))

    def _locate(self, log_probs: Tensor) -> Locate:
        """Word times from what the CTC head heard."""
        tokenizer = self.engine.model.ctc_tokenizer
        assert tokenizer is not None

        def locate(text: str, first_ms: int, last_ms: int, previous_end_ms: int) -> tuple[int, int] | None:
            return ctc_span_ms(
                text,
                first_ms,
                last_ms,
                log_probs=log_probs.cpu(),
                step_end_ms=[self._step_end_ms(step) for step in range(len(self._labels))],
                tokenizer=tokenizer,
                previous_end_ms=previous_end_ms,
            )

        return locate

    def change_delay(self, delay_steps: int) -> None:
        """Another delay τ, from the next block on.

        Raises:
            StreamClosed: after `close`.
        """
        self._check_open()
        self.settings = replace(self.settings, delay_steps=delay_steps)
        self.engine.change_delay(self._row, delay_steps)
        self._time(self.settings)

    def close(self) -> None:
        """Give the slot back; harmless when called twice."""
        if not self._closed:
            self._closed = True
            self._waiting.clear()
            self.engine.release(self._row)

    def feed(self, samples: Samples) -> None:
        """Take audio; decoding is `advance`'s.

        Args:
            samples: [N] at 16 kHz, any N.

        Raises:
            StreamClosed: after `close`.
            AudioFormatError: if `samples` has another shape.
            InvalidSamples: if it holds NaN or infinity; nothing of it is taken.
        """
        self._check_open()
        if samples.ndim != 1:
            raise AudioFormatError(f"samples have shape {samples.shape}; [N] mono samples are needed")
        finite = np.isfinite(samples)
        if not finite.all():
            at = int(np.argmin(finite))
            raise InvalidSamples(f"sample {self.received + at} is {samples[at]}; samples must be finite")
        if len(samples):
            self._waiting.append(np.array(samples, dtype=np.float32))
            self.stats = replace(self.stats, audio_samples=self.received + len(samples))

    def begin_flush(self) -> None:
        """Let all that was fed be decoded to its last word, on silence; `flushing` until it is.

        Nothing is to be done where nothing came since the last one.

        Raises:
            StreamClosed: after `close`.
        """
        self._check_open()
        if self.flushing or self.received == self._flushed_at or self.received < LEAST_SAMPLES:
            return
        self.flushing, self._silence, self._owed = True, 0, self._buffered

    def _check_open(self) -> None:
        if self._closed:
            raise StreamClosed("the stream was closed; open a new one")

    @property
    def _buffered(self) -> int:
        return self.received - self.processed

    def _next_block(self) -> _Block | None:
        """The block that is due; None if more audio is needed. The same one until its result has been taken."""
        if self._block is None and self.due:
            if not self.flushing or self._owed >= self._chunk:
                self._block = self._levelled(self._take(self._chunk), self._chunk)
            else:
                unit = min(self._chunk, FLUSH_BLOCK_STEPS * STEP_SAMPLES)
                size = min(self._chunk, max(1, -(-self._owed // unit)) * unit)
                audio = self._take(self._owed)
                self._block = self._levelled(np.pad(audio, (0, size - len(audio))), len(audio))
        return self._block

    def _levelled(self, samples: Samples, audio: int) -> _Block:
        heard, self._leveller = self._leveller.step(samples)
        return _Block(samples=samples, audio=audio, heard=heard)

    def _take(self, count: int) -> Samples:
        parts = []
        missing = count
        while missing:
            first = self._waiting.popleft()
            parts.append(first[:missing])
            if len(first) > missing:
                self._waiting.appendleft(first[missing:])
            missing -= len(parts[-1])
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)

    def absorb(self) -> TextDelta:
        """What the block that `decode_due` has decoded adds to the text."""
        block, result = self._block, self._result
        assert block is not None
        assert result is not None
        self._block = self._result = None
        self._clock = self._clock.hear(block.audio).insert(block.silence)
        spoke = [at for at, step in enumerate(result.steps) if step.token != WAIT]
        steps = len(result.steps)
        self._quiet_steps = steps - 1 - spoke[-1] if spoke else self._quiet_steps + steps
        over = False
        if self.flushing:
            self._owed -= block.audio
            self._silence += block.silence
            silence_steps = self._silence // STEP_SAMPLES
            over = not self._owed and self._rule.over(silence_steps=silence_steps, quiet_steps=self._quiet_steps)
        self._count(result)
        self._labels, self._log_probs = result.labels, result.log_probs
        levels = levels_db(block.samples[: block.audio])
        self._quiet = self._quiet.step(levels)
        if not block.silence:
            self._watch(result, levels)
        if over:
            self.flushing, self._flushed_at = False, self.processed
        delta, self._text = self.engine.assembler.step(
            [self._placed(step.token, step.probability, step.frame, step.closes) for step in result.steps],
            self._text,
            heard_ms=samples_to_ms(self.processed),
            last=over,
            locate=None if result.log_probs is None else self._locate(result.log_probs),
        )
        return delta

    def _placed(self, token: int, probability: float, frame: int, closes: bool) -> StepText:
        attended_ms = samples_to_ms(self._clock.to_audio(frame * FRAME_SAMPLES))
        return StepText(token=token, probability=probability, attended_ms=attended_ms, closes=closes)

    def _count(self, result: RowResult) -> None:
        self.stats = replace(
            self.stats,
            decoder_calls=self.stats.decoder_calls + sum(step.decoder_rows > 0 for step in result.steps),
            decoder_rows=self.stats.decoder_rows + sum(step.decoder_rows for step in result.steps),
            steps=self.stats.steps + len(result.steps),
            blocks=self.stats.blocks + 1,
            re_anchors=result.re_anchors,
            drafts={
                name: self.stats.drafts.get(name, DraftCount()) + result.drafts.get(name, DraftCount())
                for name in {*self.stats.drafts, *result.drafts}
            },
        )

    def _watch(self, result: RowResult, levels: list[float]) -> None:
        alarm, self._watched = self._watchdog.step([step.token for step in result.steps], levels, self._watched)
        if alarm is not None:
            self.engine.ask_re_anchor(self._row)
            self.stats = replace(self.stats, watchdog_re_anchors=self.stats.watchdog_re_anchors + 1)

    def transcript(self, log: WordLog) -> Transcript:
        """The transcript of what was fed, its words being those of `log`."""
        return Transcript(
            words=tuple(log.words),
            audio_samples=self.received,
            stats=self.stats,
            settings={"model": self.engine.model.name, **self.settings.to_json(), **self.engine.drafting.to_json()},
        )


def decode_due(streams: Iterable[Stream]) -> list[Stream]:
    """Decodes one block of every stream that has one due, all in one batch; `Stream.absorb` then gives its text.

    A block is decoded once: after an error, the same call leaves out the streams whose result was not absorbed yet.

    Args:
        streams: of one engine.
    Returns:
        those that have something to absorb; empty if none has a block due.
    Raises:
        ConfigError: if they are not all of one engine.
    """
    due = [(stream, block) for stream in streams if (block := stream._next_block()) is not None]
    if not due:
        return []
    engine = due[0][0].engine
    if any(stream.engine is not engine for stream, _ in due):
        raise ConfigError("the streams belong to several engines; a batch is one engine's")
    fresh = {stream._row: block.heard for stream, block in due if stream._result is None}
    results = engine.step(fresh)
    for stream, _ in due:
        stream._result = results.get(stream._row, stream._result)
    return [stream for stream, _ in due]


def advance(streams: Iterable[Stream]) -> list[tuple[Stream, TextDelta]]:
    """`decode_due`, and what it adds to the text of each."""
    return [(stream, stream.absorb()) for stream in decode_due(streams)]


Audio = np.ndarray | torch.Tensor | str | os.PathLike[str]


def transcribe(
    model: Model,
    audio: Audio,
    *,
    delay_ms: int = 480,
    chunk_ms: int = 320,
    drafting: Drafting | None = None,
    scorer: TokenScorer | None = None,
) -> Transcript:
    """The words of a recording, written as if it had been streamed.

    Args:
        model: what `asr.load` gave.
        audio: a file of any kind, or [N] mono samples at 16 kHz in [-1, 1]; none give an empty transcript.
        delay_ms: how long the model may listen past a word's end.
        chunk_ms: how much audio the encoder takes at once.
        drafting: how the decoder is spared; what is written does not depend on it in its exact mode, the default.
        scorer: scores of text, such as `lm_fusion.fusion.Fusion.of(model, slots=1, phrases=["Kubernetes"])`.

    Raises:
        ConfigError: if the model was not made for the delay and the chunk.
        AudioFormatError: if the file or the samples cannot be used; EmptyAudio if a file has no sample.

    Example:
        >>> transcribe(asr.load("earlybird-en"), "speech.flac").text  # doctest: +SKIP
        'The birch canoe slid on the smooth planks.'
    """
    settings = model.settings(delay_ms=delay_ms, chunk_ms=chunk_ms)
    log = WordLog()
    engine = StreamEngine(model, slots=1, chunks=[settings.chunk], drafting=drafting, scorer=scorer)
    with Stream(engine, settings) as stream:
        for samples in _pieces(audio):
            stream.feed(samples)
            while moved := advance([stream]):
                log.add(moved[0][1])
        stream.begin_flush()
        while moved := advance([stream]):
            log.add(moved[0][1])
        return stream.transcript(log)


def _pieces(audio: Audio) -> Iterator[Samples]:
    if isinstance(audio, str | os.PathLike):
        with open_audio(audio) as source:
            yield from source.blocks()
        return
    samples = audio.detach().cpu().numpy() if isinstance(audio, torch.Tensor) else np.asarray(audio)
    if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
        raise AudioFormatError(
            f"audio has shape {samples.shape} and type {samples.dtype}; [N] mono float samples at {SAMPLE_RATE} Hz are "
            "needed"
        )
    for start in range(0, len(samples), 4 * SAMPLE_RATE):
        yield samples[start : start + 4 * SAMPLE_RATE]
