"""A session: audio in pieces of any size and at any rate goes in, events come out. No I/O; time is an argument."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from asr.channels import Channel, ChannelMixer
from asr.drafting import Drafting
from asr.errors import AudioFormatError, ConfigError, StreamClosed
from asr.model import Model
from asr.pcm import BYTES_PER_SAMPLE, PcmDecoder, PcmEncoding
from asr.resample import Resampler, Samples
from asr.slots import StreamEngine
from asr.text import TextDelta, WordLog
from asr.transcriber import Stream, decode_due
from asr.units import SAMPLE_RATE, STEP_MS, samples_to_ms
from asr.words import DecodeStats, Transcript
from lm_fusion.fusion import Fusion
from lm_fusion.ngram import Automaton
from lm_fusion.phrases import Phrase, PhraseAnswer
from streaming.emission_delay import EmissionDelayMeter
from streaming.endpoint import EndpointConfig, Endpointer
from streaming.events import Closed, Event, Flushed, Heartbeat, Tail, Words
from streaming.steering import SessionSteering
from streaming.tail import TailState, commit, settle, tail_text

__all__ = ["Session", "advance_sessions"]


class _ByteIntake:
    """PCM bytes to mono samples at 16 kHz; may be drained and go on."""

    def __init__(self, encoding: PcmEncoding, *, sample_rate: int, channels: int, channel: Channel) -> None:
        self._encoding: PcmEncoding = encoding
        self._sample_rate, self._channels, self._channel = sample_rate, channels, channel
        self._decoder = self._fresh()
        self._frame_bytes = BYTES_PER_SAMPLE[encoding] * channels
        self._rest = b""
        self._warnings: list[str] = []

    def _fresh(self) -> PcmDecoder:
        return PcmDecoder(self._encoding, sample_rate=self._sample_rate, channels=self._channels, channel=self._channel)

    def step(self, data: bytes) -> Samples:
        data = self._rest + data
        whole = len(data) - len(data) % self._frame_bytes
        self._rest = data[whole:]
        return self._decoder.step(data[:whole])

    def drain(self) -> Samples:
        """What is owed; bytes of an unfinished frame are kept."""
        samples = self._decoder.finish()
        self._warnings = self._all_warnings()
        self._decoder = self._fresh()
        return samples

    def _all_warnings(self) -> list[str]:
        return [*self._warnings, *(w for w in self._decoder.warnings() if w not in self._warnings)]

    def warnings(self) -> list[str]:
        found = self._all_warnings()
        if self._rest:
            found.append(
                f"the stream ended with {len(self._rest)} bytes of an unfinished frame; a frame has {self._frame_bytes}"
            )
        return found


class _ArrayIntake:
    """Float arrays to mono samples at 16 kHz; may be drained and go on."""

    def __init__(self, *, sample_rate: int, channels: int, channel: Channel) -> None:
        self._channels = channels
        self._mixer = ChannelMixer(channels=channels, channel=channel)
        self._resampler = Resampler(sample_rate)

    def step(self, audio: Samples) -> Samples:
        fits = (audio.ndim == 2 and audio.shape[1] == self._channels) or (audio.ndim == 1 and self._channels == 1)
        if audio.dtype != np.float32 or not fits:
            raise AudioFormatError(
                f"the array has shape {audio.shape} and type {audio.dtype}; float32 [N, {self._channels}] is needed"
            )
        return self._resampler.step(self._mixer.step(audio.reshape(-1, self._channels)))

    def drain(self) -> Samples:
        samples = self._resampler.finish()
        self._resampler = Resampler(self._resampler.source_rate)
        return samples

    def warnings(self) -> list[str]:
        return self._mixer.warnings()


class Session:
    """One live stream.

    Memory is constant: no audio is kept beyond the block under way; of the text only the segment under way, and the
    words themselves if `keep_words` is set.

    Args:
        model: what `asr.load` gave.
        delay_ms, chunk_ms: see `asr.transcribe`.
        encoding, sample_rate, channels, channel: what `feed_audio` gets; arrays are float32 at the same rate.
        engine: a pool that sessions share; None: one of its own with one slot.
        keep_words: whether `transcript` is wanted: a few hundred bytes a word for as long as the session lives.
        endpoint: when a segment ends.
        phrases: what shall be recognised more readily; None: what the engine has for everybody. `update` changes them.
        boost: nats a piece of the phrases without a boost of their own.
        lm: an n-gram model over the decoder's pieces, or its file; with an engine that is shared, the engine's own.
        lm_weight: how much it counts.
        drafting: how the decoder is spared, see `asr.transcribe`; with an engine that is shared, the engine's own.

    Attributes:
        delays: the word emission delays so far.

    Raises:
        ConfigError: if a setting cannot work, the message says which and what can.
        PhraseError: if the list cannot be used; what is wrong with a single phrase is said in `phrase_answers`.
        LanguageModelError: if the n-gram model cannot be used.
        Overloaded: if the engine has no free slot.
    """

    def __init__(
        self,
        model: Model,
        *,
        delay_ms: int = 480,
        chunk_ms: int = 320,
        encoding: PcmEncoding = "pcm_s16le",
        sample_rate: int = SAMPLE_RATE,
        channels: int = 1,
        channel: Channel = "mix",
        engine: StreamEngine | None = None,
        keep_words: bool = True,
        endpoint: EndpointConfig | None = None,
        phrases: Iterable[str | Phrase] | None = None,
        boost: float | None = None,
        lm: str | Path | Automaton | None = None,
        lm_weight: float | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        settings = model.settings(delay_ms=delay_ms, chunk_ms=chunk_ms)
        if engine is not None and engine.model is not model:
            raise ConfigError(f"the engine runs {engine.model.name!r}, the session asks for {model.name!r}")
        if engine is not None and drafting not in (None, engine.drafting):
            raise ConfigError(f"the engine drafts by {engine.drafting}, the session asks for {drafting}")
        self._bytes = _ByteIntake(encoding, sample_rate=sample_rate, channels=channels, channel=channel)
        self._arrays = _ArrayIntake(sample_rate=sample_rate, channels=channels, channel=channel)
        self._fed: type | None = None
        self._model = model
        self.delays = EmissionDelayMeter()
        lateness_ms = model.lateness_steps(settings) * STEP_MS
        self._endpointer = Endpointer(delay_ms=delay_ms, lateness_ms=lateness_ms, config=endpoint)
        self._log = WordLog() if keep_words else None
        self._word_count = 0
        self._tail, self._shown = TailState(), ""
        self._events: list[Event] = []
        self._call_ms: int | None = None
        self._flush_owed = False
        self._failure: Exception | None = None
        if engine is None:
            scorer = Fusion.of(model, slots=1, lm=lm, lm_weight=lm_weight)
            engine = StreamEngine(model, slots=1, chunks=[settings.chunk], drafting=drafting, scorer=scorer)
            lm = scorer.lm
        self._steering = SessionSteering(engine.scorer, lm)
        steering = self._steering.update(phrases=phrases, boost=boost, lm_weight=lm_weight)
        self._stream = Stream(engine, settings, steering)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(decode_rest=kind is None)

    @property
    def _intake(self) -> _ByteIntake | _ArrayIntake:
        return self._arrays if self._fed is np.ndarray else self._bytes

    @property
    def stats(self) -> DecodeStats:
        """Counts so far."""
        return self._stream.stats

    @property
    def due(self) -> bool:
        """Whether a block can be decoded without more audio: `advance_sessions` does."""
        return self._stream.due

    @property
    def flushing(self) -> bool:
        """Whether a flush is under way."""
        return self._flush_owed

    @property
    def delay_ms(self) -> int:
        """τ as it is now."""
        return self._stream.settings.delay_steps * STEP_MS

    @property
    def received_ms(self) -> int:
        """Audio taken."""
        return samples_to_ms(self._stream.received)

    @property
    def processed_ms(self) -> int:
        """Audio decoded."""
        return samples_to_ms(self._stream.processed)

    def feed_audio(self, audio: bytes | Samples, now_ms: int | None = None) -> None:
        """Takes audio and decodes every block that is whole.

        Args:
            audio: bytes of any number in the session's encoding, or a float32 array [N] or [N, channels]; a session
                gets the one or the other.
            now_ms: the caller's clock, for delays as a listener has them.

        Raises:
            StreamClosed: after `close`.
            AudioFormatError: if it is not what was declared; ConfigError, if bytes and arrays come in one session.
            InvalidSamples: if it holds NaN or infinity. The session stays open.
        """
        self.take_audio(audio, now_ms)
        self._run()

    def take_audio(self, audio: bytes | Samples, now_ms: int | None = None) -> None:
        """Takes audio and decodes nothing: that is `advance_sessions`'s. Arguments and errors as `feed_audio`."""
        self._check_open()
        samples = self._decoded(audio)
        self._stream.feed(samples)
        self._call_ms = now_ms
        if now_ms is not None:
            self.delays.arrived(received_ms=self.received_ms, now_ms=now_ms)

    @property
    def phrase_answers(self) -> tuple[PhraseAnswer, ...]:
        """What became of each of the session's own phrases."""
        return self._steering.answers

    def update(
        self,
        *,
        phrases: Iterable[str | Phrase] | None = None,
        boost: float | None = None,
        lm_weight: float | None = None,
    ) -> tuple[PhraseAnswer, ...]:
        """Other phrases or weights, from the next step on; what is None stays as it was.

        Returns:
            `phrase_answers`.
        Raises:
            StreamClosed: after `close`.
            PhraseError, ConfigError: if they cannot be used, or the engine cannot be steered; nothing has changed then.
        """
        self._check_open()
        steering = self._steering.update(phrases=phrases, boost=boost, lm_weight=lm_weight)
        if steering is not None:
            self._stream.steer(steering)
        return self._steering.answers

    def change_delay(self, delay_ms: int) -> None:
        """Another delay τ, from the next block on.

        Raises:
            StreamClosed: after `close`.
            ConfigError: if the model was not made for it.
        """
        self._check_open()
        settings = self._model.settings(delay_ms=delay_ms, chunk_ms=self._stream.settings.chunk.chunk_steps * STEP_MS)
        self._stream.change_delay(settings.delay_steps)
        self._endpointer.change_delay(delay_ms=delay_ms, lateness_ms=self._model.lateness_steps(settings) * STEP_MS)

    def _decoded(self, audio: bytes | Samples) -> Samples:
        kind: type = np.ndarray if isinstance(audio, np.ndarray) else bytes
        if self._fed not in (None, kind):
            raise ConfigError("the session gets both bytes and arrays; one of them is needed")
        samples = self._arrays.step(audio) if isinstance(audio, np.ndarray) else self._bytes.step(bytes(audio))
        self._fed = kind
        return samples

    def flush(self, now_ms: int | None = None) -> None:
        """Decodes what is there to its last word, at once; answered by one `Flushed`. The session goes on.

        Raises:
            StreamClosed: after `close`.
            ConfigError: while another flush is under way.
        """
        self.begin_flush(now_ms)
        self._run()

    def begin_flush(self, now_ms: int | None = None) -> None:
        """As `flush`, but the decoding is `advance_sessions`'s: `Flushed` comes when it is done. Errors as `flush`."""
        self._check_open()
        if self._flush_owed:
            raise ConfigError("a flush is under way; wait for its Flushed before the next one")
        self._call_ms = now_ms
        self._begin_rest()
        self._flush_owed = True
        self._settle()

    def _begin_rest(self) -> None:
        if self._fed is not None:
            self._stream.feed(self._intake.drain())
        self._stream.begin_flush()

    def _decode_rest(self) -> None:
        if not self._flush_owed:
            self._begin_rest()
        self._run()
        self._end_text()

    def _end_text(self) -> None:
        """What is over when all that was heard has been decoded to its last word."""
        self._tail = settle(self.processed_ms, self._tail)
        self._show("")
        self._events.extend(
            self._endpointer.step(TextDelta(), processed_ms=0, quiet_ms=0, word_open=False, flushed=True)
        )

    def _settle(self) -> None:
        """Answers a flush that is over."""
        if self._flush_owed and not self._stream.flushing:
            self._flush_owed = False
            self._end_text()
            self._events.append(Flushed(audio_ms=self.received_ms))

    def close(self, now_ms: int | None = None, *, decode_rest: bool = True) -> None:
        """Ends the session; `Closed` is its last event. Harmless when called twice.

        Args:
            now_ms: the caller's clock.
            decode_rest: whether the last words are wanted; False only gives the slot back.
        """
        if self._closed:
            return
        self._call_ms = now_ms
        try:
            if decode_rest:
                self._decode_rest()
        finally:
            self._closed = True
            warnings = tuple(self._intake.warnings())
            self._events.append(Closed(audio_ms=self.received_ms, stats=self._stream.stats, warnings=warnings))
            self._stream.close()

    def events(self, now_ms: int | None = None) -> list[Event]:
        """What happened since the last call; also after `close`.

        Args:
            now_ms: the caller's clock as it hands the words on; else that of the call that decoded them counts, and the
                time of decoding is left out of the delays.
        """
        drained, self._events = self._events, []
        for event in drained:
            if isinstance(event, Words):
                for word in event.words:
                    self.delays.committed(word, now_ms=self._call_ms if now_ms is None else now_ms)
        return drained

    def transcript(self) -> Transcript:
        """All words so far, as a finished recording's.

        Raises:
            ConfigError: if the session does not keep its words.
        """
        if self._log is None:
            raise ConfigError("the session was opened with keep_words=False; its words were handed out as events")
        return self._stream.transcript(self._log)

    def _check_open(self) -> None:
        if self._closed:
            raise StreamClosed("the session was closed; open a new one")

    def _run(self) -> None:
        """Decodes all blocks that are due."""
        while advance_sessions([self], self._call_ms):
            pass

    def _moved(self, delta: TextDelta, now_ms: int | None) -> None:
        """What a block of it gave."""
        self._call_ms = now_ms
        self._tell(delta)
        self._replace(Heartbeat(received_ms=self.received_ms, processed_ms=self.processed_ms))
        self._settle()

    def _replace(self, event: Tail | Heartbeat) -> None:
        """Adds an event that replaces the one before of its kind: what nobody has seen of those is out of date."""
        for at in range(len(self._events) - 1, -1, -1):
            if type(self._events[at]) is type(event):
                del self._events[at]
                break
        self._events.append(event)

    def _show(self, text: str) -> None:
        """Says what the tail is, where it has changed."""
        if text != self._shown:
            self._shown = text
            self._replace(Tail(text=text))

    def _tell(self, delta: TextDelta) -> None:
        if delta.text:
            self._events.append(
                Words(text=delta.text, words=delta.words, first=self._word_count, amended=delta.amended)
            )
            self._word_count += len(delta.words)
            if self._log is not None:
                self._log.add(delta)
        self._events.extend(
            self._endpointer.step(
                delta,
                processed_ms=samples_to_ms(self._stream.processed),
                quiet_ms=self._stream.quiet_ms,
                word_open=self._stream.word_open,
                flushed=False,
            )
        )
        self._tail = commit(delta, self._tail)
        if not self._stream.flushing:
            self._show(tail_text(self._stream.preview(self._steering.relabel), self._tail))


def advance_sessions(sessions: Iterable[Session], now_ms: int | None = None) -> list[Session]:
    """Decodes one block of every session that has one due, all in one batch.

    Should one of them make it raise, the same call may be made again without that one: no block is decoded twice. The
    one raises every time.

    Args:
        sessions: of one engine.
        now_ms: the caller's clock.
    Returns:
        those that moved; empty if none has a block due.
    Raises:
        ConfigError: if they are not all of one engine.
    """
    by_stream = {session._stream: session for session in sessions}
    moved = []
    for session in by_stream.values():
        if session._failure is not None:
            raise session._failure
    for stream in decode_due(by_stream):
        try:
            by_stream[stream]._moved(stream.absorb(), now_ms)
        except Exception as error:
            by_stream[stream]._failure = error
            raise
        moved.append(by_stream[stream])
    return moved
