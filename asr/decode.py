"""The one decode loop. Step by step, the gate and the scores decide on what the decoder's row said.

Without a drafter every row is a call of its own: the reference. With one, a call tries the rows of what is expected as
well, and the steps that follow find their answers there, until the text goes another way (docs/design.md §6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from asr.answers import NOTHING, Draft, Expected
from asr.config import RowSettings
from asr.drafting import Drafter
from asr.recogniser import WAIT, Recogniser, RowOutput
from asr.shortcut import CtcShortcut
from asr.units import STEP_SAMPLES

S = TypeVar("S")


class TokenScorer(Protocol):
    """Scores added to text logits before the best token is taken; never asked about waiting (docs/design.md §7).

    State in, state out: a draft that was rejected is taken back by keeping the states that were before it.
    """

    def init_states(self, rows: int) -> Tensor:
        """[rows, D] int64, of streams that have written nothing."""
        ...

    def scores(self, states: Tensor, rows: Tensor) -> Tensor:
        """[k, V] natural-log scores, added to the logits.

        Args:
            states: [k, D] of the texts that are to be continued; several may be one stream's.
            rows: [k] the slot of each.
        """
        ...

    def advance(self, states: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
        """[k, D] the states after `tokens` [k]; `states` [k, D] themselves stay as they are."""
        ...


@dataclass(frozen=True)
class StepOutput:
    """The outputs of one step of B streams.

    Attributes:
        active: [B] whether the row took part; tokens: [B] the committed token or WAIT; probability: [B] of it.
        frame: [B] the encoder frame the token was read from; closes: [B] whether a wait closed the word under way.
        decoder_rows: [B] decoder rows spent.
        draft: what was expected from this step on, by streams that made a call; None: of nobody.
        judged: [B] whether the step's output says if the draft was right there; agreed: [B] whether it was.
        expected: what was drafted for this step; None: nothing was.
    """

    active: Tensor
    tokens: Tensor
    probability: Tensor
    frame: Tensor
    closes: Tensor
    decoder_rows: Tensor
    draft: Draft | None
    judged: Tensor
    agreed: Tensor
    expected: Expected | None


EVIDENCE_NATS = 5.0
"""How much less likely than the best a token may sound and still be written for its scores' sake."""


def rank(logits: Tensor, scores: Tensor, margin: float = EVIDENCE_NATS) -> Tensor:
    """[k, V] what text tokens are worth with their scores; one that has not been heard is at -inf.

    Added to logits, not to log-probabilities, whose rounding can swap two: scores of 0 must change nothing.

    Args:
        logits: [k, V] what was heard; scores: [k, V] what they are raised by.
        margin: nats that a token's logit may be below the best one's, whatever its score is.

    >>> rank(torch.tensor([[4.0, 3.0, -2.0]]), torch.tensor([[0.0, 1.5, 9.0]])).tolist()
    [[4.0, 4.5, -inf]]
    """
    unheard = logits < logits.amax(-1, keepdim=True) - margin
    return (logits + scores).masked_fill(unheard, -torch.inf)


def _steered(output: RowOutput, rows: Tensor, scores: Tensor) -> Tensor:
    """[k, V] as `rank`, for `rows` [k] of an output, within what the gate has decided for the best piece.

    A sign is written in silence as well, and a word is not written twice from one place: scores change neither.
    """
    logits = output.logits[rows]
    if output.steerable is not None:
        scores = torch.where(output.steerable[rows][:, None], scores, 0.0)
    ranked = rank(logits, scores)
    if output.written is not None:
        written = output.written[rows]
        again = (written >= 0) & (written != logits.argmax(-1)[:, None])
        barred = torch.zeros_like(ranked).scatter_add(1, written.clamp(min=0), again.float()) > 0
        ranked = ranked.masked_fill(barred, -torch.inf)
    return ranked


