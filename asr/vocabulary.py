"""The decoder's vocabulary: byte-level BPE pieces, where words begin, which pieces hold letters."""

from __future__ import annotations

from pathlib import Path

import tokenizers
import torch
from torch import Tensor

from asr.errors import CheckpointError


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in plain}
    for count, byte in enumerate(byte for byte in range(256) if byte not in plain):
        alphabet[chr(256 + count)] = byte
    return alphabet


class Vocabulary:
    """Pieces of a byte-level BPE tokenizer file (Hugging Face `tokenizers` format).

    Attributes:
        size: ids known to the file; text pieces are those below `special_from`.
        special_from: the first special id.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; a checkpoint needs its tokenizer file")
        self.path = path
        self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        ids = self.tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(ids.values()) + 1
        end = self.tokenizer.token_to_id("<|endoftext|>")
        if end is None:
            raise CheckpointError(f"{path} has no <|endoftext|>; a Whisper vocabulary is needed")
        self.special_from: int = end
        alphabet = _byte_alphabet()
        self.pieces: list[bytes] = [b""] * self.size
        for piece, index in ids.items():
            if index < self.special_from:
                self.pieces[index] = bytes(alphabet[character] for character in piece)

    def id(self, piece: str) -> int:
        """The id of a special piece such as `<|startoftranscript|>`.

        Raises:
            CheckpointError: if the file does not know it.
        """
        found = self.tokenizer.token_to_id(piece)
        if found is None:
            raise CheckpointError(f"{self.path} has no piece {piece!r}")
        return int(found)

    def begins_word(self, size: int) -> Tensor:
        """[size] bool: pieces that start with a space."""
        return self._table([piece.startswith(b" ") for piece in self.pieces], size)

    def letters(self, size: int) -> Tensor:
        """[size] bool: pieces with a letter, a digit or part of a character beyond ASCII."""
        return self._table([any(chr(b).isalnum() or b >= 128 for b in piece) for piece in self.pieces], size)

    @staticmethod
    def _table(values: list[bool], size: int) -> Tensor:
        return torch.tensor((values + [False] * size)[:size], dtype=torch.bool)

    def decode(self, ids: list[int]) -> str:
        """The text of pieces; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.pieces[index] for index in ids).decode("utf-8", errors="replace")

    def encode(self, text: str) -> list[int]:
        """Ids of a text, special pieces not interpreted."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)
