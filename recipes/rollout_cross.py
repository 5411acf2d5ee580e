"""Rollouts of the cross family: a gate that draws when to write, a decoder that draws what (see recipes/rollout.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.config import AnchorConfig, ChunkSetting
from asr.cross_recogniser import CrossRecogniser, CrossState
from asr.errors import ConfigError
from asr.gate import GateAnswer, GateView, LearnedGate, read
from asr.model import Model
from asr.recogniser import WAIT, RowOutput
from asr.units import FRAMES_PER_STEP, STEP_SAMPLES
from recipes.rollout import AdditivePolicy, Decision, Heard, Luck, Policy, Rollouts
from recipes.streamed import Layout, StreamedMemory, decode_streamed, encode_streamed

__all__ = ["CrossPolicy", "policy_of"]


@dataclass(frozen=True)
class _Seen:
    """What the gate saw at one step: hidden, around [N, C], facts [N, K], start, opened, free [N]."""

    hidden: Tensor
    around: Tensor
    facts: Tensor
    start: Tensor
    opened: Tensor
    free: Tensor


@dataclass(frozen=True)
class CrossTrace:
    """What the cross family's log-probabilities are found from.

    Attributes:
        memory: the encoder's output, of each recording.
        hidden, around: [N, T, C], facts: [N, T, K], start: [N, T] what the gate saw; opened: [N, T] whether it opened.
        gated: [N, T] whether the gate had something to decide.
        at: [S, 2] row and step of each written piece, row after row; allowed: [S, V] what might have been written.
    """

    memory: StreamedMemory
    hidden: Tensor
    around: Tensor
    facts: Tensor
    start: Tensor
    opened: Tensor
    gated: Tensor
    at: Tensor
    allowed: Tensor


class _DrawingGate(nn.Module):
    """Opens at random, as likely as the gate's odds say, and keeps what it saw of the last step."""

    def __init__(self, gate: LearnedGate, temperature: float, luck: Luck) -> None:
        super().__init__()
        self.gate, self.temperature, self.luck = gate, temperature, luck
        self.seen: _Seen | None = None

    def forward(self, view: GateView) -> GateAnswer:
        """Drawn answers."""
        gate, reading = self.gate, read(view, self.gate.config)
        facts, start = gate.known(view, reading), gate.start(view, reading)
        odds = start + gate.logit(view.hidden, view.around, facts) - gate.config.threshold
        overdue = gate.overdue(reading)
        due = self.luck.gate < torch.sigmoid(odds / self.temperature) if self.temperature else odds >= 0
        opened = (due | overdue) & ~reading.barred
        self.seen = _Seen(view.hidden, view.around, facts, start, opened, ~overdue & ~reading.barred)
        return GateAnswer(opened, reading.frame)


