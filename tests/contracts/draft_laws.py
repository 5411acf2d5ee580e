"""The law of drafts: whatever is drafted, a stream gives the outputs of the loop that runs one row after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from asr.answers import Draft
from asr.config import RowSettings, SessionSettings
from asr.decode import StepOutput, TokenScorer, decode_block
from asr.recogniser import WAIT
from asr.units import STEP_SAMPLES
from tests import tiny

Said = tuple[int, int, bool]
"""Token, frame (0 of waits), whether a wait closed the word."""


@dataclass(frozen=True)
class Bigram:
    """A scorer whose state is the newest token, and which dislikes some that follow it."""

    weight: float = 3.0

    def init_states(self, rows: int) -> Tensor:
        return torch.full((rows, 1), 7)

    def scores(self, states: Tensor, rows: Tensor) -> Tensor:
        return self.weight * torch.sin(states * 1.7 + torch.arange(tiny.VOCABULARY) * 2.3)

    def advance(self, states: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
        return tokens[:, None]


@dataclass
class Liar:
    """Drafts what `spoil` makes of the outputs that are to come.

    Attributes: truth: every row's outputs, step by step; lens: of all drafts so far.
    """

    truth: Sequence[Sequence[int]]
    spoil: Callable[[list[int], torch.Generator], list[int]]
    seed: int = 0
    lens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = torch.Generator().manual_seed(self.seed)

    def draft(self, model: Any, need: Tensor, left: Tensor, settings: RowSettings, state: Any) -> Draft | None:
        rows: list[list[tuple[int, int]]] = [[] for _ in self.truth]
        for row in need.nonzero()[:, 0].tolist():
            clock = model.prospect(row, state).clock
            outputs = self.spoil(list(self.truth[row][clock : clock + int(left[row])]), self.random)
            rows[row] = [(output, 0) for output in outputs if model.waits_take_rows or output != WAIT]
            self.lens.append(len(rows[row]))
        return Draft.pack(rows, need.device)


def right(outputs: list[int], random: torch.Generator) -> list[int]:
    return outputs


def wrong(outputs: list[int], random: torch.Generator) -> list[int]:
    """No output right: another piece for a piece, a piece for a wait."""
    return [(output + 1) % 18 if output != WAIT else 5 for output in outputs]


def early(outputs: list[int], random: torch.Generator) -> list[int]:
    return [*outputs[1:], 3]


def late(outputs: list[int], random: torch.Generator) -> list[int]:
    return [WAIT, *outputs][: len(outputs)]


def waits(outputs: list[int], random: torch.Generator) -> list[int]:
    return [WAIT] * len(outputs)


def by_chance(outputs: list[int], random: torch.Generator) -> list[int]:
    """Each output right, wrong or a wait, and any number of them, at times more than there are steps."""
    drawn = torch.randint(0, 4, (len(outputs),), generator=random).tolist()
    anything = torch.randint(-1, 18, (len(outputs) + 3,), generator=random).tolist()
    found = [output if luck > 1 else other for output, luck, other in zip(outputs, drawn, anything, strict=False)]
    return (found + anything)[: int(torch.randint(0, len(outputs) + 3, (1,), generator=random))]


SPOILS = (right, wrong, early, late, waits, by_chance)


@dataclass(frozen=True)
class Run:
    """Attributes: said: what each row said, step by step; calls: of the decoder; rows: it ran; state: at the end."""

    said: list[list[Said]]
    calls: int
    rows: int
    state: Any


def run(
    model: Any,
    sounds: Sequence[Tensor],
    chosen: Sequence[SessionSettings],
    drafter: Any = None,
    scorer: TokenScorer | None = None,
    *,
    asked: int | None = None,
) -> Run:
    """Decodes [N] sounds, one a row, each in its own chunks; `asked`: the block before which row 0 is re-anchored."""
    settings, batch = tiny.rows_of(*chosen), len(sounds)
    chunks = [one.chunk for one in chosen]
    state = model.init_state(
        batch,
        max_chunk_steps=max(chunk.chunk_steps for chunk in chunks),
        max_right=max(chunk.right_frames for chunk in chunks),
        max_silence=max(chunk.silence_frames for chunk in chunks),
    )
    states = None if scorer is None else scorer.init_states(batch)
    cut = [sound.split(STEP_SAMPLES * chunk.chunk_steps) for sound, chunk in zip(sounds, chunks, strict=True)]
    said: list[list[Said]] = [[] for _ in sounds]
    calls = rows = 0
    for turn in range(max(len(blocks) for blocks in cut)):
        blocks = [blocks[turn] if turn < len(blocks) else torch.zeros(0) for blocks in cut]
        lens = torch.tensor([len(block) for block in blocks])
        samples = torch.stack([torch.nn.functional.pad(block, (0, int(lens.max()) - len(block))) for block in blocks])
        if turn == asked:
            state = model.ask_re_anchor(state, torch.tensor([0]))
        outputs, state, states = decode_block(model, samples, lens, settings, state, scorer, states, drafter)
        calls += sum(bool((output.decoder_rows > 0).any()) for output in outputs)
        rows += sum(int(output.decoder_rows.sum()) for output in outputs)
        for row in range(batch):
            said[row] += _of(outputs, row)
    return Run(said, calls, rows, state)


def _of(outputs: Sequence[StepOutput], row: int) -> list[Said]:
    found = []
    for output in outputs:
        if output.active[row]:
            token = int(output.tokens[row])
            waits = token == WAIT
            found.append((token, 0 if waits else int(output.frame[row]), waits and bool(output.closes[row])))
    return found


def check_exact(
    model: Any,
    sounds: Sequence[Tensor],
    chosen: Sequence[SessionSettings],
    spoils: Sequence[Callable[[list[int], torch.Generator], list[int]]] = SPOILS,
    scorer: TokenScorer | None = None,
    *,
    asked: int | None = None,
) -> dict[str, Run]:
    """Every draft gives the outputs of none, and leaves the same text; returns the runs by the name of the draft."""
    plain = run(model, sounds, chosen, None, scorer, asked=asked)
    truth = [[token for token, _, _ in row] for row in plain.said]
    found = {"none": plain}
    for spoil in spoils:
        drafted = run(model, sounds, chosen, Liar(truth, spoil), scorer, asked=asked)
        assert drafted.said == plain.said, spoil.__name__
        assert drafted.calls <= plain.calls, spoil.__name__
        for name in ("clock", "re_anchors", "text_frames"):
            assert torch.equal(getattr(drafted.state, name), getattr(plain.state, name)), (spoil.__name__, name)
        assert torch.equal(drafted.state.decoder.length, plain.state.decoder.length), spoil.__name__
        found[spoil.__name__] = drafted
    return found
