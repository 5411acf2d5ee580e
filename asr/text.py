"""Step outputs to words: which pieces make a word, when it is closed, where it was spoken. State in, state out."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from asr.recogniser import WAIT
from asr.vocabulary import Vocabulary
from asr.words import Word

Locate = Callable[[str, int, int, int], tuple[int, int] | None]
"""(text, first_ms, last_ms, previous_end_ms) of a word to its start and end in ms, or None if they are not known."""

LONGEST_WORD = 256
"""Characters after which a word is broken: text without any space must not grow a stream's state."""

SHORTEST_WORD_MS = 20


@dataclass(frozen=True, kw_only=True)
class StepText:
    """One step's output, placed on the audio clock.

    Attributes:
        token: the committed piece, or WAIT. probability: of the piece.
        attended_ms: the end of the frame that the piece was read from.
        closes: whether a wait closed the word under way.
    """

    token: int
    probability: float = 1.0
    attended_ms: int = 0
    closes: bool = False


@dataclass(frozen=True, kw_only=True)
class TextDelta:
    """What a call added to the text; append-only.

    Attributes:
        text: exactly what is appended, leading space included: all deltas' texts in a row are the transcript.
        words: new words, all closed.
        amended: the word that later pieces joined, with its number from the stream's start, or None. It is the one
            before `words`.
    """

    text: str = ""
    words: tuple[Word, ...] = ()
    amended: tuple[int, Word] | None = None


class WordLog:
    """The words of a stream, made of its deltas.

    Attributes:
        words: as they are now.
    """

    def __init__(self) -> None:
        self.words: list[Word] = []

    def add(self, delta: TextDelta) -> None:
        """Take one more delta, in order."""
        if delta.amended is not None:
            index, word = delta.amended
            self.words[index] = word
        self.words.extend(delta.words)


@dataclass(frozen=True, kw_only=True)
class OpenWord:
    """The newest word, closed or not.

    Attributes:
        text: its characters; half: the bytes of one that is not whole yet.
        closed: whether it has been.
        delivered: characters of it that were handed out; record, index: what was handed out last, and its number.
        pieces, log_probability: how many, and the sum of their log-probabilities.
        first_ms: the end of the frame that its first piece was read from; last_ms, emitted_ms: of its last piece with a
            letter or digit (of its last piece, as long as there is none); lettered: whether there is one.
    """

    text: str = ""
    half: bytes = b""
    closed: bool = False
    delivered: int = 0
    record: Word | None = None
    index: int = -1
    pieces: int = 0
    log_probability: float = 0.0
    first_ms: int = 0
    last_ms: int = 0
    emitted_ms: int = 0
    lettered: bool = False


@dataclass(frozen=True, kw_only=True)
class AssemblerState:
    """Attributes: word: the newest; count: words handed out; previous_end_ms: end of the word before the newest."""

    word: OpenWord | None = None
    count: int = 0
    previous_end_ms: int = 0

    @property
    def open(self) -> bool:
        """Whether a word is under way."""
        return self.word is not None and not self.word.closed


@dataclass
class _Collected:
    """One call's delta in the making."""

    locate: Locate | None
    text: list[str] = field(default_factory=list)
    words: dict[int, Word] = field(default_factory=dict)
    amended: tuple[int, Word] | None = None

    def delta(self) -> TextDelta:
        return TextDelta(text="".join(self.text), words=tuple(self.words.values()), amended=self.amended)


def word_span_ms(first_ms: int, last_ms: int, *, letters: int, previous_end_ms: int, heard_ms: int) -> tuple[int, int]:
    """When a word was spoken, from the frames that its pieces were read from.

    Whisper's alignment heads look 0.3 s past the onset of a piece, with little spread; where a word ends they do not
    say, so its length is estimated from its letters. Constants: least absolute error against forced alignments
    (RESULTS.md, "word times").

    Args:
        first_ms, last_ms: the end of the frame that its first piece was read from, and its last one with a letter.
        letters: letters and digits of the word.
        previous_end_ms: the end of the word before; words overlap only where there is no room.
        heard_ms: the audio so far, at least 1.
    Returns:
        start and end, 0 <= start < end <= heard_ms.

    >>> word_span_ms(800, 1000, letters=5, previous_end_ms=460, heard_ms=2000)
    (500, 866)
    """
    onset = first_ms - 300
    end = onset + 30 + 60 * letters + (last_ms - first_ms) * 18 // 100
    return within(onset, end, previous_end_ms=previous_end_ms, heard_ms=heard_ms)


def within(start_ms: int, end_ms: int, *, previous_end_ms: int, heard_ms: int) -> tuple[int, int]:
    """The span nearest to one asked for with 0 <= start < end <= heard_ms and, where there is room, behind the word
    before."""
    end = min(max(end_ms, previous_end_ms + SHORTEST_WORD_MS), heard_ms)
    return max(0, min(max(start_ms, previous_end_ms), end - SHORTEST_WORD_MS)), end


