"""Words with acoustic ends → what the decoder outputs at each 80 ms step, at a chosen delay.

The one builder behind training targets and CTC drafts, so that a draft is what the decoder was trained to say. A word
that ends at e ms is due at step `ceil(e / 80) - 1 + delay`: all of it has been heard, and `delay` steps more. Its
pieces take consecutive steps from there; if those are taken, later words shift right, and nothing is dropped.
(Voxtral Realtime §3.1; "shift and follow directly" is how moshi-finetune's keep_and_shift reads it.)

Step t is the output given after audio step t was heard, not the input of the step after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from asr.errors import ConfigError
from asr.units import STEP_MS

Grammar = Literal["none", "voxtral"]


@dataclass(frozen=True, kw_only=True)
class TimedPieces:
    """A word as the decoder spells it: its piece ids, at least one, and its acoustic end in milliseconds."""

    pieces: tuple[int, ...]
    end_ms: int


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The steps of one word.

    Attributes:
        due: the step at which it may first be written: heard, plus the delay.
        open_from: the first step from `due` on that no earlier word holds; from here to `first`, writing the word would
            not have been wrong. `open_from` < `first` only for a word made late on purpose, or after a marker.
        start: where it starts: its marker if it has one of its own, else its first piece.
        first, last: the steps of its first and last piece.
        requested: the step asked for: `due` plus the word's extra lateness.
    """

    due: int
    open_from: int
    start: int
    first: int
    last: int
    requested: int

    @property
    def lag(self) -> int:
        """Steps that earlier words' pieces pushed it past the step asked for."""
        return self.start - self.requested


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The outputs of consecutive steps.

    Attributes:
        outputs: [steps] wait, marker or piece id of steps `first_step`, `first_step` + 1, …
        placements: one for each word, in order.
        first_step: the step of `outputs[0]`.
        waits: how many outputs are waits.
    """

    outputs: tuple[int, ...]
    placements: tuple[Placement, ...]
    first_step: int
    waits: int

    @property
    def max_lag(self) -> int:
        """The largest lag of any word; 0 without words."""
        return max((placement.lag for placement in self.placements), default=0)

    @property
    def shifted_share(self) -> float | None:
        """Share of words that earlier words' pieces pushed back; None without words."""
        shifted = sum(placement.lag > 0 for placement in self.placements)
        return shifted / len(self.placements) if self.placements else None

    @property
    def wait_share(self) -> float | None:
        """Share of steps that wait; None without steps."""
        return self.waits / len(self.outputs) if self.outputs else None


def due_step(end_ms: int, delay_steps: int) -> int:
    """First step that has heard a word ending at `end_ms`, plus `delay_steps`.

    A word that ends at 0 (unspoken, before anything else) counts as ending within step 0.

    >>> [due_step(end_ms, 0) for end_ms in (0, 1, 80, 81, 160)], due_step(80, 6)
    ([0, 0, 0, 1, 1], 6)
    """
    return max(-(-end_ms // STEP_MS), 1) - 1 + delay_steps


def build_targets(
    words: Sequence[TimedPieces],
    *,
    delay_steps: int,
    wait: int,
    steps: int | None = None,
    trailing_waits: int = 0,
    grammar: Grammar = "none",
    marker: int | None = None,
    overdue: Sequence[int] | None = None,
    first_step: int = 0,
    after_text: bool = False,
) -> Targets:
    """Place `words` on the step clock.

    Args:
        words: in the order of the text; their order is kept whatever their ends are.
        delay_steps: τ.
        wait: the id of "no word yet".
        steps: length of the audio in steps, counted from step 0; a shorter text is filled up with waits, a longer one
            runs past it. None: unknown (a stream that goes on), the outputs end with the last piece.
        trailing_waits: the fewest waits after the last piece. Models trained without any end early and lose last words.
        grammar: "none" spends no step on markers; "voxtral" writes `marker`, which takes a step, before each group of
            words that follow one another directly because they are due before the word ahead of them has ended.
        marker: the marker's id, with "voxtral" only.
        overdue: for each word, steps of extra lateness (sampled by the caller), so that training sees words that are
            past due; None is none.
        first_step: the first free step: outputs begin there, and no word is put before it. For drafts, whose steps
            before are decoded already.
        after_text: whether step `first_step` - 1 holds a piece, so that a word past due joins its group.

    Raises:
        ConfigError: if a word has no pieces or a negative end, a piece is the wait or the marker, a count is negative,
            `overdue` has another length than `words`, or `marker` does not fit `grammar`.
    """
    _check(words, delay_steps, wait, steps, trailing_waits, grammar, marker, overdue, first_step)
    outputs: list[int] = []
    placements: list[Placement] = []
    waits, grouped = 0, after_text
    for i, word in enumerate(words):
        free = first_step + len(outputs)
        due = due_step(word.end_ms, delay_steps)
        requested = due + (overdue[i] if overdue is not None else 0)
        start = max(requested, free)
        joins = requested < free and grouped
        outputs += [wait] * (start - free)
        waits += start - free
        first = start
        if marker is not None and not joins:
            outputs.append(marker)
            first += 1
        outputs += word.pieces
        grouped = True
        last = first + len(word.pieces) - 1
        placements.append(
            Placement(due=due, open_from=max(due, free), start=start, first=first, last=last, requested=requested)
        )
    wanted = len(outputs) + trailing_waits
    if steps is not None:
        wanted = max(wanted, steps - first_step)
    waits += wanted - len(outputs)
    outputs += [wait] * (wanted - len(outputs))
    return Targets(outputs=tuple(outputs), placements=tuple(placements), first_step=first_step, waits=waits)


def _check(
    words: Sequence[TimedPieces],
    delay_steps: int,
    wait: int,
    steps: int | None,
    trailing_waits: int,
    grammar: Grammar,
    marker: int | None,
    overdue: Sequence[int] | None,
    first_step: int,
) -> None:
    counts = {
        "delay_steps": delay_steps,
        "steps": steps or 0,
        "trailing_waits": trailing_waits,
        "first_step": first_step,
    }
    for name, count in counts.items():
        if count < 0:
            raise ConfigError(f"{name} is {count}; it must be 0 or more")
    if grammar not in ("none", "voxtral"):
        raise ConfigError(f"grammar is {grammar!r}; there are 'none' and 'voxtral'")
    if (marker is None) != (grammar == "none"):
        raise ConfigError(f"grammar {grammar!r} {'needs a' if marker is None else 'has no'} marker, got {marker}")
    if marker == wait:
        raise ConfigError(f"wait and marker are both {wait}")
    if overdue is not None and (len(overdue) != len(words) or any(late < 0 for late in overdue)):
        raise ConfigError(f"overdue needs {len(words)} counts of 0 or more, got {list(overdue)}")
    for i, word in enumerate(words):
        if not word.pieces or word.end_ms < 0:
            raise ConfigError(
                f"word {i} has {len(word.pieces)} pieces and ends at {word.end_ms} ms; need 1 or more, and 0"
            )
        if wait in word.pieces or (marker is not None and marker in word.pieces):
            raise ConfigError(f"word {i} has pieces {word.pieces}, among them the wait ({wait}) or marker ({marker})")


def strip_outputs(outputs: Sequence[int], *, wait: int, marker: int | None = None) -> tuple[int, ...]:
    """The text pieces among `outputs`: inverse of `build_targets` as far as the text goes.

    >>> strip_outputs([9, 1, 2, 9, 3], wait=9)
    (1, 2, 3)
    """
    return tuple(output for output in outputs if output not in (wait, marker))
