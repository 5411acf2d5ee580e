"""Word times from a checkpoint's own CTC head, for data that `recipes.align` has no dictionary or no patience for.

The head hears the whole clip at once, and the best path that spells the transcript (`kernels.ctc.forced_align`, the
path of `torchaudio.functional.forced_align`) says in which step each label lies; words reach a little beyond their
labels, as in `asr.word_times`. Steps are 80 ms, so single words are less exact than PocketSphinx's, and a model should
not be judged by delays against its own alignments.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from asr.cross_recogniser import CrossRecogniser
from asr.errors import ConfigError
from asr.model import Model
from asr.units import FRAMES_PER_STEP, STEP_MS, STEP_SAMPLES, samples_to_ms
from asr.word_times import AFTER_LAST_MS, BEFORE_FIRST_MS
from kernels.dispatch import dispatch
from recipes.align import AlignedWord, Unalignable, group_spans, spoken_words
from recipes.teacher import TAIL_STEPS, full_context_features, stacked

__all__ = ["CtcAligner", "word_spans"]

MOST_DEFICIT = 2.5
"""Nats a label by which the transcript's path may be less likely than the best labels of the same steps.

Of the 15 recordings in samples/, on which it was chosen, the right transcript lies 0.1 to 1.8 below (one that the head
mishears 4.8), its first half 3.0 or more, and another one's transcript 7.6 or more.
"""


class CtcAligner:
    """Aligns transcripts with audio by a model's CTC head.

    Raises:
        ConfigError: if the model has none.
    """

    def __init__(self, model: Model) -> None:
        recogniser = model.recogniser
        if not isinstance(recogniser, CrossRecogniser) or recogniser.ctc is None or model.ctc_tokenizer is None:
            raise ConfigError(f"{model.name} has no CTC head to align with; earlybird-en has one")
        self._recogniser, self._head, self._tokenizer = recogniser, recogniser.ctc, model.ctc_tokenizer

    def align(self, samples: Tensor, text: str) -> tuple[AlignedWord, ...]:
        """Word times of one clip; see `recipes.align.WordAligner.align`.

        Args:
            samples: [N] float32 in [-1, 1] at 16 kHz.
            text: the verbatim transcript.

        Raises:
            Unalignable: with the reason.
        """
        groups = spoken_words(text)
        spoken = [part.strip("'") for group in groups for part in group]
        if not spoken:
            raise Unalignable("no spoken word in the transcript")
        pieces = self._tokenizer.encode(spoken)
        log_probs = self.log_probs(samples)
        labels = [label for word in pieces for label in word]
        repeats = sum(a == b for a, b in pairwise(labels))
        if len(labels) + repeats > log_probs.shape[0]:
            raise Unalignable("no path of the transcript through the audio")
        spans = dispatch("ctc.forced_align", "numba")(log_probs, torch.tensor(labels), blank=self._tokenizer.blank)
        deficit = float(log_probs.amax(-1).double().sum() - spans.total) / len(labels)
        if deficit > MOST_DEFICIT:
            raise Unalignable("the audio does not sound like the transcript")
        counts = [len(word) for word in pieces]
        times = word_spans(spans.first.tolist(), spans.last.tolist(), counts)
        return group_spans(text.split(), groups, times, duration_ms=samples_to_ms(samples.shape[0]))

    @torch.inference_mode()
    def log_probs(self, samples: Tensor) -> Tensor:
        """[T, V'+1] of the T steps of a clip [N], all of it heard.

        Raises:
            Unalignable: if the encoder has no position for its end.
        """
        batch, lens = stacked([samples], TAIL_STEPS)
        longest = self._recogniser.encoder_positions.shape[0] // FRAMES_PER_STEP
        if batch.shape[1] // STEP_SAMPLES > longest:
            raise Unalignable(f"longer than {(longest - TAIL_STEPS) * STEP_MS} ms")
        features, _ = full_context_features(self._recogniser, batch, lens)
        # A word's last label lies in the clip, however much silence the encoder is given behind it.
        found: Tensor = self._head(features)[0, : -(-samples.shape[0] // STEP_SAMPLES)]
        return found


def word_spans(first: Sequence[int], last: Sequence[int], counts: Sequence[int]) -> list[tuple[int, int]]:
    """(start_ms, end_ms) of words from the steps of their labels; where two would overlap, the middle parts them.

    Args:
        first, last: of each label, in order; the next label begins behind the last step of the one before.
        counts: labels of each word, at least one.

    >>> word_spans([2, 5, 6], [2, 5, 9], [1, 2])
    [(95, 265), (335, 825)]
    >>> word_spans([2, 3], [2, 3], [1, 1])
    [(95, 220), (220, 345)]
    """
    spans: list[tuple[int, int]] = []
    at = 0
    for count in counts:
        start = max(0, first[at] * STEP_MS - BEFORE_FIRST_MS)
        end = (last[at + count - 1] + 1) * STEP_MS + AFTER_LAST_MS
        if spans and spans[-1][1] > start:
            start = (spans[-1][1] + start) // 2
            spans[-1] = (spans[-1][0], start)
        spans.append((start, end))
        at += count
    return spans