class WordAssembler:
    """Pieces to words, as a vocabulary cuts them.

    A piece that begins with white space begins a word; any other joins the word before, also one that was closed
    (late punctuation). A word is closed when the next one begins, when a wait says that it is over, or at a flush.

    Args:
        vocabulary: the pieces.
        size: ids that the recogniser may write.
    """

    def __init__(self, vocabulary: Vocabulary, size: int) -> None:
        self._pieces = (vocabulary.pieces + [b""] * size)[:size]
        self._letters: list[bool] = vocabulary.letters(size).tolist()

    def step(
        self,
        steps: Sequence[StepText],
        state: AssemblerState,
        *,
        heard_ms: int,
        last: bool = False,
        locate: Locate | None = None,
    ) -> tuple[TextDelta, AssemblerState]:
        """The words that a block's steps closed.

        Args:
            steps: the block's outputs in order.
            state: what the call before left.
            heard_ms: audio that had to arrive for them, at least 1 where there is a piece.
            last: whether a flush ends here: what is open is closed, and half a character becomes U+FFFD.
            locate: knows better than `word_span_ms` when a word was spoken, or answers None.
        Returns:
            what is new, and the new state.
        """
        new = _Collected(locate)
        for step in steps:
            if step.token == WAIT:
                if step.closes and state.word is not None:
                    state = _close(state, new, heard_ms)
                continue
            piece = self._pieces[step.token]
            lettered = self._letters[step.token]
            if state.word is None or piece[:1].isspace() or len(state.word.text) >= LONGEST_WORD:
                state = _begin(_finish(state, new, heard_ms))
            state = _join(state, piece, lettered, step, heard_ms)
            if state.word is not None and state.word.closed:
                state = _deliver(state, new, heard_ms)
        if last:
            state = _finish(state, new, heard_ms)
        return new.delta(), state


def _begin(state: AssemblerState) -> AssemblerState:
    """The state in which a new word stands open; the one before has been finished."""
    old = state.word
    end = state.previous_end_ms if old is None or old.record is None else old.record.end_ms
    return replace(state, word=OpenWord(), previous_end_ms=end)


def _join(state: AssemblerState, piece: bytes, lettered: bool, step: StepText, heard_ms: int) -> AssemblerState:
    """The state in which the newest word has one more piece."""
    assert state.word is not None
    word = state.word
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoded = decoder.decode(word.half + piece)
    word = replace(
        word,
        text=word.text + "".join(decoded.split()),
        half=decoder.getstate()[0],
        pieces=word.pieces + 1,
        log_probability=word.log_probability + math.log(max(step.probability, 1e-12)),
        first_ms=word.first_ms if word.pieces else step.attended_ms,
    )
    if lettered or not word.lettered:
        last_ms = step.attended_ms if lettered != word.lettered else max(word.last_ms, step.attended_ms)
        word = replace(word, last_ms=last_ms, emitted_ms=heard_ms, lettered=lettered or word.lettered)
    return replace(state, word=word)


def _close(state: AssemblerState, new: _Collected, heard_ms: int) -> AssemblerState:
    """The state in which the newest word is closed and handed out; half a character may still become whole."""
    assert state.word is not None
    return _deliver(replace(state, word=replace(state.word, closed=True)), new, heard_ms)


def _finish(state: AssemblerState, new: _Collected, heard_ms: int) -> AssemblerState:
    """As `_close`, and half a character is one that cannot be read."""
    word = state.word
    if word is None:
        return state
    if word.half:
        state = replace(state, word=replace(word, text=word.text + "\ufffd", half=b""))
    return _close(state, new, heard_ms)


def _deliver(state: AssemblerState, new: _Collected, heard_ms: int) -> AssemblerState:
    """Hands out what the newest word has that was not handed out yet."""
    word = state.word
    assert word is not None
    fresh = word.text[word.delivered :]
    if not fresh:
        return state
    index = state.count if word.record is None else word.index
    if word.record is None and index:
        new.text.append(" ")
    new.text.append(fresh)
    start_ms, end_ms = _span(word, state.previous_end_ms, heard_ms, new.locate)
    record = Word(
        text=word.text,
        start_ms=start_ms,
        end_ms=end_ms,
        emitted_ms=word.emitted_ms,
        confidence=math.exp(word.log_probability / word.pieces),
    )
    if word.record is None or index in new.words:
        new.words[index] = record
    else:
        new.amended = (index, record)
    word = replace(word, delivered=len(word.text), index=index, record=record)
    return replace(state, word=word, count=max(state.count, index + 1))


def _span(word: OpenWord, previous_end_ms: int, heard_ms: int, locate: Locate | None) -> tuple[int, int]:
    """When a word was spoken; what was said of it once stays, unless it has got longer."""
    letters = sum(character.isalnum() for character in word.text)
    if word.record is not None and letters == sum(character.isalnum() for character in word.record.text):
        return word.record.start_ms, word.record.end_ms
    found = None if locate is None else locate(word.text, word.first_ms, word.last_ms, previous_end_ms)
    if found is not None:
        return within(*found, previous_end_ms=previous_end_ms, heard_ms=heard_ms)
    return word_span_ms(
        word.first_ms, word.last_ms, letters=letters, previous_end_ms=previous_end_ms, heard_ms=heard_ms
    )
