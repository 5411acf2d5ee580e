r"""N-gram models as ARPA text, plain or gzipped, and as the arrays that everything else here takes.

The format, as SRILM and KenLM write it: a header `\data\` with one `ngram N=COUNT` an order; for each order a section
`\N-grams:` of lines "log10 probability, N words, log10 back-off", the back-off left out where it is 0 and in the
highest order; `\end\`. Whatever stands before `\data\` is skipped.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from asr.errors import LanguageModelError

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
MARKS = (UNKNOWN, BEGIN, END)
HIGHEST_ORDER = 7
NEVER = -99.0
"""What SRILM writes for the logarithm of 0; `-inf` is read as this."""

KENLM_MAGIC = b"mmap lm http://kheafield.com/code"
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, kw_only=True, eq=False)
class NGrams:
    """A back-off model as lists of n-grams; M_n of order n = 1..N, in any order.

    Attributes:
        words: each once, the marks `<s>`, `</s>` and `<unk>` among them where the model has them.
        ids: per order [M_n, n] int32, places in `words`.
        log10: per order [M_n] float32, log10 probabilities.
        backoff: per order [M_n] float32, log10 back-off weights; all 0 in the highest order.
    """

    words: tuple[str, ...]
    ids: tuple[Ints, ...]
    log10: tuple[Floats, ...]
    backoff: tuple[Floats, ...]

    @property
    def order(self) -> int:
        """N."""
        return len(self.ids)

    @property
    def counts(self) -> tuple[int, ...]:
        """N-grams of each order."""
        return tuple(len(rows) for rows in self.ids)


class _Lines:
    """Lines of a file without their ends, and the number of the newest."""

    def __init__(self, file: Iterable[bytes], path: Path) -> None:
        self._numbered, self.path, self.number = enumerate(file, start=1), path, 0

    def next(self) -> bytes | None:
        """The next line that is not blank, or None at the end of the file."""
        for number, line in self._numbered:
            if stripped := line.strip():
                self.number = number
                return stripped
        return None

    def error(self, what: str) -> LanguageModelError:
        return LanguageModelError(f"{self.path}:{self.number}: {what}")


def read_arpa(path: str | Path) -> NGrams:
    """The n-grams of an ARPA file, gzipped or not, whatever its name ends in.

    Raises:
        LanguageModelError: with the line, if the file is no ARPA model, its counts are wrong, an n-gram stands twice or
            has a word that is not among the 1-grams, or a number cannot be.
        OSError: if the file cannot be read.
    """
    path = Path(path)
    with path.open("rb") as raw:
        magic = raw.read(len(KENLM_MAGIC))
        raw.seek(0)
        if magic == KENLM_MAGIC:
            raise LanguageModelError(
                f"{path} is a KenLM binary, which does not say what n-grams it has; give the ARPA file that it was "
                "made from, or try `earlybird lm convert`, which finds a small model's n-grams by asking"
            )
        if magic[:2] != _GZIP_MAGIC:
            return _read(_Lines(raw, path))
        try:
            with gzip.open(raw, "rb") as file:
                return _read(_Lines(file, path))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise LanguageModelError(f"{path}: the gzip file is damaged or cut off ({error})") from error


def _read(lines: _Lines) -> NGrams:
    counts, line = _read_header(lines)
    index: dict[bytes, int] = {}
    sections = []
    for n, count in enumerate(counts, start=1):
        if line != b"\\%d-grams:" % n:
            raise lines.error(f"expected \\{n}-grams:, got {_shown(line)}")
        section, line = _read_section(lines, n, count, index, highest=n == len(counts))
        sections.append(section)
    if line != b"\\end\\":
        raise lines.error(f"expected \\end\\, got {_shown(line)}")
    try:
        words = tuple(word.decode("utf-8") for word in index)
    except UnicodeDecodeError as error:
        raise LanguageModelError(f"{lines.path}: a word is not UTF-8: {error.object!r}") from error
    return NGrams(
        words=words,
        ids=tuple(ids for ids, _, _ in sections),
        log10=tuple(log10 for _, log10, _ in sections),
        backoff=tuple(backoff for _, _, backoff in sections),
    )


def _shown(line: bytes | None) -> str:
    return "the end of the file" if line is None else repr(line[:80].decode("utf-8", errors="replace"))


def _read_header(lines: _Lines) -> tuple[list[int], bytes | None]:
    """The count of each order, and the line behind the header."""
    while (line := lines.next()) != b"\\data\\":
        if line is None:
            raise lines.error("no \\data\\ header; an ARPA file is needed")
    counts: list[int] = []
    while (line := lines.next()) is not None and (found := re.fullmatch(rb"ngram\s+(\d+)\s*=\s*(\d+)", line)):
        if int(found[1]) != len(counts) + 1:
            raise lines.error(f"expected the count of {len(counts) + 1}-grams, got {_shown(line)}")
        counts.append(int(found[2]))
    if not 1 <= len(counts) <= HIGHEST_ORDER:
        raise lines.error(f"the header has {len(counts)} orders; 1 to {HIGHEST_ORDER} can be used")
    return counts, line


def _read_section(
    lines: _Lines, n: int, count: int, index: dict[bytes, int], *, highest: bool
) -> tuple[tuple[Ints, Floats, Floats], bytes | None]:
    """Ids [count, n], probabilities and back-offs of one order, and the line behind them."""
    ids, log10, backoff = array("i"), array("f"), array("f")
    short, long = n + 1, n + 1 if highest else n + 2
    while (line := lines.next()) is not None:
        if line[:1] == b"\\" and _is_head(line):
            break
        fields = line.split()
        if len(fields) not in (short, long):
            needed = f"a probability and {n} words" + ("" if highest else ", with or without a back-off")
            raise lines.error(f"expected {needed}, got {_shown(line)}")
        words = fields[1:short]
        if n == 1 and index.setdefault(words[0], len(index)) != len(log10):
            raise lines.error(f"the 1-gram {_shown(words[0])} stands twice")
        try:
            probability, weight = float(fields[0]), float(fields[short]) if len(fields) > short else 0.0
            ids.extend([index[word] for word in words])
        except ValueError:
            raise lines.error(f"expected numbers for probability and back-off, got {_shown(line)}") from None
        except KeyError as error:
            raise lines.error(f"the word {_shown(error.args[0])} is not among the 1-grams") from None
        if not (probability <= 0 and weight < math.inf):
            raise lines.error(f"the log10 probability is {probability} (at most 0), the back-off {weight}")
        log10.append(max(probability, NEVER))
        backoff.append(max(weight, NEVER))
    if len(log10) != count:
        raise lines.error(f"there are {len(log10)} {n}-grams, the header says {count}")
    rows = np.frombuffer(ids, dtype=np.int32).reshape(count, n) if count else np.zeros((0, n), dtype=np.int32)
    return (rows, np.array(log10, dtype=np.float32), np.array(backoff, dtype=np.float32)), line


def _is_head(line: bytes) -> bool:
    return line == b"\\end\\" or re.fullmatch(rb"\\\d+-grams:", line) is not None


def write_arpa(ngrams: NGrams, path: str | Path) -> None:
    """Write a model as ARPA text, gzipped if the name ends in `.gz`.

    Raises:
        LanguageModelError: if a word is empty or has white space, which ARPA cannot hold.
        OSError: if the file cannot be written.
    """
    if bad := [word for word in ngrams.words if word.split() != [word]]:
        raise LanguageModelError(f"{path}: ARPA cannot hold a word that is empty or has white space: {bad[:3]}")
    path = Path(path)
    with gzip.GzipFile(path, "wb", mtime=0) if path.suffix == ".gz" else path.open("wb") as file:
        for line in _arpa_lines(ngrams):
            file.write(line.encode("utf-8"))


def _arpa_lines(ngrams: NGrams) -> Iterator[str]:
    yield "\\data\\\n"
    yield from (f"ngram {n}={count}\n" for n, count in enumerate(ngrams.counts, start=1))
    for n, (ids, log10, backoff) in enumerate(zip(ngrams.ids, ngrams.log10, ngrams.backoff, strict=True), start=1):
        yield f"\n\\{n}-grams:\n"
        for row, probability, weight in zip(ids.tolist(), log10.tolist(), backoff.tolist(), strict=True):
            words = " ".join(ngrams.words[i] for i in row)
            yield f"{probability:.9g}\t{words}\t{weight:.9g}\n" if n < ngrams.order else f"{probability:.9g}\t{words}\n"
    yield "\n\\end\\\n"
