"""The CTC head's own small vocabulary: sentencepiece over lower-case a-z and the apostrophe.

Apart from the decoder's vocabulary, because a CTC head does better with few labels than with tens of thousands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece

from asr.errors import CheckpointError, ConfigError

_WORD = re.compile(r"[a-z']+")


def ctc_words(text: str) -> list[str]:
    """Words of `text` as the CTC head spells them: lower case, of [a-z'], anything else is a border.

    Digits are left out, because their spoken form is not known here.

    >>> ctc_words("It’s the Well-known 'A'.")
    ["it's", 'the', 'well', 'known', 'a']
    """
    words = (match.strip("'") for match in _WORD.findall(text.lower().replace("’", "'")))
    return [word for word in words if word]


class CtcTokenizer:
    """Pieces of the CTC head. Label `blank` is one past the last piece.

    Attributes:
        path: the sentencepiece model file.
        pieces: each piece's text, "▁" for the space before a word.
        blank: the blank's label; the head has `blank + 1` outputs.
    """

    def __init__(self, path: str | Path) -> None:
        """Load a model.

        Raises:
            CheckpointError: if `path` is not a sentencepiece model.
        """
        self.path = Path(path)
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise CheckpointError(f"{path}: not a sentencepiece model ({error})") from error
        size = int(self._model.get_piece_size())
        self.pieces: tuple[str, ...] = tuple(self._model.id_to_piece(i) for i in range(size))
        self.blank = size

    def encode(self, words: Sequence[str]) -> list[list[int]]:
        """Piece ids of each word; words of [a-z'], see `ctc_words`.

        Raises:
            ConfigError: if a word has a letter that no piece spells.
        """
        # A list at once would start threads, which takes a thousand times as long as a word.
        encoded: list[list[int]] = [self._model.encode(word, out_type=int) for word in words]
        unknown = self._model.unk_id()
        for word, ids in zip(words, encoded, strict=True):
            if not ids or unknown in ids:
                raise ConfigError(f"{self.path}: no pieces for {word!r}; words must be of [a-z']")
        return encoded

    def decode(self, ids: Iterable[int]) -> str:
        """Text of piece ids, blanks left out.

        Raises:
            ConfigError: if an id is out of range.
        """
        kept = [i for i in ids if i != self.blank]
        if any(not 0 <= i < self.blank for i in kept):
            raise ConfigError(f"{self.path}: piece ids must be of 0..{self.blank - 1} or the blank, got {kept}")
        text: str = self._model.decode(kept)
        return text

    def starts_word(self, piece: int) -> bool:
        """Whether a piece begins a new word."""
        return self.pieces[piece].startswith("▁")
