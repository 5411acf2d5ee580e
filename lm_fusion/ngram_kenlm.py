"""N-grams out of a KenLM binary, by asking the `kenlm` package.

The package answers what a word scores behind a history and how long the n-gram was that it found, but cannot list what
the model has. So each known history is asked about each token: exact (for a quantised model, exactly its rounded
numbers), and slow, hence the bound. A large model's ARPA file is the better source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from asr.errors import LanguageModelError
from lm_fusion.arpa import BEGIN, END, HIGHEST_ORDER, UNKNOWN, NGrams
from lm_fusion.ngram_units import Units

MOST_QUERIES = 100_000_000
"""About two minutes."""


def read_kenlm(path: str | Path, units: Units, *, most_queries: int = MOST_QUERIES) -> NGrams:
    """The n-grams over the tokens that a KenLM model (binary or ARPA) has.

    Args:
        path: the file.
        units: the tokens that are asked about.
        most_queries: histories times tokens beyond which the model is refused.

    Raises:
        LanguageModelError: if `kenlm` is not installed, cannot read the file, the order is above 7, or the model is too
            large.
    """
    try:
        import kenlm
    except ImportError as error:
        raise LanguageModelError(
            f"{path} needs the package kenlm (`pip install kenlm`, which needs a C++ compiler), or give the ARPA file "
            f"that it was made from ({error})"
        ) from error
    try:
        model = kenlm.Model(str(path))
    except OSError as error:
        raise LanguageModelError(f"{path}: {error}") from error
    if model.order > HIGHEST_ORDER:
        raise LanguageModelError(f"{path} is of order {model.order}; at most {HIGHEST_ORDER} can be used")
    words = (UNKNOWN, BEGIN, END, *(name for name in units.ids if name in model))
    return _Asker(kenlm, model, words, str(path), most_queries).ngrams()


class _Asker:
    def __init__(self, kenlm: Any, model: Any, words: tuple[str, ...], source: str, most_queries: int) -> None:
        self._state, self._model, self._words = kenlm.State, model, words
        self._source, self._most = source, most_queries
        self._asked = 0

    def ngrams(self) -> NGrams:
        ids: list[np.ndarray[Any, np.dtype[np.int32]]] = []
        log10, backoff = [], []
        histories: list[tuple[int, ...]] = [()]
        for n in range(1, self._model.order + 1):
            self._allow(len(histories))
            rows: list[tuple[int, ...]] = []
            scores: list[float] = []
            weights: list[float] = []
            for history in histories:
                found, weight = self._behind(history)
                rows += [(*history, word) for word in found]
                scores += found.values()
                weights.append(weight)
            if n > 1:
                backoff.append(self._placed(ids[-1], histories, weights))
            ids.append(np.array(rows, dtype=np.int32).reshape(-1, n))
            log10.append(np.minimum(np.array(scores, dtype=np.float32), 0))
            histories = [row for row in rows if self._words[row[-1]] != END]
        backoff.append(np.zeros(len(ids[-1]), dtype=np.float32))
        return NGrams(words=self._words, ids=tuple(ids), log10=tuple(log10), backoff=tuple(backoff))

    def _allow(self, histories: int) -> None:
        self._asked += histories * len(self._words)
        if self._asked > self._most:
            raise LanguageModelError(
                f"{self._source}: finding its n-grams by asking takes {self._asked} queries or more, at most "
                f"{self._most} are made; give the ARPA file that it was made from"
            )

    def _placed(
        self, rows: np.ndarray[Any, np.dtype[np.int32]], histories: list[tuple[int, ...]], weights: list[float]
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Weights of all rows: 0 for those that are no history."""
        of = dict(zip(histories, weights, strict=True))
        return np.array([of.get(tuple(row), 0.0) for row in rows.tolist()], dtype=np.float32)

    def _after(self, history: tuple[int, ...]) -> Any:
        state = self._state()
        if history and self._words[history[0]] == BEGIN:
            self._model.BeginSentenceWrite(state)
            history = history[1:]
        else:
            self._model.NullContextWrite(state)
        for word in history:
            after = self._state()
            self._model.BaseScore(state, self._words[word], after)
            state = after
        return state

    def _behind(self, history: tuple[int, ...]) -> tuple[dict[int, float], float]:
        """Words listed behind a history with their log10 probabilities, and the history's back-off weight."""
        state, after = self._after(history), self._state()
        found: dict[int, float] = {}
        weight = 0.0
        shorter = self._after(history[1:]) if history else None
        for index, word in enumerate(self._words):
            if word == BEGIN and history:
                continue
            answer = self._model.BaseFullScore(state, word, after)
            if answer.ngram_length == len(history) + 1:
                found[index] = answer.log_prob
            elif shorter is not None:
                weight = answer.log_prob - self._model.BaseScore(shorter, word, after)
                shorter = None  # the same for every word that is not listed
        return found, weight