def choose(
    output: RowOutput,
    active: Tensor,
    scorer: TokenScorer | None,
    states: Tensor | None,
    least_probability: float | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The outputs [B] of one step's rows, their acoustic probabilities [B], and the scorer's states [B, D] after them.

    The gate alone decides between waiting and text; a scorer re-ranks text only. With `least_probability` a drafted
    piece that is at least so probable is taken for the best.
    """
    speaks = output.open & active
    tokens = torch.full_like(output.frame, WAIT)
    probability = torch.ones_like(output.logits[:, 0])
    if bool(speaks.any()):
        rows = speaks.nonzero()[:, 0]
        logits = output.logits[rows]
        log_probs = logits.log_softmax(-1)
        ranked = logits
        if scorer is not None and states is not None:
            ranked = _steered(output, rows, scorer.scores(states[rows], rows))
        best = ranked.argmax(-1)
        if least_probability is not None and output.expected is not None:
            drafted = output.expected.output[rows]
            of_it = log_probs.gather(1, drafted.clamp(min=0)[:, None])[:, 0].exp()
            likely = (drafted >= 0) & (of_it >= least_probability)
            if output.steerable is not None:
                likely = likely & output.steerable[rows]
            if output.written is not None:
                likely = likely & (output.written[rows] != drafted[:, None]).all(1)
            best = torch.where(likely, drafted, best)
        tokens[rows] = best
        probability[rows] = log_probs.gather(1, best[:, None])[:, 0].exp()
        if scorer is not None and states is not None:
            states = states.index_copy(0, rows, scorer.advance(states[rows], rows, best))
    return tokens, probability, states


def decode_block(
    model: Recogniser[S],
    samples: Tensor,
    lens: Tensor,
    settings: RowSettings,
    state: S,
    scorer: TokenScorer | None = None,
    scorer_states: Tensor | None = None,
    drafter: Drafter | None = None,
    least_probability: float | None = None,
    shortcut: CtcShortcut | None = None,
    listened: Callable[[S], None] | None = None,
) -> tuple[list[StepOutput], S, Tensor | None]:
    """Hears one block a row and decodes its steps.

    Args:
        model: a recogniser of either family.
        samples: [B, N] 16 kHz; lens: [B] valid samples, multiples of 1280; 0 idles.
        settings: each row's delay, chunk, right context and silence.
        state: what the previous block left.
        scorer: fused scores; scorer_states: [B, D] its states, None exactly where there is no scorer.
        drafter: expects outputs, so that one call runs several rows; None: a row a call.
        least_probability: a drafted piece at least so probable is taken; None: drafts change no output.
        shortcut: takes blocks past the decoder; None: nothing is.
        listened: is given the state when the block has been heard and nothing of it decoded.
    Returns:
        One StepOutput a step, as many as the longest row has, the new state, and the scorer's.
    """
    state = model.listen(samples, lens, settings, state)
    if listened is not None:
        listened(state)
    steps = lens // STEP_SAMPLES
    plan = None if shortcut is None else shortcut.plan(model, steps, settings, state)
    outputs: list[StepOutput] = []
    for step in range(int(steps.max())):
        active = step < steps
        planned = torch.zeros_like(active) if plan is None else active & plan.taken
        made: StepOutput | None = None
        if bool((active & ~planned).any()):
            asked = active & ~planned
            draft = None
            if drafter is not None:
                need = model.needs_call(asked, state)
                draft = drafter.draft(model, need, steps - step, settings, state) if bool(need.any()) else None
            output, state = (
                model.row(asked, settings, state) if draft is None else model.row(asked, settings, state, draft)
            )
            tokens, probability, scorer_states = choose(output, asked, scorer, scorer_states, least_probability)
            state = model.accept(asked, tokens, output, state)
            made = _step_output(model, asked, tokens, probability, output, draft)
        if plan is not None and bool(planned.any()):
            tokens, frames = plan.tokens[:, step], plan.frames[:, step]
            state = model.take(planned, tokens, frames, state)
            spoke = (planned & (tokens != WAIT)).nonzero()[:, 0]
            if scorer is not None and scorer_states is not None and len(spoke):
                after = scorer.advance(scorer_states[spoke], spoke, tokens[spoke])
                scorer_states = scorer_states.index_copy(0, spoke, after)
            made = _planned(made, planned, tokens, frames, plan.probability[:, step])
        assert made is not None
        outputs.append(made)
    return outputs, model.rest(state), scorer_states


def _planned(
    made: StepOutput | None, planned: Tensor, tokens: Tensor, frames: Tensor, probability: Tensor
) -> StepOutput:
    """The step of the streams `planned` [B] beside that of those that were decoded."""
    none = torch.zeros_like(planned)
    if made is None:
        return StepOutput(planned, tokens, probability, frames, ~none, none.long(), None, none, none, None)
    return replace(
        made,
        active=made.active | planned,
        tokens=torch.where(planned, tokens, made.tokens),
        probability=torch.where(planned, probability, made.probability),
        frame=torch.where(planned, frames, made.frame),
        closes=made.closes | planned,
    )


def _step_output(
    model: Recogniser[S], active: Tensor, tokens: Tensor, probability: Tensor, output: RowOutput, draft: Draft | None
) -> StepOutput:
    judged = agreed = torch.zeros_like(active)
    if output.expected is not None:
        judged = active & (output.expected.output != NOTHING)
        if not model.waits_take_rows:
            judged = judged & (tokens != WAIT)
        agreed = judged & (tokens == output.expected.output)
    return StepOutput(
        active=active,
        tokens=tokens,
        probability=probability,
        frame=output.frame,
        closes=output.closes,
        decoder_rows=output.decoder_rows,
        draft=draft,
        judged=judged,
        agreed=agreed,
        expected=output.expected,
    )
