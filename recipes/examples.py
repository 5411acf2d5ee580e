"""Examples of supervised training and their batches: audio with delayed-stream targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from asr.delay_targets import TimedPieces, build_targets
from asr.errors import ConfigError
from asr.units import STEP_SAMPLES, samples_to_ms
from asr.vocabulary import Vocabulary
from recipes.align import AlignedClip
from recipes.data import Clip, load_audio

__all__ = ["AlignedExamples", "Batch", "Example", "durations_ms", "make_batch"]


@dataclass(frozen=True, kw_only=True)
class Example:
    """Attributes: samples: [N] float32 at 16 kHz. words: as the decoder spells them, with their acoustic ends."""

    samples: Tensor
    words: tuple[TimedPieces, ...]


class AlignedExamples(Sequence[Example]):
    """The clips of a manifest that have word times; audio is read when it is asked for.

    A transcript that is all capitals is taken in small letters.
    """

    def __init__(
        self, clips: Sequence[Clip], aligned: Mapping[str, AlignedClip], vocabulary: Vocabulary, *, longest_ms: int
    ) -> None:
        self._pairs = [
            (clip, aligned[clip.audio])
            for clip in clips
            if clip.audio in aligned and aligned[clip.audio].words and clip.duration_ms <= longest_ms
        ]
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def durations_ms(self) -> list[int]:
        """Of the clips, as the manifest states them: no audio is read."""
        return [clip.duration_ms for clip, _ in self._pairs]

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        """The example with its audio."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        clip, aligned = self._pairs[index]
        small = aligned.text.isupper()
        words = tuple(
            TimedPieces(
                pieces=tuple(self._vocabulary.encode(" " + (word.text.lower() if small else word.text))),
                end_ms=word.end_ms,
            )
            for word in aligned.words
        )
        return Example(samples=load_audio(clip.path), words=words)


def durations_ms(examples: Sequence[Example]) -> list[int]:
    """Of the examples' audio."""
    if isinstance(examples, AlignedExamples):
        return examples.durations_ms
    return [samples_to_ms(example.samples.shape[0]) for example in examples]


@dataclass(frozen=True)
class Batch:
    """Padded examples.

    Attributes:
        samples: [B, N] float32, N whole steps, silence behind each end.
        outputs: [B, T] what each step says; the wait behind each end.
        valid: [B, T] bool, steps that count.
        delay: [B] τ in steps.
    """

    samples: Tensor
    outputs: Tensor
    valid: Tensor
    delay: Tensor


def make_batch(examples: Sequence[Example], delays: Sequence[int], *, wait: int, trailing_waits: int) -> Batch:
    """Examples with their targets at delays, a delay each.

    Audio is followed by silence until every piece, and `trailing_waits` waits, have had their step.

    Raises:
        ConfigError: if there is no example, or a word cannot be placed.
    """
    if not examples:
        raise ConfigError("a batch needs an example")
    targets = [
        build_targets(
            example.words,
            delay_steps=delay,
            wait=wait,
            steps=-(-example.samples.shape[0] // STEP_SAMPLES),
            trailing_waits=trailing_waits,
        ).outputs
        for example, delay in zip(examples, delays, strict=True)
    ]
    longest = max(len(one) for one in targets)
    samples = torch.zeros(len(examples), longest * STEP_SAMPLES)
    outputs = torch.full((len(examples), longest), wait, dtype=torch.int64)
    valid = torch.zeros(len(examples), longest, dtype=torch.bool)
    for b, (example, one) in enumerate(zip(examples, targets, strict=True)):
        samples[b, : example.samples.shape[0]] = example.samples
        outputs[b, : len(one)] = torch.tensor(one)
        valid[b, : len(one)] = True
    return Batch(samples, outputs, valid, torch.tensor(list(delays)))
