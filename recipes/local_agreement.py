"""LocalAgreement-2: a Whisper that hears whole utterances, streamed by writing what two looks in a row agree on.

The algorithm of whisper_streaming (Macháček, Dabre and Bojar, 2023, "Turning Whisper into Real-Time Transcription
System"), with its constants: the audio since the last cut is transcribed anew with every chunk; the longest common
prefix of this hypothesis and the one before it is committed; above 15 s the audio is cut at the end of a segment that
lies within what is committed; the last 200 characters before the cut are the next look's prompt.

Time is an argument: `audio_clock` says when each word was committed by the audio that had arrived, `wall_clock` adds
what the looks took, on a simulated clock on which a look begins when its chunk has arrived and the look before it is
done, and hears all that has arrived by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from asr.errors import ConfigError
from asr.resample import Samples
from asr.units import SAMPLE_RATE, samples_to_ms
from asr.words import Word

__all__ = ["Agreement", "Hypothesis", "Look", "Streamed", "TimedWord", "audio_clock", "finish", "update", "wall_clock"]

KEPT_MS = 15_000
"""Longer audio is cut at a segment."""
PROMPT_CHARACTERS = 200
COMMON_WORDS = 5
"""So many words at the border may have been committed already and be heard again."""
BEHIND_MS = 100
"""A word that begins earlier than this before the end of what is committed has been committed."""
BORDER_MS = 1000
"""Words that begin farther from the end of what is committed are not taken for the same words."""
SAMPLES_PER_MS = SAMPLE_RATE // 1000


@dataclass(frozen=True, kw_only=True)
class TimedWord:
    """What a transcriber takes for a word.

    Attributes:
        text: with the space before it, if it has one.
        start_ms, end_ms: when it believes the word to be spoken.
        confidence: the word's probability, in [0, 1].
    """

    text: str
    start_ms: int
    end_ms: int
    confidence: float


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """What a transcriber hears in some audio, times from its start.

    Attributes:
        words: in their order.
        segment_ends_ms: where each of the transcriber's segments ends, rising.
    """

    words: tuple[TimedWord, ...]
    segment_ends_ms: tuple[int, ...]


Transcribe = Callable[[Samples, str], Hypothesis]
"""([N] samples at 16 kHz, prompt) → what is heard."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A stream between two looks.

    Attributes:
        audio: [N] samples at 16 kHz since the last cut.
        cut_ms: when that was.
        committed: all words written so far; times on the stream's clock, as in `open`.
        open: the words of the newest hypothesis that no second one has confirmed.
    """

    audio: Samples = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    cut_ms: int = 0
    committed: tuple[TimedWord, ...] = ()
    open: tuple[TimedWord, ...] = ()

    @property
    def prompt(self) -> str:
        """The last 200 characters, in whole words, of what was spoken before the cut; never the newest word."""
        before = max(0, len(self.committed) - 1)
        while before and self.committed[before - 1].end_ms > self.cut_ms:
            before -= 1
        first, characters = before, 0
        while first and characters < PROMPT_CHARACTERS:
            first -= 1
            characters += len(self.committed[first].text) + 1
        return "".join(word.text for word in self.committed[first:before])


def update(state: Agreement, audio: Samples, transcribe: Transcribe) -> tuple[Agreement, tuple[TimedWord, ...]]:
    """One look at all audio since the last cut, [N] new samples included.

    Returns:
        The next state, and the words committed by this look.
    """
    heard = np.concatenate([state.audio, audio])
    found = transcribe(heard, state.prompt)
    words = tuple(
        replace(word, start_ms=word.start_ms + state.cut_ms, end_ms=word.end_ms + state.cut_ms) for word in found.words
    )
    words = _not_yet_committed(state, words)
    agreed = 0
    while agreed < min(len(words), len(state.open)) and words[agreed].text == state.open[agreed].text:
        agreed += 1
    after = replace(state, audio=heard, committed=state.committed + words[:agreed], open=words[agreed:])
    return _cut(after, found.segment_ends_ms), words[:agreed]


def finish(state: Agreement) -> tuple[TimedWord, ...]:
    """The words still open: without more audio they are taken as they are."""
    return state.open


def _not_yet_committed(state: Agreement, words: tuple[TimedWord, ...]) -> tuple[TimedWord, ...]:
    end_ms = state.committed[-1].end_ms if state.committed else 0
    words = tuple(word for word in words if word.start_ms > end_ms - BEHIND_MS)
    if not words or abs(words[0].start_ms - end_ms) >= BORDER_MS:
        return words
    in_audio = [word.text for word in state.committed if word.end_ms > state.cut_ms]
    for count in range(1, min(len(in_audio), len(words), COMMON_WORDS) + 1):
        if in_audio[-count:] == [word.text for word in words[:count]]:
            return words[count:]
    return words


def _cut(state: Agreement, segment_ends_ms: tuple[int, ...]) -> Agreement:
    """Forgets the audio of the segments that are committed, never of the last one, once there is too much of it."""
    if samples_to_ms(len(state.audio)) <= KEPT_MS or not state.committed:
        return state
    whole = [end for end in segment_ends_ms[:-1] if state.cut_ms + end <= state.committed[-1].end_ms]
    if not whole:
        return state
    return replace(state, audio=state.audio[whole[-1] * SAMPLES_PER_MS :], cut_ms=state.cut_ms + whole[-1])


# -- a whole recording ----------------------------------------------------------------------------------------------

Look = Callable[[Samples, str], tuple[Hypothesis, float]]
"""A transcriber that also says how many seconds it took."""


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """Attributes: words: with the times at which they were emitted. seconds: what all looks took."""

    words: tuple[Word, ...]
    seconds: float


def audio_clock(samples: Samples, look: Look, *, chunk_ms: int) -> Streamed:
    """Streams [N] samples in chunks; a word is emitted with the audio that had arrived for its look.

    Raises:
        ConfigError: if the chunk is not above 0.
    """
    return _streamed(samples, look, chunk_ms=chunk_ms, compute=0.0)


def wall_clock(samples: Samples, look: Look, *, chunk_ms: int) -> Streamed:
    """Streams [N] samples as they are spoken; a word is emitted when its look is done.

    A look begins when a chunk has arrived since the last one began and that one is done; the end of the audio is known
    at once. So where looks take longer than a chunk there are fewer of them, each with more new audio.

    Raises:
        ConfigError: if the chunk is not above 0.
    """
    return _streamed(samples, look, chunk_ms=chunk_ms, compute=1.0)


def _streamed(samples: Samples, look: Look, *, chunk_ms: int, compute: float) -> Streamed:
    if chunk_ms < 1:
        raise ConfigError(f"chunk_ms is {chunk_ms}; a chunk of 1 ms or more is needed")
    took = total = 0.0

    def timed(audio: Samples, prompt: str) -> Hypothesis:
        nonlocal took
        found, took = look(audio, prompt)
        return found

    state, emitted = Agreement(), list[tuple[TimedWord, int]]()
    end_ms = -(-len(samples) // SAMPLES_PER_MS)
    fed_ms = now_ms = 0
    while fed_ms < end_ms:
        now_ms = max(now_ms, min(fed_ms + chunk_ms, end_ms))
        begin, fed_ms = fed_ms, min(now_ms, end_ms)
        state, words = update(state, samples[begin * SAMPLES_PER_MS : fed_ms * SAMPLES_PER_MS], timed)
        total += took
        now_ms += round(1000 * compute * took)
        emitted += [(word, now_ms) for word in words]
    emitted += [(word, now_ms) for word in finish(state)]
    return Streamed(words=_joined(emitted, samples_to_ms(len(samples))), seconds=total)


def _joined(emitted: list[tuple[TimedWord, int]], duration_ms: int) -> tuple[Word, ...]:
    """Words as they are read: what has no space before it belongs to the word before, and that is whole with it."""
    words: list[Word] = []
    for part, emitted_ms in emitted:
        text = part.text.strip()
        end_ms = max(1, min(part.end_ms, duration_ms))
        if words and text and not part.text[0].isspace():
            last = words[-1]
            confidence = min(last.confidence, part.confidence)
            words[-1] = replace(
                last,
                text=last.text + text,
                end_ms=max(last.end_ms, end_ms),
                emitted_ms=emitted_ms,
                confidence=confidence,
            )
        elif text:
            start_ms = max(0, min(part.start_ms, end_ms - 1))
            words.append(
                Word(text=text, start_ms=start_ms, end_ms=end_ms, emitted_ms=emitted_ms, confidence=part.confidence)
            )
    return tuple(words)
