"""Which words of the CTC preview stand behind the committed text. Pure; what is shown is replaced, never appended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from asr.ctc_tokenizer import ctc_words
from asr.text import TextDelta
from asr.transcriber import HeardWord

__all__ = ["TailState", "commit", "settle", "tail_text"]


@dataclass(frozen=True, kw_only=True)
class TailState:
    """How far the committed text reaches.

    Attributes:
        end_ms: words that end later may be shown.
        last: the last committed word as the CTC head spells it.
    """

    end_ms: int = 0
    last: str = ""


def commit(delta: TextDelta, state: TailState) -> TailState:
    """The state after `delta` was committed."""
    newest = delta.words[-1] if delta.words else delta.amended[1] if delta.amended is not None else None
    if newest is None:
        return state
    return TailState(end_ms=max(state.end_ms, newest.end_ms), last=" ".join(ctc_words(newest.text)))


def settle(processed_ms: int, state: TailState) -> TailState:
    """The state after a flush: what was heard and not written by then will not be."""
    return replace(state, end_ms=max(state.end_ms, processed_ms))


def tail_text(heard: Sequence[HeardWord], state: TailState) -> str:
    """The words that end after the committed text, without the last committed one itself.

    A step is 80 ms and the end of a word is not known to that: the last word may seem to end after its end.
    """
    later = [word for word in heard if word.end_ms > state.end_ms]
    if later and later[0].start_ms < state.end_ms and later[0].text == state.last:
        later = later[1:]
    return " ".join(word.text for word in later)
