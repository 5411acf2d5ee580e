"""Plain text to the pieces that a recogniser would write it with: spaces, casings, what it may not write."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from asr.ctc_tokenizer import CtcTokenizer, ctc_words
from asr.errors import ConfigError
from asr.model import Model
from asr.vocabulary import Vocabulary

_OPENING = tuple(' \t\n"“‘«([{¿¡')
_FULL_LETTERS = 3
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


@dataclass(frozen=True, kw_only=True)
class Spelt:
    """One way to write a phrase.

    Attributes:
        tokens: its pieces.
        anywhere: see `lm_fusion.phrases_graph.Entry`.
    """

    tokens: tuple[int, ...]
    anywhere: bool


class Spelling(Protocol):
    """A vocabulary, as phrases see it.

    Attributes:
        opens: [V] bool, pieces after which a word may begin without a space.
        weights: [V] float32, how much of a boost a piece has: a third for each of its letters, all from the third on.
            One or two letters are how a hundred other words begin, and a piece once written is not taken back.
    """

    opens: Tensor
    weights: Tensor

    def spell(self, text: str) -> tuple[list[Spelt], str]:
        """All ways to write a phrase, the likeliest first, and what is to be said about it.

        Args:
            text: as `tidy` gives it, not empty.
        Returns:
            The ways, and a remark, which is empty if all of the text is written. Without a way it says why.
        """
        ...

    def piece(self, token: int) -> str:
        """How a piece is shown."""
        ...


def tidy(text: str) -> str:
    r"""A phrase with composed characters and single spaces, without a byte order mark.

    >>> tidy("\ufeff Ze\u0301  dog ")
    'Zé dog'
    """
    return " ".join(unicodedata.normalize("NFC", text.replace("\ufeff", "")).split())


def casings(text: str) -> list[str]:
    """A phrase as given, lower, upper, as a sentence begins and with capitals, each once.

    >>> casings("new york")
    ['new york', 'NEW YORK', 'New york', 'New York']
    >>> casings("McCoy")
    ['McCoy', 'mccoy', 'MCCOY', 'Mccoy']
    """
    lower = text.lower()
    capitals = " ".join(word[:1].upper() + word[1:] for word in lower.split(" "))
    forms = [text, lower, text.upper(), text[:1].upper() + text[1:], lower[:1].upper() + lower[1:], capitals]
    return list(dict.fromkeys(forms))


def _weights(letters: list[int]) -> Tensor:
    """[V] of pieces with so many letters."""
    return torch.tensor(letters).clamp(max=_FULL_LETTERS) / _FULL_LETTERS


def _unspaced(character: str) -> bool:
    """Whether the character's script writes words without spaces between them."""
    return unicodedata.name(character, "").startswith(_UNSPACED)


class DecoderSpelling:
    """The decoder's byte-level pieces.

    Args:
        vocabulary: the pieces.
        writable: [V] bool, those that the recogniser may write.
    """

    def __init__(self, vocabulary: Vocabulary, writable: Tensor) -> None:
        size = writable.shape[0]
        pieces = (vocabulary.pieces + [b""] * size)[:size]
        self._vocabulary, self._writable = vocabulary, writable.tolist()[: vocabulary.special_from]
        opens = [piece.decode("utf-8", "ignore")[-1:] in _OPENING for piece in pieces]
        self.opens = torch.tensor(opens, dtype=torch.bool)
        letters = [sum(chr(byte).isalnum() or byte >= 128 for byte in piece) for piece in pieces]
        self.weights = _weights(letters)

    @classmethod
    def of(cls, model: Model) -> DecoderSpelling:
        """That of a model."""
        return cls(model.vocabulary, ~model.recogniser.banned.cpu())

    def spell(self, text: str) -> tuple[list[Spelt], str]:
        """See `Spelling`. A sign that the recogniser never writes is left out, and said to be."""
        ways = self._ways(text)
        if ways:
            return ways, ""
        unwritten = [c for c in dict.fromkeys(text) if not c.isspace() and not c.isalnum() and not self._ways(c)]
        for character in unwritten:
            text = text.replace(character, " ")
        left = tidy(text)
        ways = self._ways(left) if left else []
        if ways and sum(character.isalnum() for character in left) > 1:  # "C" for "C++" would be everywhere
            return ways, f"boosted as {left!r}: the model never writes {' '.join(unwritten)}"
        return [], f"the model never writes {' '.join(unwritten) or 'it'}"

    def _ways(self, text: str) -> list[Spelt]:
        """What can be written of the casings with a space before them and without."""
        forms = casings(text)
        unspaced = _unspaced(text[0])
        encoded = self._vocabulary.tokenizer.encode_batch(
            [space + form for form in forms for space in (" ", "")], add_special_tokens=False
        )
        tokens = [tuple(encoding.ids) for encoding in encoded]
        found: dict[tuple[int, ...], bool] = {}
        for spaced, bare in zip(tokens[::2], tokens[1::2], strict=True):
            # A space of its own in front of the bare form: that one is found behind it.
            if spaced[1:] != bare:
                found.setdefault(spaced, True)
            found.setdefault(bare, unspaced)
        return [
            Spelt(tokens=way, anywhere=anywhere)
            for way, anywhere in found.items()
            if all(token < len(self._writable) and self._writable[token] for token in way)
        ]

    def piece(self, token: int) -> str:
        """Its text; bytes that are no character become U+FFFD."""
        return self._vocabulary.decode([token])


class CtcSpelling:
    """The CTC head's lower-case pieces, the blank included in V."""

    def __init__(self, tokenizer: CtcTokenizer) -> None:
        self._tokenizer = tokenizer
        self.opens = torch.ones(tokenizer.blank + 1, dtype=torch.bool)
        self.weights = _weights([sum(map(str.isalnum, piece)) for piece in (*tokenizer.pieces, "")])

    def spell(self, text: str) -> tuple[list[Spelt], str]:
        """See `Spelling`: one way, since every word begins with a piece of its own."""
        words = ctc_words(text)
        unspelt = {c for c in text.lower() if c.isalnum() and not ("a" <= c <= "z")}
        if not words or unspelt:
            return [], f"the CTC head spells only a to z, not {' '.join(sorted(unspelt)) or repr(text)}"
        try:
            pieces = self._tokenizer.encode(words)
        except ConfigError as error:
            return [], str(error)
        return [Spelt(tokens=tuple(token for word in pieces for token in word), anywhere=True)], ""

    def piece(self, token: int) -> str:
        """Its text, "▁" for a space."""
        return self._tokenizer.pieces[token]
