"""What a recogniser may do with a recording: its stream decoded several times over with decisions drawn at random.

The very calls of a session (`listen`, `row`, `accept`) run on all rows at once. A decision is the output of one step:
in the additive family one draw from the softmax over text and wait, in the cross family the gate's opening, and where
it opens one draw from the softmax over text. `Policy.log_probs` gives the decisions' log-probabilities back in one
teacher-forced forward with gradients; equal to what they were drawn with (tests/recipes/test_rollout.py).

In the cross family the encoder hears each recording once for all its rollouts and is not trained, positions do not
start anew, and what the gate looked at is taken as it was: the gate learns when to speak, the decoder what to write.

B recordings, G rollouts of each, N = B · G rows (those of a recording together), T steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.additive_recogniser import AdditiveRecogniser, AdditiveState
from asr.config import AnchorConfig, ChunkSetting, RowSettings, SessionSettings
from asr.cross_recogniser import CrossRecogniser, CrossState
from asr.errors import ConfigError
from asr.gate import GateAnswer, GateView, LearnedGate, read
from asr.model import Model
from asr.recogniser import WAIT, RowOutput
from asr.units import FRAMES_PER_STEP, STEP_MS, STEP_SAMPLES, samples_to_ms
from asr.vocabulary import Vocabulary
from recipes.streamed import Layout, StreamedMemory, decode_streamed, encode_streamed

__all__ = ["AdditivePolicy", "CrossPolicy", "Heard", "Policy", "RolledWord", "Rollouts", "policy_of"]

S = TypeVar("S")


@dataclass(frozen=True)
class Heard:
    """B recordings with silence behind them, whole chunks.

    Attributes:
        samples: [B, N] float32; steps: [B] steps of each; audio_ms: [B] what of it was recorded; delay: [B] τ in steps.
    """

    samples: Tensor
    steps: Tensor
    audio_ms: tuple[int, ...]
    delay: Tensor

    @classmethod
    def of(cls, sounds: Sequence[Tensor], delays: Sequence[int], *, chunk_steps: int, tail_steps: int) -> Heard:
        """Recordings [N] with at least `tail_steps` of silence."""
        size = chunk_steps * STEP_SAMPLES
        blocks = [-(-(x.shape[0] + tail_steps * STEP_SAMPLES) // size) for x in sounds]
        samples = torch.zeros(len(sounds), max(blocks) * size)
        for row, x in zip(samples, sounds, strict=True):
            row[: x.shape[0]] = x
        return cls(
            samples,
            torch.tensor(blocks) * chunk_steps,
            tuple(samples_to_ms(x.shape[0]) for x in sounds),
            torch.tensor(list(delays)),
        )


@dataclass(frozen=True, kw_only=True)
class RolledWord:
    """A word of a rollout.

    Attributes:
        text: as written. first, last: the steps of its first and last piece.
        emitted_ms: how much audio had to arrive for its last piece with a letter or digit.
    """

    text: str
    first: int
    last: int
    emitted_ms: int


@dataclass(frozen=True)
class Rollouts:
    """N rows of T steps.

    Attributes:
        heard: the recordings. group: G.
        tokens: [N, T] pieces or WAIT; active: [N, T] whether the step is one of the row's.
        free: [N, T] whether there was something to decide.
        log_probs: [N, T] of each decision as it was drawn; 0 where there was nothing to decide.
        words: of each row.
        trace: what the family needs to find the log-probabilities again.
    """

    heard: Heard
    group: int
    tokens: Tensor
    active: Tensor
    free: Tensor
    log_probs: Tensor
    words: tuple[tuple[RolledWord, ...], ...]
    trace: Any


def words_of(
    tokens: Sequence[int], vocabulary: Vocabulary, letters: Sequence[bool], *, chunk_steps: int, audio_ms: int
) -> tuple[RolledWord, ...]:
    """The words of one row's outputs, cut and timed as a session does (`asr.text.WordAssembler`)."""
    groups: list[list[tuple[int, int]]] = []
    for step, token in enumerate(tokens):
        if token == WAIT:
            continue
        if not groups or vocabulary.pieces[token][:1].isspace():
            groups.append([])
        groups[-1].append((step, token))
    words = []
    for group in groups:
        lettered = [step for step, token in group if letters[token]] or [group[-1][0]]
        heard_ms = -(-(lettered[-1] + 1) // chunk_steps) * chunk_steps * STEP_MS
        words.append(
            RolledWord(
                text="".join(vocabulary.decode([token for _, token in group]).split()),
                first=group[0][0],
                last=group[-1][0],
                emitted_ms=min(heard_ms, audio_ms),
            )
        )
    return tuple(word for word in words if word.text)


@dataclass(frozen=True)
class _Decision:
    """Attributes: tokens, free, log_prob: [N] of one step."""

    tokens: Tensor
    free: Tensor
    log_prob: Tensor


class _Luck:
    """Random numbers of each step, [N] in [0, 1): one for the gate, one for the text; a recording has its own."""

    def __init__(self, seeds: Sequence[int], group: int) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._group = group
        self.next()

    def next(self) -> None:
        """Those of the next step."""
        drawn = torch.cat([torch.rand(self._group, 2, generator=each) for each in self._generators])
        self.gate, self.text = drawn.unbind(1)


class Policy(ABC, Generic[S]):
    """Draws rollouts and gives their log-probabilities.

    Args:
        model: whose recogniser decides.
        chunk: what the encoder takes at once.
        temperature: the logits are divided by it; 0: the likeliest decision, always.

    Raises:
        ConfigError: if the temperature is negative.
    """

    def __init__(self, model: Model, chunk: ChunkSetting, *, temperature: float) -> None:
        if temperature < 0:
            raise ConfigError(f"temperature is {temperature}; it must be 0 or more")
        self.model, self.chunk, self.temperature = model, chunk, temperature
        self._letters = model.vocabulary.letters(model.config.vocabulary).tolist()

    @torch.no_grad()
    def roll(self, heard: Heard, group: int, seeds: Sequence[int]) -> Rollouts:
        """G rollouts of each recording, all in one batch.

        Args:
            seeds: one a recording: its rollouts are the same in any batch.

        Raises:
            ConfigError: if a recording is too long for the family.
        """
        count = heard.samples.shape[0] * group
        luck = _Luck(seeds, group)
        rows = self._rows(heard, group)
        steps = heard.steps.repeat_interleave(group)
        kept: list[tuple[_Decision, Tensor]] = []
        with self._running(heard, group, luck) as (shared, state, recogniser):
            size = self.chunk.chunk_steps
            for start in range(0, heard.samples.shape[1] // STEP_SAMPLES, size):
                block = heard.samples[:, start * STEP_SAMPLES : (start + size) * STEP_SAMPLES]
                shared, state = self._listen(block, start < heard.steps, heard, shared, state, group)
                for step in range(start, start + size):
                    active = step < steps
                    luck.next()
                    output, state = recogniser.row(active, rows, state)
                    decision = self._decide(active, output, state, luck)
                    state = recogniser.accept(active, decision.tokens, output, state)
                    kept.append((decision, active))
            trace = self._trace(heard, group)
        tokens = torch.stack([decision.tokens for decision, _ in kept], 1)
        return Rollouts(
            heard=heard,
            group=group,
            tokens=tokens,
            active=torch.stack([active for _, active in kept], 1),
            free=torch.stack([decision.free for decision, _ in kept], 1),
            log_probs=torch.stack([decision.log_prob for decision, _ in kept], 1),
            words=tuple(
                words_of(
                    tokens[n].tolist(),
                    self.model.vocabulary,
                    self._letters,
                    chunk_steps=size,
                    audio_ms=heard.audio_ms[n // group],
                )
                for n in range(count)
            ),
            trace=trace,
        )

    def _rows(self, heard: Heard, group: int) -> RowSettings:
        return RowSettings.stack(
            [
                SessionSettings(chunk=self.chunk, delay_steps=delay)
                for delay in heard.delay.tolist()
                for _ in range(group)
            ]
        )

    def _draw(self, logits: Tensor, luck: Tensor) -> tuple[Tensor, Tensor]:
        """[k] an output for each row of logits [k, V] (-inf where it must not be), and its log-probability.

        Args:
            luck: [k] in [0, 1): where in the distribution it is taken from.
        """
        if not self.temperature:
            best = logits.argmax(-1)
            return best, torch.zeros_like(logits[:, 0])
        log_probs = (logits / self.temperature).log_softmax(-1)
        reached = log_probs.double().exp().cumsum(-1)
        drawn = torch.searchsorted(reached, luck.double()[:, None] * reached[:, -1:], right=True)
        return drawn[:, 0], log_probs.gather(1, drawn)[:, 0]

    @abstractmethod
    def log_probs(self, rollouts: Rollouts, recogniser: nn.Module | None = None) -> Tensor:
        """[N, T] of each decision, with gradients; 0 where there was nothing to decide.

        Args:
            recogniser: whose; None: the model's own.
        """

    @abstractmethod
    def _running(self, heard: Heard, group: int, luck: _Luck) -> Any:
        """A context of (state that listens, state that decides, recogniser)."""

    @abstractmethod
    def _listen(self, block: Tensor, hears: Tensor, heard: Heard, shared: S, state: S, group: int) -> tuple[S, S]:
        """Both states after a block [B, N] that the recordings `hears` [B] have."""

    @abstractmethod
    def _decide(self, active: Tensor, output: RowOutput, state: S, luck: _Luck) -> _Decision:
        """One step's decisions."""

    @abstractmethod
    def _trace(self, heard: Heard, group: int) -> Any:
        """See `Rollouts`."""


# -- the additive family ---------------------------------------------------------------------------------------------


class AdditivePolicy(Policy[AdditiveState]):
    """Rollouts of a decoder whose wait is one of its outputs."""

    @property
    def recogniser(self) -> AdditiveRecogniser:
        """The model's."""
        assert isinstance(self.model.recogniser, AdditiveRecogniser)
        return self.model.recogniser

    @contextmanager
    def _running(
        self, heard: Heard, group: int, luck: _Luck
    ) -> Iterator[tuple[AdditiveState, AdditiveState, AdditiveRecogniser]]:
        state = self.recogniser.init_state(
            heard.samples.shape[0] * group, max_chunk_steps=self.chunk.chunk_steps, max_right=0, max_silence=0
        )
        yield state, state, self.recogniser

    def _listen(
        self, block: Tensor, hears: Tensor, heard: Heard, shared: AdditiveState, state: AdditiveState, group: int
    ) -> tuple[AdditiveState, AdditiveState]:
        lens = torch.where(hears, block.shape[1], 0).repeat_interleave(group)
        rows = self._rows(heard, group)
        state = self.recogniser.listen(block.repeat_interleave(group, 0), lens, rows, state)
        return state, state

    def _decide(self, active: Tensor, output: RowOutput, state: AdditiveState, luck: _Luck) -> _Decision:
        scores = state.row.present()[1][:, self.recogniser.wait :]  # [N, 1] the wait's
        drawn, log_prob = self._draw(torch.cat([output.logits, scores], 1), luck.text)
        tokens = torch.where(active & (drawn != self.recogniser.wait), drawn, WAIT)
        return _Decision(tokens, active, torch.where(active, log_prob, 0.0))

    def _trace(self, heard: Heard, group: int) -> None:
        return None

    def log_probs(self, rollouts: Rollouts, recogniser: nn.Module | None = None) -> Tensor:
        """See `Policy.log_probs`."""
        module = self.recogniser if recogniser is None else recogniser
        assert isinstance(module, AdditiveRecogniser)
        outputs = torch.where(rollouts.tokens == WAIT, module.wait, rollouts.tokens)
        heard = rollouts.heard
        logits = module(
            heard.samples.repeat_interleave(rollouts.group, 0),
            outputs,
            heard.delay.repeat_interleave(rollouts.group),
        )
        banned = F.pad(module.banned, (0, 1))
        log_probs = (logits.masked_fill(banned, -torch.inf) / (self.temperature or 1.0)).log_softmax(-1)
        return torch.where(rollouts.free, log_probs.gather(2, outputs[:, :, None])[:, :, 0], 0.0)


# -- the cross family ------------------------------------------------------------------------------------------------


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

    def __init__(self, gate: LearnedGate, temperature: float, luck: _Luck) -> None:
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
        self, heard: Heard, group: int, luck: _Luck
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

    def _decide(self, active: Tensor, output: RowOutput, state: CrossState, luck: _Luck) -> _Decision:
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
        return _Decision(tokens, free | output.open, log_prob)

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