class CrossPolicy(Policy[CrossState]):
    """Rollouts of a decoder behind a gate that learns.

    Raises:
        ConfigError: if the model's gate has nothing to learn (`with_correcting_gate`).
    """

    def __init__(self, model: Model, chunk: ChunkSetting, *, temperature: float) -> None:
        super().__init__(model, chunk, temperature=temperature)
        if not isinstance(self.recogniser.gate, LearnedGate):
            raise ConfigError(f"the gate of {model.name} has nothing to learn; give it one that has")
        self._seen: list[_Seen] = []
        self._allowed: list[tuple[Tensor, Tensor]] = []  # rows [k] that wrote at a step, and what they might [k, V]

    @property
    def recogniser(self) -> CrossRecogniser:
        """The model's."""
        assert isinstance(self.model.recogniser, CrossRecogniser)
        return self.model.recogniser

    @contextmanager
    def _running(
        self, heard: Heard, group: int, luck: Luck
    ) -> Iterator[tuple[CrossState, CrossState, CrossRecogniser]]:
        recogniser = self.recogniser
        anchors, gate = recogniser.anchors, cast(LearnedGate, recogniser.gate)
        frames = heard.samples.shape[1] // STEP_SAMPLES * FRAMES_PER_STEP
        if frames > anchors.limit_frames:
            raise ConfigError(
                f"a recording of {frames * 20} ms, its silence included, does not fit between two anchors "
                f"({anchors.limit_frames * 20} ms); leave it out"
            )
        self._seen, self._allowed = [], []
        span = max(frames, anchors.keep_frames + 1)
        recogniser.anchors = AnchorConfig(
            limit_frames=span,
            pause_after_frames=span,
            pause_frames=span,
            keep_frames=anchors.keep_frames,
            text_limit=recogniser.decoder.text_positions,
            tail_frames=span,
            voiced_frames=span,
        )
        recogniser.gate = _DrawingGate(gate, self.temperature, luck)
        count = heard.samples.shape[0]
        chunk = self.chunk
        try:
            shared, state = (
                recogniser.init_state(
                    rows,
                    max_chunk_steps=chunk.chunk_steps,
                    max_right=chunk.right_frames,
                    max_silence=chunk.silence_frames,
                )
                for rows in (count, count * group)
            )
            yield shared, state, recogniser
        finally:
            recogniser.anchors, recogniser.gate = anchors, gate

    def _listen(
        self, block: Tensor, hears: Tensor, heard: Heard, shared: CrossState, state: CrossState, group: int
    ) -> tuple[CrossState, CrossState]:
        lens = torch.where(hears, block.shape[1], 0)
        shared = self.recogniser.listen(block, lens, self._rows(heard, 1), shared)
        parts = ("memory", "history", "loudness", "quietest", "heard", "anchor", "preview")
        fanned = {name: _repeated(getattr(shared, name), group) for name in parts}
        state = replace(state, **fanned)
        return shared, replace(state, row=state.row.forget(hears.repeat_interleave(group)))

    def _decide(self, active: Tensor, output: RowOutput, state: CrossState, luck: Luck) -> Decision:
        gate = self.recogniser.gate
        assert isinstance(gate, _DrawingGate)
        assert gate.seen is not None
        seen = gate.seen
        free = seen.free & active & (output.open == seen.opened)  # a full text opens for nothing
        speaks = output.open.nonzero()[:, 0]
        tokens = torch.full_like(output.frame, WAIT)
        log_prob = torch.zeros_like(output.logits[:, 0])
        if self.temperature:
            odds = seen.start + gate.gate.logit(seen.hidden, seen.around, seen.facts) - gate.gate.config.threshold
            log_prob = torch.where(free, _bernoulli(odds / self.temperature, seen.opened), log_prob)
        if len(speaks):
            tokens[speaks], of_it = self._draw(output.logits[speaks], luck.text[speaks])
            log_prob[speaks] += of_it
        self._seen.append(replace(seen, opened=output.open, free=free))
        self._allowed.append((speaks, output.logits[speaks] > -torch.inf))
        return Decision(tokens, free | output.open, log_prob)

    def _trace(self, heard: Heard, group: int) -> CrossTrace:
        recogniser = self.recogniser
        batch, length = heard.samples.shape
        zeros = recogniser.frontend.init_state(batch)
        frames = recogniser.frontend.step(heard.samples, torch.full((batch,), length), zeros)[0]
        memory = encode_streamed(recogniser, frames, Layout.of(self.chunk, frames.shape[1]))
        at = [(row, step) for step, (rows, _) in enumerate(self._allowed) for row in rows.tolist()]
        order = sorted(range(len(at)), key=lambda i: at[i])
        columns = {
            field.name: torch.stack([getattr(seen, field.name) for seen in self._seen], 1) for field in fields(_Seen)
        }
        gated = columns.pop("free")
        return CrossTrace(
            memory=memory,
            gated=gated,
            at=torch.tensor([at[i] for i in order], dtype=torch.int64).view(-1, 2),
            allowed=torch.cat([allowed for _, allowed in self._allowed])[order],
            **columns,
        )

    def log_probs(self, rollouts: Rollouts, recogniser: nn.Module | None = None) -> Tensor:
        """See `Policy.log_probs`."""
        module = self.recogniser if recogniser is None else recogniser
        assert isinstance(module, CrossRecogniser)
        gate, trace = module.gate, rollouts.trace
        assert isinstance(gate, LearnedGate)
        assert isinstance(trace, CrossTrace)
        temperature = self.temperature or 1.0
        use = trace.gated
        odds = trace.start[use] + gate.logit(trace.hidden[use], trace.around[use], trace.facts[use])
        odds = (odds - gate.config.threshold) / temperature
        when = torch.zeros_like(trace.start).masked_scatter(use, _bernoulli(odds, trace.opened[use]))
        if not len(trace.at):
            return when
        said = torch.cat([self._said(module, rollouts, b, temperature) for b in range(len(rollouts.heard.steps))])
        return when.index_put((trace.at[:, 0], trace.at[:, 1]), said, accumulate=True)

    def _said(self, module: CrossRecogniser, rollouts: Rollouts, recording: int, temperature: float) -> Tensor:
        """[s] log-probabilities of the pieces that a recording's rollouts wrote, row after row."""
        trace, group = rollouts.trace, rollouts.group
        here = trace.at[:, 0] // group == recording
        row, step = trace.at[here, 0] - recording * group, trace.at[here, 1]
        if not len(row):
            return torch.zeros(0)
        pieces = rollouts.tokens[trace.at[here, 0], step]
        place = torch.cat([torch.arange(n) for n in torch.bincount(row, minlength=group).tolist()])  # among its row's
        prompt = torch.tensor(module.prompt)
        tokens = torch.full((group, len(prompt) + int(place.max())), int(module.end_id))
        tokens[:, : len(prompt)] = prompt
        block = torch.zeros_like(tokens)
        # A row reads the piece before it, in the block in which the next one was written; the prompt reads with the
        # first. The last piece is read by nobody.
        block[row, len(prompt) - 1 + place] = step // self.chunk.chunk_steps
        block[:, : len(prompt) - 1] = block[:, len(prompt) - 1 : len(prompt)]
        read_later = place + 1 < tokens.shape[1] - len(prompt) + 1
        tokens[row[read_later], len(prompt) + place[read_later]] = pieces[read_later]
        memory = StreamedMemory(trace.memory.features[recording : recording + 1], trace.memory.layout)
        hidden = decode_streamed(module, memory, tokens, block)[row, len(prompt) - 1 + place]
        logits = module.decoder.logits(hidden).masked_fill(~trace.allowed[here], -torch.inf)
        return (logits / temperature).log_softmax(-1).gather(1, pieces[:, None])[:, 0]


def _bernoulli(odds: Tensor, opened: Tensor) -> Tensor:
    """Log-probability of opening, or of not."""
    return F.logsigmoid(torch.where(opened, odds, -odds))


def _repeated(tree: Any, times: int) -> Any:
    """A tree of tensors [B, …] with each row `times` times in a row."""
    if isinstance(tree, Tensor):
        return tree.repeat_interleave(times, 0)
    if isinstance(tree, tuple):
        return tuple(_repeated(part, times) for part in tree)
    return replace(tree, **{field.name: _repeated(getattr(tree, field.name), times) for field in fields(tree)})


def policy_of(model: Model, chunk: ChunkSetting, *, temperature: float) -> CrossPolicy | AdditivePolicy:
    """The policy of the model's family."""
    kind = CrossPolicy if isinstance(model.recogniser, CrossRecogniser) else AdditivePolicy
    return kind(model, chunk, temperature=temperature)
