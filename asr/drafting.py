"""Who drafts what the decoder will say next: nobody, waits, the CTC head's words, the decoder itself, or the last two.

A draft costs decoder rows, never text: in exact mode the decoder's own outputs alone are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast, get_args

from torch import Tensor

from asr.answers import SOURCES, Draft
from asr.config import RowSettings
from asr.ctc_tokenizer import CtcTokenizer, ctc_words
from asr.delay_targets import TimedPieces, build_targets
from asr.errors import ConfigError
from asr.model import Model
from asr.preview import PreviewWord, preview_words
from asr.recogniser import WAIT, Prospect, Recogniser
from asr.units import FRAMES_PER_STEP, STEP_MS
from asr.vocabulary import Vocabulary

__all__ = ["CtcDrafter", "Drafter", "Drafting", "ModelDrafter", "joined", "unwritten"]

DrafterName = Literal["none", "wait", "ctc", "mtp", "auto"]
DraftMode = Literal["exact", "relaxed", "ctc-shortcut"]
DRAFTERS: tuple[DrafterName, ...] = get_args(DrafterName)
DRAFT_MODES: tuple[DraftMode, ...] = get_args(DraftMode)

WAITS, CTC, MTP, OWN = range(len(SOURCES))
EARLY_STEPS = 4
"""So much before it is due a word may be written where waits take no row: it is drafted all the same."""
COMPARED_WORDS = 3
"""So many of the newest words decide how far the text has come."""
STEPS_A_WORD = 6
"""To be so far off in time is as bad as a wrong word."""


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """How a decoder is spared.

    Attributes:
        drafter: "none" runs one row after the other; "wait" expects silence; "ctc" the CTC head's words; "mtp" what the
            decoder meant to write and its multi-token heads guess behind it; "auto" what the decoder meant to write and
            the CTC head's words behind it, or the heads' where there is no CTC head.
        mode: "exact": drafts never change what is written. "relaxed": a drafted piece is taken as soon as its
            probability is at least `least_probability`. "ctc-shortcut": relaxed, and where the CTC head is sure (its
            entropy is at most `most_entropy` nats at every step), its words are taken without the decoder.

    Raises:
        ConfigError: for other names, numbers out of range, or a mode without a drafter that proposes text.
    """

    drafter: DrafterName = "auto"
    mode: DraftMode = "exact"
    least_probability: float = 0.3
    most_entropy: float = 0.3

    def __post_init__(self) -> None:
        for name, value, known in (("draft", self.drafter, DRAFTERS), ("draft mode", self.mode, DRAFT_MODES)):
            if value not in known:
                raise ConfigError(f"{name} is {value!r}; there are {', '.join(known)}")
        if not 0 < self.least_probability <= 1 or self.most_entropy < 0:
            raise ConfigError(
                f"least_probability is {self.least_probability}, in (0, 1] is needed; most_entropy is "
                f"{self.most_entropy}, 0 or more is needed"
            )
        if self.mode != "exact" and self.drafter in ("none", "wait"):
            raise ConfigError(f"draft mode {self.mode!r} needs a drafter that proposes text; draft is {self.drafter!r}")

    @classmethod
    def of(cls, drafter: str, mode: str) -> Drafting:
        """Of names that a user gave; ConfigError with the list of those there are for any other."""
        return cls(drafter=cast(DrafterName, drafter), mode=cast(DraftMode, mode))

    def to_json(self) -> dict[str, object]:
        """As the JSON result states it."""
        values: dict[str, object] = {"draft": self.drafter, "draft_mode": self.mode}
        if self.mode != "exact":
            values["draft_least_probability"] = self.least_probability
        if self.mode == "ctc-shortcut":
            values["draft_most_entropy"] = self.most_entropy
        return values


class Drafter(Protocol):
    """Expects outputs of streams whose decoder has to run anyway."""

    def draft(
        self, model: Recogniser[Any], need: Tensor, left: Tensor, settings: RowSettings, state: Any
    ) -> Draft | None:
        """What the streams `need` [B] will say.

        Args:
            left: [B] steps of the block that are not decoded yet.
            settings, state: of all streams.
        Returns:
            A draft of all B streams, empty for those that need none; None: of nobody.
        """
        ...


@dataclass(frozen=True)
class CtcDrafter:
    """The CTC head's words that are not written yet, spelt as the decoder spells.

    Args:
        vocabulary: the decoder's pieces. tokenizer: the head's.
    """

    vocabulary: Vocabulary
    tokenizer: CtcTokenizer

    def heard(self, prospect: Prospect) -> list[PreviewWord]:
        """The words in the window, their steps counted from the stream's start."""
        first = prospect.newest_step + 1 - len(prospect.labels)
        words = preview_words(prospect.labels, self.tokenizer)
        return [replace(word, first=word.first + first, last=word.last + first) for word in words]

    def written(self, prospect: Prospect) -> list[tuple[str, int]]:
        """The newest words of the text as the head spells them, and the steps they were read from."""
        words: list[tuple[list[int], int]] = []
        for piece, frame in zip(prospect.text, prospect.text_frames, strict=True):
            if self.vocabulary.pieces[piece].startswith(b" ") or not words:
                words.append(([], frame // FRAMES_PER_STEP))
            words[-1][0].append(piece)
        return [(bare, step) for pieces, step in words for bare in ctc_words(self.vocabulary.decode(pieces))]

    def upcoming(self, prospect: Prospect) -> list[tuple[PreviewWord, TimedPieces]]:
        """The words that are to come, each with the end of its last label's step; the first may be the rest of one."""
        heard, written = self.heard(prospect), self.written(prospect)
        at = unwritten(heard, written)
        text = self.vocabulary.decode(list(prospect.text)).rstrip()
        begins = not text or text[-1] in ".?!"
        found = []
        if written and at > 0 and (rest := self._rest(prospect.text, heard[at - 1].text)):
            found.append((heard[at - 1], rest))
        for word in heard[at:]:
            found.append((word, tuple(self.vocabulary.encode(" " + _cased(word.text, begins=begins)))))
            begins = False
        return [(word, TimedPieces(pieces=pieces, end_ms=max(0, word.last + 1) * STEP_MS)) for word, pieces in found]

    def _rest(self, text: Sequence[int], word: str) -> tuple[int, ...]:
        """The pieces that a word begun at the text's end still lacks."""
        start = max((at for at, piece in enumerate(text) if self.vocabulary.pieces[piece].startswith(b" ")), default=0)
        begun = list(text[start:])
        for spelling in (word, word.capitalize()):
            pieces = self.vocabulary.encode(" " + spelling)
            if pieces[: len(begun)] == begun:
                return tuple(pieces[len(begun) :])
        return ()


def _cased(word: str, *, begins: bool) -> str:
    return word.capitalize() if begins or word == "i" or word.startswith("i'") else word


def unwritten(heard: Sequence[PreviewWord], written: Sequence[tuple[str, int]]) -> int:
    """How many of the words heard are written: where the ends of both fit best, in letters and in time.

    Args:
        heard: in order. written: (word, step it was read from) in order, the last one perhaps half a word.
    """
    tail = [word for word, _ in written[-COMPARED_WORDS:]]
    if not tail:
        return 0
    step = written[-1][1]

    def cost(count: int) -> float:
        if not count:
            return len(tail) / 2 + max(0, step - heard[0].first) / STEPS_A_WORD if heard else 0.0
        before = [word.text for word in heard[max(0, count - len(tail)) : count]]
        return _difference(tail, before) + abs(heard[count - 1].last - step) / STEPS_A_WORD

    return min(range(len(heard) + 1), key=cost)


def _difference(mine: Sequence[str], theirs: Sequence[str]) -> float:
    """Edit distance in words; the last one of mine may be the beginning of theirs."""
    row = [float(i) for i in range(len(theirs) + 1)]
    for i, word in enumerate(mine, start=1):
        previous, row = row, [float(i)]
        for j, other in enumerate(theirs, start=1):
            half = i == len(mine) and other.startswith(word)
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (word != other and not half)))
    return row[-1]


