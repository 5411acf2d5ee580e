"""The decode loop, one step at a time: the reference that any faster way of decoding is checked against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from asr.config import RowSettings
from asr.recogniser import WAIT, Recogniser, RowOutput
from asr.units import STEP_SAMPLES

S = TypeVar("S")


class TokenScorer(Protocol):
    """Scores added to text logits before the best token is taken; never asked about waiting (docs/design.md §7)."""

    def scores(self, rows: Tensor) -> Tensor:
        """[k, V] natural-log scores, added to the logits of `rows` [k]."""
        ...

    def advance(self, rows: Tensor, tokens: Tensor) -> None:
        """`rows` [k] committed `tokens` [k]."""
        ...


@dataclass(frozen=True)
class StepOutput:
    """The outputs of one step of B streams.

    Attributes:
        active: [B] whether the row took part; tokens: [B] the committed token or WAIT; probability: [B] of it.
        frame: [B] the encoder frame the token was read from; closes: [B] whether a wait closed the word under way.
        decoder_rows: [B] decoder rows spent.
    """

    active: Tensor
    tokens: Tensor
    probability: Tensor
    frame: Tensor
    closes: Tensor
    decoder_rows: Tensor


def choose(output: RowOutput, active: Tensor, scorer: TokenScorer | None) -> tuple[Tensor, Tensor]:
    """The outputs [B] of one step's rows, and their acoustic probabilities [B].

    The gate alone decides between waiting and text; a scorer re-ranks text only.
    """
    speaks = output.open & active
    tokens = torch.full_like(output.frame, WAIT)
    probability = torch.ones_like(output.logits[:, 0])
    if bool(speaks.any()):
        rows = speaks.nonzero()[:, 0]
        logits = output.logits[rows]
        log_probs = logits.log_softmax(-1)
        # Added to logits, not to log-probabilities, whose rounding can swap two: a weight of 0 must change nothing.
        ranked = logits if scorer is None else logits + scorer.scores(rows)
        best = ranked.argmax(-1)
        tokens[rows] = best
        probability[rows] = log_probs.gather(1, best[:, None])[:, 0].exp()
        if scorer is not None:
            scorer.advance(rows, best)
    return tokens, probability


def decode_block(
    model: Recogniser[S],
    samples: Tensor,
    lens: Tensor,
    settings: RowSettings,
    state: S,
    scorer: TokenScorer | None = None,
) -> tuple[list[StepOutput], S]:
    """Hears one block a row and decodes its steps.

    Args:
        model: a recogniser of either family.
        samples: [B, N] 16 kHz; lens: [B] valid samples, multiples of 1280; 0 idles.
        settings: each row's delay, chunk, right context and silence.
        state: what the previous block left.
        scorer: fused scores.
    Returns:
        One StepOutput a step, as many as the longest row has, and the new state.
    """
    state = model.listen(samples, lens, settings, state)
    steps = lens // STEP_SAMPLES
    outputs: list[StepOutput] = []
    for step in range(int(steps.max())):
        active = step < steps
        output, state = model.row(active, settings, state)
        tokens, probability = choose(output, active, scorer)
        state = model.accept(active, tokens, output, state)
        outputs.append(StepOutput(active, tokens, probability, output.frame, output.closes, output.decoder_rows))
    return outputs, state
