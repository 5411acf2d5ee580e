"""Weights of an n-gram and of phrases, found on clips with transcripts: chosen on one half, judged on the other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from asr.audio import open_audio
from asr.comparison import PairedDifference, paired_difference
from asr.errors import ConfigError
from asr.jobs import transcribe_streams
from asr.metrics import WordErrors, count_errors, normalize_english, sum_word_errors
from asr.model import Model
from asr.resample import Samples
from asr.words import Transcript
from lm_fusion.fusion import Fusion, Steering
from lm_fusion.phrases import Phrase

__all__ = ["SpokenClip", "Trial", "Tuning", "read_spoken_clips", "tune", "verdict"]

LEAST_CLIPS = 20
"""From fewer no interval can be told."""


@dataclass(frozen=True, kw_only=True)
class SpokenClip:
    """An audio file and what is said in it."""

    path: Path
    text: str


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One pair of weights.

    Attributes:
        lm_weight, boost: what was tried; both 0: nothing is steered.
        errors: of each clip.
    """

    lm_weight: float
    boost: float
    errors: tuple[WordErrors, ...]

    def half(self, which: int) -> tuple[WordErrors, ...]:
        """Every second clip, from the first (0) or the second (1) on."""
        return self.errors[which::2]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What was found.

    Attributes:
        base: without weights; trials: with, in the order tried.
        best: the trial with the fewest errors on the first half, of equals the one with the smallest weights.
        gain: of `best` over `base` on the second half, which had no say in the choice.
    """

    base: Trial
    trials: tuple[Trial, ...]
    best: Trial
    gain: PairedDifference


def read_spoken_clips(manifest: Path, *, every: int = 1) -> tuple[SpokenClip, ...]:
    """The clips of a manifest (JSON lines with `audio`, relative to its folder, and `text`) whose texts have words.

    Args:
        manifest: the file.
        every: take every so-many-th.

    Raises:
        ConfigError: if it cannot be read, a line is no such object, or there are fewer than LEAST_CLIPS.
    """
    found = []
    try:
        lines = manifest.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{manifest}: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            clip = SpokenClip(path=manifest.parent / entry["audio"], text=str(entry.get("text") or ""))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{manifest}, line {number}: need a JSON object with audio and text") from error
        if normalize_english(clip.text):
            found.append(clip)
    if len(found[::every]) < LEAST_CLIPS:
        raise ConfigError(f"{manifest} has {len(found[::every])} clips with words; {LEAST_CLIPS} or more are needed")
    return tuple(found[::every])


def tune(
    model: Model,
    clips: Sequence[SpokenClip],
    scorer: Fusion,
    *,
    lm_weights: Sequence[float],
    phrases: Sequence[Phrase],
    boosts: Sequence[float],
    delay_ms: int,
    chunk_ms: int,
    batch_size: int,
    log: Callable[[str], None],
) -> Tuning:
    """Decodes all clips once without weights and once with every pair of them.

    Args:
        model: what `asr.load` gave.
        clips: at least 2.
        scorer: with the n-gram model, if there is one, and `batch_size` slots.
        lm_weights: to try; needs an n-gram model where one is above 0.
        phrases: the list; boosts: to try with it.
        delay_ms, chunk_ms, batch_size: see `transcribe_streams`.
        log: told each trial's word error rate.

    Raises:
        ConfigError: if there is nothing to try; and as the parts do.
    """

    def audio(clip: SpokenClip) -> Iterator[Samples]:
        with open_audio(clip.path) as source:
            yield from source.blocks()

    def trial(lm_weight: float, boost: float) -> Trial:
        steering = Steering(phrases=scorer.builder.build(phrases, boost=boost), lm_weight=lm_weight)
        texts: dict[str, str] = {}
        jobs = ((str(number), audio(clip)) for number, clip in enumerate(clips))
        for key, result in transcribe_streams(
            model,
            jobs,
            delay_ms=delay_ms,
            chunk_ms=chunk_ms,
            batch_size=batch_size,
            scorer=scorer,
            steering=lambda _: steering,
        ):
            if not isinstance(result, Transcript):
                raise result
            texts[key] = result.text
        errors = tuple(count_errors(clip.text, texts[str(number)]) for number, clip in enumerate(clips))
        log(f"lm-weight {lm_weight:g}, boost {boost:g}: WER {100 * sum_word_errors(errors).rate():.2f} %")
        return Trial(lm_weight=lm_weight, boost=boost, errors=errors)

    pairs = [pair for pair in itertools.product(lm_weights or [0.0], boosts or [0.0]) if any(pair)]
    if not pairs:
        raise ConfigError("there is nothing to try: give weights above 0 with --lm, or boosts with --phrases")
    base = trial(0.0, 0.0)
    trials = tuple(trial(*pair) for pair in pairs)
    best = min(trials, key=lambda t: (sum_word_errors(t.half(0)).errors, t.lm_weight + t.boost))
    return Tuning(base=base, trials=trials, best=best, gain=paired_difference(best.half(1), base.half(1), seed=1))


def verdict(tuning: Tuning) -> str:
    """One line for people: the weights to use, or that there is no gain."""
    best, gain = tuning.best, tuning.gain
    judged = (
        f"word errors {100 * gain.difference:+.2f} % of words [{100 * gain.low:+.2f}, {100 * gain.high:+.2f}] "
        f"on the {len(best.half(1))} clips that did not choose it"
    )
    weights = f"lm-weight {best.lm_weight:g}, boost {best.boost:g}"
    return f"use {weights}: {judged}" if gain.better else f"no gain: the best is {weights}, {judged}"