def joined(guessed: Sequence[tuple[int, int]], spoken: Sequence[int]) -> list[tuple[int, int]]:
    """The decoder's guess and the CTC head's words in one draft of (piece, source).

    The decoder knows signs and capitals, the CTC head what is said further on: the guess leads up to where the words
    begin, and the words go on from there. Where the two do not meet, the guess is taken alone.
    """
    words = [(piece, CTC) for piece in spoken]
    if not guessed or not spoken:
        return words or list(guessed)
    for at, (piece, _) in enumerate(guessed):
        if piece == spoken[0]:
            return [*guessed[: at + 1], *words[1:]]
    return list(guessed)


class ModelDrafter:
    """The drafter of one model.

    Args:
        name: see `Drafting`.
        vocabulary: the decoder's pieces. tokenizer: the CTC head's, None without a head.
    """

    def __init__(self, name: DrafterName, vocabulary: Vocabulary, tokenizer: CtcTokenizer | None) -> None:
        self.name = name
        self.ctc = CtcDrafter(vocabulary, tokenizer) if tokenizer is not None and name in ("ctc", "auto") else None
        # Behind the CTC head's words, multi-token heads cost more than they spare (RESULTS.md).
        self.heads = self.ctc is None

    def draft(
        self, model: Recogniser[Any], need: Tensor, left: Tensor, settings: RowSettings, state: Any
    ) -> Draft | None:
        """See `Drafter.draft`."""
        rows = need.nonzero()[:, 0]
        guesses: dict[int, list[tuple[int, int]]] = {}
        if self.name in ("mtp", "auto"):
            outputs, lens, own = (part.tolist() for part in model.guesses(rows, state, heads=self.heads))
            for row, guess, length, first in zip(rows.tolist(), outputs, lens, own, strict=True):
                guesses[row] = [(piece, MTP if at or not first else OWN) for at, piece in enumerate(guess[:length])]
        found: list[list[tuple[int, int]]] = [[] for _ in range(need.shape[0])]
        delays, lefts = settings.delay.tolist(), left.tolist()
        for row in rows.tolist():
            spoken = self._spoken(model, row, delays[row], lefts[row], state)
            if model.waits_take_rows:
                found[row] = [(output, WAITS if output == WAIT else CTC) for output in spoken]
            else:
                # A step gives one piece, and nothing is tried behind the last one.
                pieces = [output for output in spoken if output != WAIT]
                found[row] = joined(guesses.get(row, []), pieces)[: lefts[row] - 1]
        return Draft.pack(found, need.device) if any(found) else None

    def _spoken(self, model: Recogniser[Any], row: int, delay: int, left: int, state: Any) -> list[int]:
        """The outputs of the steps that are left, and, where waits take no row, of a few more."""
        if self.ctc is None:
            return [WAIT] * left
        prospect = model.prospect(row, state)
        steps = left if model.waits_take_rows else left + EARLY_STEPS
        targets = build_targets(
            [timed for _, timed in self.ctc.upcoming(prospect)],
            delay_steps=delay,
            wait=WAIT,
            steps=prospect.clock + steps,
            first_step=prospect.clock,
        )
        return list(targets.outputs[:steps])


def drafter_of(model: Model, drafting: Drafting) -> Drafter | None:
    """The drafter that a model can have; None for "none".

    Raises:
        ConfigError: if the model lacks the head that the drafter needs.
    """
    heads = model.has_mtp_heads
    if drafting.drafter == "none":
        return None
    if drafting.drafter == "ctc" and model.ctc_tokenizer is None:
        raise ConfigError(f"{model.name} has no CTC head; draft is 'ctc'")
    if drafting.drafter == "mtp" and not heads:
        raise ConfigError(f"{model.name} has no multi-token heads; draft is 'mtp'")
    if drafting.mode != "exact" and model.ctc_tokenizer is None and not heads:
        raise ConfigError(f"{model.name} has nothing that drafts text; draft mode is {drafting.mode!r}")
    return ModelDrafter(drafting.drafter, model.vocabulary, model.ctc_tokenizer)
