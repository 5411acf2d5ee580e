"""The tokens that an n-gram model is over: their names in the model's file, and how text is cut into them.

A token keeps the name that its tokenizer's file gives it ("Ġthe", "▁the"), so an ARPA file can be read by eye and stays
good when the vocabulary is renumbered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from asr.ctc_tokenizer import CtcTokenizer, ctc_words
from asr.errors import LanguageModelError
from asr.vocabulary import Vocabulary
from lm_fusion.arpa import MARKS, NGrams

LEAST_KNOWN = 0.9
"""The share of a model's words that must be tokens; one made for the same tokenizer has nearly all."""


@dataclass(frozen=True)
class Units:
    """Tokens 0..V-1.

    Attributes:
        kind: whose they are, for messages: "decoder" or "CTC".
        names: [V] what the n-gram model calls each; the marks `<s>`, `</s>`, `<unk>` and "" name no token.
        encode: token ids of a text.
        word_start: what the name of a token begins with that begins a word; "" if nothing says so.
    """

    kind: str
    names: tuple[str, ...]
    encode: Callable[[str], list[int]]
    word_start: str

    def __post_init__(self) -> None:
        if len(self.ids) != sum(_names_a_token(name) for name in self.names):
            raise LanguageModelError(f"two tokens of the {self.kind} vocabulary have the same name")

    @cached_property
    def ids(self) -> dict[str, int]:
        """Token of each name."""
        return {name: index for index, name in enumerate(self.names) if _names_a_token(name)}

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal tokens in equal order."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()[:16]


def _names_a_token(name: str) -> bool:
    return bool(name) and name not in MARKS


def decoder_units(vocabulary: Vocabulary, size: int) -> Units:
    """The decoder's pieces; text is cut as the recogniser writes it, with a space before the first word.

    Args:
        vocabulary: the pieces.
        size: V, ids that the decoder scores.
    """
    names = [vocabulary.tokenizer.id_to_token(i) or "" for i in range(vocabulary.special_from)]
    return Units(
        "decoder", tuple((names + [""] * size)[:size]), lambda text: vocabulary.encode(" " + text.strip()), "Ġ"
    )


def ctc_units(tokenizer: CtcTokenizer) -> Units:
    """The CTC head's pieces without the blank; text is reduced to lower-case words of [a-z'] first."""

    def encode(text: str) -> list[int]:
        return [piece for pieces in tokenizer.encode(ctc_words(text)) for piece in pieces]

    return Units("CTC", tokenizer.pieces, encode, "▁")


def check_units(ngrams: NGrams, units: Units, *, source: str, least_known: float = LEAST_KNOWN) -> None:
    """Refuse a model whose words are not the tokens, such as one over whole words.

    Args:
        ngrams: the model.
        units: the tokens.
        source: where it is from, for the message.
        least_known: the share of its words that must be tokens.

    Raises:
        LanguageModelError: says the share, and what to do.
    """
    words = [word for word in ngrams.words if word not in MARKS]
    known = [word for word in words if word in units.ids]
    share = len(known) / len(words) if words else 0.0
    advice = (
        f"a model over the {units.kind} vocabulary's {len(units.ids)} tokens is needed; `earlybird lm build` makes one"
    )
    if share < least_known:
        raise LanguageModelError(
            f"{source}: of its {len(words)} words {len(known)} ({share:.1%}) are tokens of the {units.kind} "
            f"vocabulary, at least {least_known:.0%} must be: is it over whole words? {advice}"
        )
    if units.word_start and not any(word.startswith(units.word_start) for word in known):
        raise LanguageModelError(
            f"{source}: {len(known)} of its {len(words)} words ({share:.1%}) are tokens of the {units.kind} "
            f"vocabulary, but none begins a word (with {units.word_start!r}): is it over whole words? {advice}"
        )
