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
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.additive_recogniser import AdditiveRecogniser, AdditiveState
from asr.config import ChunkSetting, RowSettings, SessionSettings
from asr.errors import ConfigError
from asr.model import Model
from asr.recogniser import WAIT, RowOutput
from asr.units import STEP_MS, STEP_SAMPLES, samples_to_ms
from asr.vocabulary import Vocabulary

__all__ = ["AdditivePolicy", "Decision", "Heard", "Luck", "Policy", "RolledWord", "Rollouts", "words_of"]

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
class Decision:
    """Attributes: tokens, free, log_prob: [N] of one step."""

    tokens: Tensor
    free: Tensor
    log_prob: Tensor


class Luck:
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
        luck = Luck(seeds, group)
        rows = self._rows(heard, group)
        steps = heard.steps.repeat_interleave(group)
        kept: list[tuple[Decision, Tensor]] = []
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
    def _running(self, heard: Heard, group: int, luck: Luck) -> Any:
        """A context of (state that listens, state that decides, recogniser)."""

    @abstractmethod
    def _listen(self, block: Tensor, hears: Tensor, heard: Heard, shared: S, state: S, group: int) -> tuple[S, S]:
        """Both states after a block [B, N] that the recordings `hears` [B] have."""

    @abstractmethod
    def _decide(self, active: Tensor, output: RowOutput, state: S, luck: Luck) -> Decision:
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
        self, heard: Heard, group: int, luck: Luck
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

    def _decide(self, active: Tensor, output: RowOutput, state: AdditiveState, luck: Luck) -> Decision:
        scores = state.row.present()[1][:, self.recogniser.wait :]  # [N, 1] the wait's
        drawn, log_prob = self._draw(torch.cat([output.logits, scores], 1), luck.text)
        tokens = torch.where(active & (drawn != self.recogniser.wait), drawn, WAIT)
        return Decision(tokens, active, torch.where(active, log_prob, 0.0))

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
