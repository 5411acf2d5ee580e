"""The decode loop: the gate decides, scores re-rank text, rows keep to themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from asr.config import RowSettings
from asr.decode import EVIDENCE_NATS, StepOutput, choose, decode_block, rank
from asr.recogniser import WAIT, Recogniser, RowOutput
from asr.units import STEP_SAMPLES
from tests import tiny

VOCABULARY = 4


@dataclass(frozen=True)
class Clock:
    steps: Tensor
    said: tuple[tuple[int, ...], ...]


class Script:
    """A recogniser that has made up its mind: at step t it is open if opens[t], and says logits[t]."""

    def __init__(self, opens: list[bool], logits: Tensor) -> None:
        self.opens, self.logits = torch.tensor(opens), logits

    def init_state(self, batch: int, *, max_chunk_steps: int, max_right: int, max_silence: int) -> Clock:
        return Clock(torch.zeros(batch, dtype=torch.int64), ((),) * batch)

    def reset(self, state: Clock, rows: Tensor) -> Clock:
        return replace(state, steps=state.steps.index_fill(0, rows, 0))

    def listen(self, samples: Tensor, lens: Tensor, settings: RowSettings, state: Clock) -> Clock:
        return state

    def row(self, active: Tensor, settings: RowSettings, state: Clock) -> tuple[RowOutput, Clock]:
        at = state.steps.clamp(max=len(self.opens) - 1)
        one = torch.ones_like(state.steps)
        # Rows that take no part say nonsense: nobody may listen.
        logits = torch.where(active[:, None], self.logits[at], torch.nan)
        return RowOutput(self.opens[at] | ~active, logits, 4 * state.steps, self.opens[at], one), state

    def accept(self, active: Tensor, tokens: Tensor, output: RowOutput, state: Clock) -> Clock:
        said = tuple(
            (*row, int(token)) if here else row
            for row, token, here in zip(state.said, tokens, active.tolist(), strict=True)
        )
        return Clock(state.steps + active.long(), said)

    def rest(self, state: Clock) -> Clock:
        return state

    def ask_re_anchor(self, state: Clock, rows: Tensor) -> Clock:
        return state


@dataclass(frozen=True)
class Scorer:
    """Adds `bonus` to one token; its state is how many tokens a row wrote, and the newest of them."""

    token: int
    bonus: float

    def init_states(self, rows: int) -> Tensor:
        return torch.tensor([[0, -1]]).repeat(rows, 1)

    def scores(self, states: Tensor, rows: Tensor) -> Tensor:
        assert len(states) == len(rows)
        found = torch.zeros(len(rows), VOCABULARY)
        found[:, self.token] = self.bonus
        return found

    def advance(self, states: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
        return torch.stack([states[:, 0] + 1, tokens], 1)


OPENS = [True, False, True, True, False]
LOGITS = torch.tensor(
    [[3.0, 1.0, 0.0, -torch.inf], [0, 9, 0, 0], [0, 0, 2.5, 2.4], [5.0, 1.0, -torch.inf, 0.0], [9, 9, 9, 9]]
)
ONE = tiny.rows_of(tiny.settings(1, 1))


def decode(scorer: Scorer | None, steps: int = 5) -> tuple[list[StepOutput], Clock, Tensor | None]:
    script: Recogniser[Clock] = Script(OPENS, LOGITS)
    state = script.init_state(1, max_chunk_steps=8, max_right=0, max_silence=0)
    samples = torch.zeros(1, steps * STEP_SAMPLES)
    states = None if scorer is None else scorer.init_states(1)
    return decode_block(script, samples, torch.tensor([samples.shape[1]]), ONE, state, scorer, states)


def tokens(outputs: list[StepOutput], row: int = 0) -> list[int]:
    return [int(o.tokens[row]) for o in outputs if o.active[row]]


def test_the_best_token_is_said_where_the_gate_is_open() -> None:
    outputs, state, _ = decode(None)
    assert tokens(outputs) == [0, WAIT, 2, 0, WAIT]
    assert state.said == ((0, WAIT, 2, 0, WAIT),)
    assert [int(o.frame[0]) for o in outputs] == [0, 4, 8, 12, 16]
    assert float(outputs[0].probability[0]) == pytest.approx(float(LOGITS[0].softmax(-1)[0]))
    assert float(outputs[1].probability[0]) == 1.0


def test_a_scorer_re_ranks_text_and_never_the_wait_decision() -> None:
    outputs, _, states = decode(Scorer(token=3, bonus=2.2))
    assert tokens(outputs) == [0, WAIT, 3, 0, WAIT]
    # Its own state advances on text only, and what was refused outright stays refused.
    assert states is not None
    assert states.tolist() == [[3, 0]]
    for bonus in (1e4, -1e4):
        outputs, _, _ = decode(Scorer(token=3, bonus=bonus))
        assert [token == WAIT for token in tokens(outputs)] == [not open_ for open_ in OPENS]
        assert tokens(outputs)[0] == 0


def test_the_probability_stays_the_acoustic_one() -> None:
    outputs, _, _ = decode(Scorer(token=3, bonus=2.2))
    assert float(outputs[2].probability[0]) == pytest.approx(float(LOGITS[2].softmax(-1)[3]))


def test_a_scorer_of_weight_zero_is_identical_to_none() -> None:
    with_scorer, _, _ = decode(Scorer(token=3, bonus=0.0))
    without, _, _ = decode(None)
    for one, two in zip(with_scorer, without, strict=True):
        assert all(torch.equal(value, getattr(two, name)) for name, value in vars(one).items() if value is not None)


def test_weight_zero_keeps_the_order_of_logits_that_differ_by_one_bit() -> None:
    # Over 30 000 pieces log-probabilities are near -10: there float32 no longer tells these two logits apart.
    logits = torch.full((1, 30_000), 0.9)
    logits[0, 3], logits[0, 5] = 1.0, torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    yes, frame = torch.tensor([True]), torch.tensor([0])
    output = RowOutput(yes, logits, frame, yes, frame)

    class Nothing:
        def init_states(self, rows: int) -> Tensor:
            return torch.zeros(rows, 1, dtype=torch.int64)

        def scores(self, states: Tensor, rows: Tensor) -> Tensor:
            return torch.zeros(1, 30_000)

        def advance(self, states: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
            return states

    fused = choose(output, yes, Nothing(), Nothing().init_states(1))
    assert choose(output, yes, None, None)[0].tolist() == fused[0].tolist() == [5]


def test_the_states_from_before_are_left_as_they_were() -> None:
    scorer = Scorer(token=3, bonus=2.2)
    before = scorer.init_states(1)
    yes = torch.tensor([True])
    output = RowOutput(yes, LOGITS[:1], torch.tensor([0]), yes, torch.tensor([1]))
    after = choose(output, yes, scorer, before)[2]
    assert after is not None
    assert after.tolist() == [[1, 0]]
    assert before.tolist() == [[0, -1]]


def test_a_score_lifts_only_what_has_been_heard() -> None:
    heard = torch.tensor([[0.0, -EVIDENCE_NATS, -EVIDENCE_NATS - 0.01, -torch.inf]])
    for token, wins in enumerate([True, True, False, False]):
        scores = torch.zeros(1, 4)
        scores[0, token] = 1e6
        assert (int(rank(heard, scores).argmax()) == token) is wins
    # Nor does what falls make room for it: the best that was heard stays in the race.
    assert rank(heard, torch.tensor([[-50.0, -60.0, 0.0, 0.0]])).argmax() == 0


def test_scores_change_nothing_that_the_gate_has_not_asked_about() -> None:
    logits = torch.tensor([[3.0, 2.5, 2.0, 1.0]]).repeat(3, 1)
    yes, frame = torch.tensor([True] * 3), torch.zeros(3, dtype=torch.int64)
    output = RowOutput(yes, logits, frame, yes, frame)
    scorer = Scorer(token=1, bonus=2.0)

    def said(output: RowOutput) -> list[int]:
        tokens: list[int] = choose(output, yes, scorer, scorer.init_states(3))[0].tolist()
        return tokens

    assert said(output) == [1, 1, 1]
    # Of a sign the gate does not ask whether anything is to be heard: no word may take its place.
    assert said(replace(output, steerable=torch.tensor([True, False, True]))) == [1, 0, 1]
    # What was just written is not written again for its score's sake; if it sounds best, that is the gate's affair.
    written = torch.tensor([[2, -1], [-1, 1], [1, 1]])
    assert said(replace(output, written=written)) == [1, 0, 0]
    best = replace(output, logits=logits.flip(1), written=torch.tensor([[3, -1]] * 3))
    assert choose(best, yes, None, None)[0].tolist() == [3, 3, 3]
    nothing = Scorer(token=1, bonus=0.0)
    assert choose(best, yes, nothing, nothing.init_states(3))[0].tolist() == [3, 3, 3]


def test_scores_of_zero_keep_the_first_of_equals() -> None:
    heard = torch.tensor([[1.0, 3.0, 3.0, -9.0]])
    assert rank(heard, torch.zeros(1, 4)).argmax() == heard.argmax() == 1


def test_a_row_in_a_batch_says_what_it_says_alone() -> None:
    script: Recogniser[Clock] = Script(OPENS, LOGITS)
    state = script.init_state(3, max_chunk_steps=8, max_right=0, max_silence=0)
    samples, rows = torch.zeros(3, 5 * STEP_SAMPLES), tiny.rows_of(*[tiny.settings(1, 1)] * 3)
    scorer = Scorer(token=3, bonus=2.2)
    scorer_states: Tensor | None = scorer.init_states(3)
    said: list[list[int]] = [[], [], []]
    for steps in ([2, 0, 5], [3, 1, 0], [0, 4, 0]):
        lens = STEP_SAMPLES * torch.tensor(steps)
        outputs, state, scorer_states = decode_block(script, samples, lens, rows, state, scorer, scorer_states)
        assert len(outputs) == max(steps)
        for row in range(3):
            said[row] += tokens(outputs, row)
    alone, _, _ = decode(Scorer(token=3, bonus=2.2))
    assert said == [tokens(alone)] * 3
    assert scorer_states is not None
    assert scorer_states.tolist() == [[3, 0]] * 3


def test_a_call_in_which_everybody_idles_does_nothing() -> None:
    script: Recogniser[Clock] = Script(OPENS, LOGITS)
    state = script.init_state(1, max_chunk_steps=8, max_right=0, max_silence=0)
    outputs, after, _ = decode_block(script, torch.zeros(1, 0), torch.tensor([0]), ONE, state, None)
    assert outputs == []
    assert after == state
