"""Phrase lists: plain text in, an automaton and an answer for each phrase out; equal lists are built once."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.errors import PhraseError
from lm_fusion.phrases_graph import Entry, PhraseGraph, build_graph
from lm_fusion.spelling import Spelling, tidy

__all__ = [
    "DEFAULT_BOOST",
    "MAX_BOOST",
    "MAX_PHRASES",
    "MAX_PIECES",
    "UNHEARD_BOOST",
    "Phrase",
    "PhraseAnswer",
    "PhraseBuilder",
    "PhraseList",
    "read_phrases",
]

DEFAULT_BOOST = 2.0
UNHEARD_BOOST = 0.75
"""The default where no CTC head says which phrases are heard."""
MAX_BOOST = 5.0
"""Nats a piece. More would let a phrase win against any evidence but for the margin of `asr.decode`."""
MAX_PHRASES = 20_000
MAX_PIECES = 64
CACHED_LISTS = 64


@dataclass(frozen=True, kw_only=True)
class Phrase:
    """What shall be recognised more readily.

    Attributes:
        text: as people write it, in any casing.
        boost: nats a piece of three letters or more, less for shorter ones; None: what the list has.
    """

    text: str
    boost: float | None = None


@dataclass(frozen=True, kw_only=True)
class PhraseAnswer:
    """What became of a phrase.

    Attributes:
        text: as it was given.
        accepted: whether it is boosted.
        pieces: those of its likeliest spelling; empty if it is not boosted.
        reason: why it is not, or what is to be known about it; may be empty.
    """

    text: str
    accepted: bool
    pieces: tuple[str, ...] = ()
    reason: str = ""

    def to_json(self) -> dict[str, object]:
        """As clients get it."""
        return {"text": self.text, "accepted": self.accepted, "pieces": list(self.pieces), "reason": self.reason}


@dataclass(frozen=True, eq=False)
class PhraseList:
    """A list ready for use, of any number of streams; equal to itself only.

    Attributes:
        answers: one a phrase, in order.
        graph: the automaton.
        sounds: the CTC head's labels of each phrase, none where it cannot spell it; None without a head.
    """

    answers: tuple[PhraseAnswer, ...]
    graph: PhraseGraph
    sounds: tuple[tuple[int, ...], ...] | None = None

    @cached_property
    def sound_table(self) -> tuple[Tensor, Tensor]:
        """`sounds` as labels [P, L] padded with 0, and lens [P]; int64, on the CPU."""
        sounds = [torch.tensor(labels, dtype=torch.int64) for labels in self.sounds or ()]
        lens = torch.tensor([len(labels) for labels in sounds], dtype=torch.int64)
        return pad_sequence(sounds, batch_first=True), lens

    @property
    def rejected(self) -> tuple[PhraseAnswer, ...]:
        """The answers that say no."""
        return tuple(answer for answer in self.answers if not answer.accepted)


def read_phrases(path: str | Path) -> tuple[Phrase, ...]:
    """The phrases of a text file: UTF-8, one a line, `phrase` or `phrase<TAB>boost`; empty lines are skipped.

    Raises:
        PhraseError: if it cannot be read or is not UTF-8; the message says at which byte.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise PhraseError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PhraseError(f"{path}: byte {error.start} is not UTF-8; save the list as UTF-8") from error
    return tuple(_parse_line(line) for line in text.splitlines() if line.strip())


def _parse_line(line: str) -> Phrase:
    text, tab, boost = line.rpartition("\t")
    if not tab:
        return Phrase(text=line)
    try:
        return Phrase(text=text, boost=float(boost))
    except ValueError:
        return Phrase(text=text, boost=math.nan)  # answered, like any other boost that cannot be


