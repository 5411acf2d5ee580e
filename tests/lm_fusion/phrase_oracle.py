"""What phrases earn, by looking at all of a text at once: nothing is shared with the automaton but the words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from lm_fusion.phrases_graph import Entry

SIZE = 5
OPENS = np.array([False, False, False, False, True])


@dataclass(frozen=True)
class Oracle:
    """The bonuses of `entries`: of each listed beginning, and of each complete one.

    Boosts are those of all entries; only the phrases that count earn them.
    """

    entries: Sequence[Entry]
    counts: Sequence[bool] | None = None

    @property
    def _counting(self) -> list[Entry]:
        return [e for e in self.entries if self.counts is None or self.counts[e.phrase]]

    def _total(self, tokens: tuple[int, ...]) -> float:
        """The bonus of a beginning: each piece has the largest boost of the sequences that share it."""
        return sum(
            max(e.boost for e in self.entries if e.tokens[: n + 1] == tokens[: n + 1]) for n in range(len(tokens))
        )

    def _complete(self, tokens: tuple[int, ...]) -> float:
        """The bonus of the longest listed sequence that `tokens` begin with, or 0."""
        lens = [len(e.tokens) for e in self._counting if tokens[: len(e.tokens)] == e.tokens]
        return self._total(tokens[: max(lens)]) if lens else 0.0

    def _may_begin(self, text: tuple[int, ...], at: int) -> bool:
        anywhere = any(e.anywhere for e in self.entries if e.tokens[0] == text[at])
        return anywhere or at == 0 or bool(OPENS[text[at - 1]])

    def earned(self, text: tuple[int, ...]) -> float:
        """The sum of the scores of all its tokens."""
        starts = [at for at in range(len(text)) if self._may_begin(text, at)]
        complete = sum(self._complete(text[at:]) for at in starts)
        for at in starts:  # the longest text under way begins first
            under_way = text[at:]
            if any(e.tokens[: len(under_way)] == under_way for e in self._counting):
                return complete + self._total(under_way) - self._complete(under_way)
        return complete


@st.composite
def entry_lists(draw: st.DrawFn) -> list[Entry]:
    """Short sequences of few tokens, so that they share beginnings and ends; `anywhere` goes with the first token."""
    open_tokens = draw(st.sets(st.integers(0, SIZE - 1)))
    tokens = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=4).map(tuple)
    boosts = st.integers(1, 40).map(lambda eighths: eighths / 8)
    entries = st.builds(Entry, tokens=tokens, boost=boosts, anywhere=st.just(False))
    found = draw(st.lists(entries, max_size=6))
    return [replace(entry, anywhere=entry.tokens[0] in open_tokens) for entry in found]


texts = st.lists(st.integers(0, SIZE - 1), max_size=12).map(tuple)
