"""What a recogniser of either family answers: the calls that the decode loop, drafting, sessions and training use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from asr.answers import Draft, Expected
from asr.config import RowSettings

WAIT = -1
"""The output "no word yet"."""
PROSPECT_PIECES = 24
"""So much of the text a drafter may know."""

S = TypeVar("S")


@dataclass(frozen=True)
class RowOutput:
    """What one step's decoder rows say, before fusion.

    Attributes:
        open: [B] whether a text token may be committed: the acoustic decision, fusion has no say in it.
        logits: [B, V] of text tokens only; what may not be written is at -inf.
        frame: [B] the encoder frame, from the stream's start, that the candidate was read from.
        closes: [B] whether a wait here closes the word under way (the candidate would not continue it).
        decoder_rows: [B] decoder rows this step cost.
        expected: what was drafted for this step; None: nothing was.
        steerable: [B] whether scores may choose another piece than the best: the gate has asked of this one whether
            something is to be heard; None: everywhere.
        written: [B, n] pieces that were just written from the same place, which scores may not choose again; -1: none.
    """

    open: Tensor
    logits: Tensor
    frame: Tensor
    closes: Tensor
    decoder_rows: Tensor
    expected: Expected | None = None
    steerable: Tensor | None = None
    written: Tensor | None = None


@dataclass(frozen=True)
class Prospect:
    """What a drafter may know of one stream. Steps and frames count from the stream's start.

    Attributes:
        clock: the step that is decoded next.
        text: the newest pieces written, oldest first, and text_frames: where each was read from.
        labels: the CTC head's best label of each of the newest steps heard, newest last; empty without a head.
        newest_step: the step of the newest label.
        log_probs: [W, V'+1] all that the head says of those steps; None without a head.
        room: pieces that may be written before the text positions end; None: they do not.
    """

    clock: int
    text: Sequence[int]
    text_frames: Sequence[int]
    labels: Sequence[int]
    newest_step: int
    log_probs: Tensor | None = None
    room: int | None = None


class Recogniser(Protocol[S]):
    """State in, state out: B streams on the step clock.

    Attributes:
        waits_take_rows: whether a wait is an output that the decoder remembers, so that drafts have to state it.
    """

    waits_take_rows: bool

    def init_state(self, batch: int, *, max_chunk_steps: int, max_right: int, max_silence: int) -> S:
        """Fresh streams whose blocks may be as large as stated (in steps and frames)."""
        ...

    def reset(self, state: S, rows: Tensor) -> S:
        """The state in which `rows` [k] are fresh streams."""
        ...

    def listen(self, samples: Tensor, lens: Tensor, settings: RowSettings, state: S) -> S:
        """Takes one block of audio a row: samples [B, N] at 16 kHz, lens [B] of them valid, whole steps; 0 idles."""
        ...

    def needs_call(self, active: Tensor, state: S) -> Tensor:
        """[B] which rows of active [B] have no answer for the present step yet."""
        ...

    def prospect(self, row: int, state: S) -> Prospect:
        """What a drafter may know of one row."""
        ...

    def guesses(self, rows: Tensor, state: S, *, heads: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """What the decoder expects `rows` [k] to give next.

        Args:
            heads: whether multi-token heads go on from there.
        Returns:
            outputs [k, n], how many of them [k], and whether the first is the decoder's own [k]; the others are those
            of multi-token heads.
        """
        ...

    def row(self, active: Tensor, settings: RowSettings, state: S, draft: Draft | None = None) -> tuple[RowOutput, S]:
        """What the present step says for every row of active [B]; the others' answers mean nothing.

        Args:
            draft: the outputs that streams without an answer are expected to give from this step on; they are tried in
                the same call.
        """
        ...

    def accept(self, active: Tensor, tokens: Tensor, output: RowOutput, state: S) -> S:
        """The state after every active row has given its output, tokens [B]: a piece or WAIT."""
        ...

    def take(self, active: Tensor, tokens: Tensor, frames: Tensor, state: S) -> S:
        """The state after every active row was given a piece read from frames [B], or WAIT, without a decoder row."""
        ...

    def rest(self, state: S) -> S:
        """The state between blocks, the same size after all of them: what drafts left unused is forgotten."""
        ...

    def ask_re_anchor(self, state: S, rows: Tensor) -> S:
        """The state in which `rows` [k] start anew at their next block, if the family has anchors."""
        ...
