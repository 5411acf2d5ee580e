"""From text to an n-gram model over a recogniser's tokens."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from asr.errors import LanguageModelError
from lm_fusion.estimate import Estimate, estimate
from lm_fusion.ngram_units import Units


def read_lines(path: str | Path) -> Iterator[str]:
    """Sentences of a text file (one a line), a gzipped one (`.gz`), or the "text" of a manifest (`.jsonl`).

    Lines without a character other than white space are left out.

    Raises:
        LanguageModelError: with the line, if a manifest's line is no JSON object, or text is not UTF-8.
        OSError: if the file cannot be read.
    """
    path = Path(path)
    number = 1
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for line in lines:
                text = line if path.suffix != ".jsonl" else json.loads(line).get("text") or ""
                if text := text.strip():
                    yield text
                number += 1
    except (UnicodeDecodeError, json.JSONDecodeError, AttributeError, EOFError, gzip.BadGzipFile) as error:
        raise LanguageModelError(f"{path}:{number}: cannot be read as text: {error}") from error


def sentence_case(text: str) -> str:
    """Text as a recogniser that writes upper and lower case may write it: what is in capitals alone becomes lower case.

    The English "I" stays. Where a sentence or name begins is not known, so nothing else is written large.

    >>> sentence_case("WHEN I'D LEFT")
    "when I'd left"
    >>> sentence_case("He left.")
    'He left.'
    """
    if not text.isupper() or len(re.findall(r"[^\W\d_]", text)) < 2:
        return text
    return re.sub(r"\bi\b", "I", text.lower())


def build_ngrams(lines: Iterable[str], units: Units, *, order: int, prune: Sequence[int] = ()) -> Estimate:
    """The modified Kneser–Ney model of sentences over tokens.

    Args:
        lines: sentences; those in capitals alone are written as `sentence_case` says.
        units: the tokens.
        order, prune: as `lm_fusion.estimate.estimate` takes them.

    Raises:
        LanguageModelError: if there is no text, or order or prune cannot be used.
    """
    sentences = [np.array(units.encode(sentence_case(line)), dtype=np.int32) for line in lines]
    return estimate(sentences, units.names, order=order, prune=prune)
