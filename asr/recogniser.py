"""What a recogniser of either family answers: the calls that the decode loop, drafting, sessions and training use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from asr.config import RowSettings

WAIT = -1
"""The output "no word yet"."""

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
    """

    open: Tensor
    logits: Tensor
    frame: Tensor
    closes: Tensor
    decoder_rows: Tensor


class Recogniser(Protocol[S]):
    """State in, state out: B streams on the step clock."""

    def init_state(self, batch: int, *, max_chunk_steps: int, max_right: int, max_silence: int) -> S:
        """Fresh streams whose blocks may be as large as stated (in steps and frames)."""
        ...

    def reset(self, state: S, rows: Tensor) -> S:
        """The state in which `rows` [k] are fresh streams."""
        ...

    def listen(self, samples: Tensor, lens: Tensor, settings: RowSettings, state: S) -> S:
        """Takes one block of audio a row: samples [B, N] at 16 kHz, lens [B] of them valid, whole steps; 0 idles."""
        ...

    def row(self, active: Tensor, settings: RowSettings, state: S) -> tuple[RowOutput, S]:
        """What the present step says for every row of active [B]; the others' answers mean nothing."""
        ...

    def accept(self, active: Tensor, tokens: Tensor, output: RowOutput, state: S) -> S:
        """The state after every active row has given its output, tokens [B]: a piece or WAIT."""
        ...

    def ask_re_anchor(self, state: S, rows: Tensor) -> S:
        """The state in which `rows` [k] start anew at their next block, if the family has anchors."""
        ...
