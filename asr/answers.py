"""Decoder rows that ran together: those that had to run, and those of a draft behind them (docs/design.md §6).

The rows of a draft are right as long as the decoder goes on as drafted. Until it does not, the next steps need no
decoder call; then what is left is forgotten. Forgetting is always safe: the rows are run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

NOTHING = -2
"""Where a draft says nothing; WAIT is an output like any other."""

SOURCES = ("wait", "ctc", "mtp", "own")
"""Who may have drafted an output; "own": the decoder itself, a block before."""


@dataclass(frozen=True)
class Draft:
    """The outputs that B streams are expected to give next.

    Attributes:
        outputs: [B, D] pieces or WAIT. A family whose waits take no row is given pieces only.
        source: [B, D] who said so, an index into SOURCES.
        lens: [B] valid ones.
    """

    outputs: Tensor
    source: Tensor
    lens: Tensor

    @classmethod
    def pack(cls, rows: Sequence[Sequence[tuple[int, int]]], device: torch.device) -> Draft:
        """One list of (output, source) a stream."""
        most = max((len(row) for row in rows), default=0)
        outputs, source = torch.full((2, len(rows), most), NOTHING).unbind()
        for at, row in enumerate(rows):
            for place, (output, who) in enumerate(row):
                outputs[at, place], source[at, place] = output, who
        lens = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return cls(outputs.to(device), source.to(device), lens.to(device))

    def at_most(self, lens: Tensor) -> Draft:
        """The first lens [B] of each row."""
        lens = torch.minimum(self.lens, lens.clamp(min=0))
        most = int(lens.max()) if lens.numel() else 0
        return Draft(self.outputs[:, :most], self.source[:, :most], lens)


@dataclass(frozen=True)
class Expected:
    """The drafted outputs of the present step.

    Attributes:
        output: [B] a piece, WAIT, or NOTHING where nothing was drafted.
        source: [B] who drafted it, an index into SOURCES.
        place: [B] its place in the draft: so many outputs of it have been taken.
    """

    output: Tensor
    source: Tensor
    place: Tensor


@dataclass(frozen=True)
class Answers:
    """What the rows of the last call said, for B streams.

    Attributes:
        said: whatever a family keeps of each row, each [B, n, …].
        outputs, source: [B, n] what was drafted to follow each row, and by whom; NOTHING where nothing was.
        at: [B] the row of the present step, or the last one that was: so many of the draft's outputs were taken.
        left: [B] rows from `at` on that may be used; 0: a call is needed.
        settled: [B] whether the output of row `at` was given; known: [B] whether there ever was a row.
    """

    said: tuple[Tensor, ...]
    outputs: Tensor
    source: Tensor
    at: Tensor
    left: Tensor
    settled: Tensor
    known: Tensor

    @classmethod
    def none(cls, said: tuple[Tensor, ...]) -> Answers:
        """Of streams that have run nothing; `said` [B, 1, …] gives the shapes."""
        batch, device = said[0].shape[0], said[0].device
        zero = torch.zeros(batch, dtype=torch.int64, device=device)
        nothing = torch.full((batch, 1), NOTHING, device=device)
        return cls(said, nothing, nothing, zero, zero, zero.bool(), zero.bool())

    def present(self, rows: Tensor | None = None, parts: slice = slice(None)) -> tuple[Tensor, ...]:
        """[k, …] what the present step's row of the streams `rows` [k], or of all, said: some parts of it or all."""
        rows = torch.arange(self.at.shape[0], device=self.at.device) if rows is None else rows
        return tuple(part[rows, self.at[rows]] for part in self.said[parts])

    def expected(self) -> Expected:
        """What is drafted to follow the present row."""
        output = self.outputs.gather(1, self.at[:, None])[:, 0]
        source = self.source.gather(1, self.at[:, None])[:, 0]
        return Expected(torch.where(self.left > 0, output, NOTHING), source, self.at)

    def give(self, given: Tensor, outputs: Tensor) -> Answers:
        """The state after the streams `given` [B] gave `outputs` [B]: as drafted, the next row is there already."""
        goes_on = given & (self.left > 1) & (outputs == self.expected().output)
        return replace(
            self,
            at=self.at + goes_on.long(),
            left=torch.where(given, torch.where(goes_on, self.left - 1, 0), self.left),
            settled=torch.where(given, ~goes_on, self.settled),
        )

    def forget(self, streams: Tensor) -> Answers:
        """The state in which the streams [B] need a call."""
        return replace(self, left=torch.where(streams, 0, self.left))

    def narrowed(self) -> Answers:
        """The state with the present row alone: what a draft left behind it is forgotten."""
        return replace(
            self,
            said=tuple(part[:, None] for part in self.present()),
            outputs=self.outputs.gather(1, self.at[:, None]),
            source=self.source.gather(1, self.at[:, None]),
            at=torch.zeros_like(self.at),
            left=self.left.clamp(max=1),
        )

    def reset(self, rows: Tensor) -> Answers:
        """The state in which `rows` [k] have run nothing."""
        return replace(self, left=self.left.index_fill(0, rows, 0), known=self.known.index_fill(0, rows, False))

    def put(self, rows: Tensor | None, said: tuple[Tensor, ...], left: Tensor, draft: Draft) -> Answers:
        """The state after a call of `rows` [k], or of all streams.

        Args:
            said: [k, n, …] of each row from the first one on whose output is not known.
            left: [k] how many of the n those are.
            draft: of those k streams: an output less than rows, or as many where the last one could not be tried.
        """
        count = said[0].shape[1]
        outputs, source = (
            F.pad(part, (0, count - part.shape[1]), value=NOTHING) for part in (draft.outputs, draft.source)
        )
        outputs = torch.where(torch.arange(count, device=outputs.device) < draft.lens[:, None], outputs, NOTHING)
        false = torch.zeros_like(left, dtype=torch.bool)
        if rows is None:
            return Answers(said, outputs, source, torch.zeros_like(left), left, false, ~false)
        return Answers(
            tuple(_put(old, rows, new) for old, new in zip(self.said, said, strict=True)),
            _put(self.outputs, rows, outputs, fill=NOTHING),
            _put(self.source, rows, source, fill=NOTHING),
            self.at.index_fill(0, rows, 0),
            self.left.index_copy(0, rows, left),
            self.settled.index_fill(0, rows, False),
            self.known.index_fill(0, rows, True),
        )


def _put(old: Tensor, rows: Tensor, new: Tensor, *, fill: int = 0) -> Tensor:
    """A copy of old [B, m, …] with new [k, n, …] in `rows`, both widened to the wider one."""
    width = max(old.shape[1], new.shape[1])
    widened = old.new_full((old.shape[0], width, *old.shape[2:]), fill)
    widened[:, : old.shape[1]] = old
    widened[rows, : new.shape[1]] = new
    return widened