class PhraseBuilder:
    """Builds lists for one vocabulary. May be shared by threads.

    Args:
        spelling: the vocabulary.
        sounds: the CTC head's, by which phrases are listened for; None: they are not.

    Attributes:
        builds: lists built so far; those found in the cache are not counted.
    """

    def __init__(self, spelling: Spelling, sounds: Spelling | None = None) -> None:
        self.spelling, self.sounds = spelling, sounds
        self.builds = 0
        self._cache: OrderedDict[tuple[object, ...], PhraseList] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def default_boost(self) -> float:
        """Nats a piece where nobody says how many."""
        return UNHEARD_BOOST if self.sounds is None else DEFAULT_BOOST

    def build(self, phrases: Iterable[str | Phrase], *, boost: float | None = None) -> PhraseList:
        """A list, ready for use.

        Args:
            phrases: at most MAX_PHRASES.
            boost: nats a piece of the phrases that say nothing else, 0 to MAX_BOOST; None: `default_boost`.

        Raises:
            PhraseError: if there are too many, or `boost` is out of range. What is wrong with a single phrase is said
                in its answer.
        """
        given = tuple(Phrase(text=phrase) if isinstance(phrase, str) else phrase for phrase in phrases)
        boost = self.default_boost if boost is None else boost
        if len(given) > MAX_PHRASES:
            raise PhraseError(f"the list has {len(given)} phrases; at most {MAX_PHRASES} are possible")
        if not 0 <= boost <= MAX_BOOST:
            raise PhraseError(f"boost is {boost}; it must be from 0 to {MAX_BOOST} nats a piece")
        key = (boost, *((phrase.text, phrase.boost) for phrase in given))
        with self._lock:
            found = self._cache.get(key)
            if found is None:
                found = self._cache[key] = self._build(given, boost)
                self.builds += 1
            self._cache.move_to_end(key)
            while len(self._cache) > CACHED_LISTS:
                self._cache.popitem(last=False)
        return found

    def _build(self, phrases: Sequence[Phrase], default: float) -> PhraseList:
        answers: list[PhraseAnswer] = []
        entries: list[Entry] = []
        for at, phrase in enumerate(phrases):
            text, boost = tidy(phrase.text), default if phrase.boost is None else phrase.boost
            if not any(character.isalnum() for character in text):
                answers.append(_no(phrase, "it has no letter and no digit"))
                continue
            if not 0 <= boost <= MAX_BOOST:
                answers.append(_no(phrase, f"its boost is {boost}; it must be a number from 0 to {MAX_BOOST}"))
                continue
            if len(text) > 8 * MAX_PIECES:
                answers.append(_no(phrase, f"it has {len(text)} characters; at most {8 * MAX_PIECES} are possible"))
                continue
            ways, remark = self.spelling.spell(text)
            short = [way for way in ways if len(way.tokens) <= MAX_PIECES]
            if not short:
                answers.append(
                    _no(phrase, remark if not ways else f"it takes more than {MAX_PIECES} pieces; say it shorter")
                )
                continue
            pieces = tuple(self.spelling.piece(token) for token in short[0].tokens)
            answers.append(PhraseAnswer(text=phrase.text, accepted=True, pieces=pieces, reason=remark))
            if boost > 0:
                entries += [Entry(tokens=way.tokens, boost=boost, anywhere=way.anywhere, phrase=at) for way in short]
        return PhraseList(tuple(answers), self._graph(entries), self._sounds(phrases))

    def _sounds(self, phrases: Sequence[Phrase]) -> tuple[tuple[int, ...], ...] | None:
        if self.sounds is None:
            return None
        ways = [self.sounds.spell(tidy(phrase.text))[0] for phrase in phrases]
        return tuple(found[0].tokens if found else () for found in ways)

    def _graph(self, entries: Sequence[Entry]) -> PhraseGraph:
        return build_graph(entries, opens=self.spelling.opens.numpy(), weights=self.spelling.weights.numpy())


def _no(phrase: Phrase, reason: str) -> PhraseAnswer:
    return PhraseAnswer(text=phrase.text, accepted=False, reason=reason)
