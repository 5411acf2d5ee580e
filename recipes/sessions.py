"""Training sessions: one or more clips behind one another, disturbed, with their words on the session's clock."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asr.units import SAMPLE_RATE
from recipes.data import Clip, load_audio, read_manifest
from recipes.teacher import TaughtWord, read_words

__all__ = ["Plan", "Session", "SessionMaker", "group", "plan_sessions", "read_noises", "taught_clips"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A session that is still to be made.

    Attributes:
        clips: in order. pauses_ms: the silence before each. seed: of what disturbs it.
    """

    clips: tuple[Clip, ...]
    pauses_ms: tuple[int, ...]
    seed: int

    @property
    def duration_ms(self) -> int:
        """Clips and pauses."""
        return sum(clip.duration_ms for clip in self.clips) + sum(self.pauses_ms)


@dataclass(frozen=True, kw_only=True)
class Session:
    """Attributes: clean, heard: [N] 16 kHz, as recorded and as disturbed; words: on the session's clock."""

    clean: Tensor
    heard: Tensor
    words: tuple[TaughtWord, ...]


def taught_clips(sources: Iterable[tuple[Path, Path]]) -> tuple[list[Clip], dict[str, Sequence[TaughtWord]]]:
    """The clips of (manifest, folder of `recipes.teacher` or `recipes.spell`) pairs that have words, and the words."""
    clips: list[Clip] = []
    words: dict[str, Sequence[TaughtWord]] = {}
    for manifest, folder in sources:
        known = read_words(folder)
        words.update(known)
        clips += [clip for clip in read_manifest(manifest) if known.get(clip.audio)]
    return clips, words


def read_noises(manifest: Path | None) -> list[Tensor]:
    """[N] samples of every recording that is longer than a second; none without a manifest."""
    noises = [load_audio(clip.path) for clip in read_manifest(manifest)] if manifest is not None else []
    return [noise for noise in noises if noise.shape[0] > SAMPLE_RATE]


def plan_sessions(
    clips: Sequence[Clip], *, weights: Mapping[str, float], longest_ms: int, joined_share: float, rng: random.Random
) -> list[Plan]:
    """One epoch: every clip about as often as its source's weight says, some of them joined.

    Args:
        clips: any.
        weights: by source; 1 where there is none.
        longest_ms: of a session; longer clips are left out.
        joined_share: of the sessions that go on with another clip until they are long.
    """
    drawn: list[Clip] = []
    for clip in clips:
        if clip.duration_ms + 1000 > longest_ms:
            continue
        weight = weights.get(clip.source, 1.0)
        drawn += [clip] * (int(weight) + (rng.random() < weight % 1))
    rng.shuffle(drawn)
    plans: list[Plan] = []
    while drawn:
        chosen, pauses = [drawn.pop()], [_first_pause(rng)]
        goal = rng.uniform(0.3, 1.0) * longest_ms if rng.random() < joined_share else 0
        used = chosen[0].duration_ms + pauses[0]
        while drawn and used < goal:
            pause = int(rng.uniform(150, 2500))
            used += pause + drawn[-1].duration_ms
            if used > longest_ms:
                break
            chosen.append(drawn.pop())
            pauses.append(pause)
        plans.append(Plan(clips=tuple(chosen), pauses_ms=tuple(pauses), seed=rng.randrange(2**31)))
    return plans


def _first_pause(rng: random.Random) -> int:
    return 0 if rng.random() < 0.5 else int(rng.uniform(0, 1000))


def group(plans: Sequence[Plan], *, seconds: float, rng: random.Random) -> Iterator[list[Plan]]:
    """Batches of sessions of like length, about `seconds` of padded audio each, in random order."""
    batches: list[list[Plan]] = [[]]
    for plan in sorted(plans, key=lambda plan: plan.duration_ms):
        if batches[-1] and (len(batches[-1]) + 1) * plan.duration_ms > seconds * 1000:
            batches.append([])
        batches[-1].append(plan)
    rng.shuffle(batches)
    yield from batches


class SessionMaker:
    """Makes planned sessions.

    Args:
        words: by clip.
        noises: [N] 16 kHz recordings that disturb; may be empty.
    """

    def __init__(self, words: Mapping[str, Sequence[TaughtWord]], noises: Sequence[Tensor]) -> None:
        self._words, self._noises = words, noises

    def make(self, plan: Plan) -> Session:
        """Audio and words; the same for the same plan.

        One session in six begins in the midst of a sentence: all words before a random one are gone, sound and text.
        """
        rng = random.Random(plan.seed)
        parts: list[Tensor] = []
        words: list[TaughtWord] = []
        at = 0
        for clip, pause in zip(plan.clips, plan.pauses_ms, strict=True):
            samples = load_audio(clip.path)
            samples = samples * 10 ** (rng.uniform(-4, 4) / 20)
            parts += [torch.zeros(pause * SAMPLE_RATE // 1000), samples]
            at += pause
            words += [
                replace(word, start_ms=word.start_ms + at, end_ms=word.end_ms + at) for word in self._words[clip.audio]
            ]
            at += clip.duration_ms
        clean = torch.cat(parts)
        if len(words) > 4 and rng.random() < 1 / 6:
            first = rng.randrange(1, len(words) // 2 + 1)
            cut = (words[first - 1].end_ms + words[first].start_ms) // 2
            clean = clean[cut * SAMPLE_RATE // 1000 :]
            words = [
                replace(word, start_ms=max(0, word.start_ms - cut), end_ms=max(1, word.end_ms - cut))
                for word in words[first:]
            ]
        clean = (clean * 10 ** (rng.uniform(-15, 4) / 20)).clamp(-1, 1)
        return Session(clean=clean, heard=self._disturbed(clean, rng), words=tuple(words))

    def _disturbed(self, clean: Tensor, rng: random.Random) -> Tensor:
        """Noise under a third of the sessions, a telephone's band on one in twelve."""
        heard = clean
        if rng.random() < 1 / 12:
            heard = _band(heard, 300, 3400)
        if rng.random() < 1 / 3:
            noise = self._noise(clean.shape[0], rng)
            level = clean.square().mean().sqrt().clamp(min=1e-4) / noise.square().mean().sqrt().clamp(min=1e-6)
            heard = heard + noise * level * 10 ** (-rng.uniform(5, 30) / 20)
        return heard.clamp(-1, 1)

    def _noise(self, count: int, rng: random.Random) -> Tensor:
        if not self._noises or rng.random() < 0.3:
            return torch.from_numpy(np.random.default_rng(rng.randrange(2**31)).standard_normal(count)).float()
        noise = self._noises[rng.randrange(len(self._noises))]
        noise = noise.repeat(-(-count // noise.shape[0]) + 1)
        start = rng.randrange(noise.shape[0] - count)
        return noise[start : start + count]


def _band(samples: Tensor, low_hz: float, high_hz: float) -> Tensor:
    """[N] without what lies outside the band."""
    spectrum = torch.fft.rfft(samples)
    frequency = torch.fft.rfftfreq(samples.shape[0], 1 / SAMPLE_RATE)
    spectrum[(frequency < low_hz) | (frequency > high_hz)] = 0
    cut: Tensor = torch.fft.irfft(spectrum, samples.shape[0])
    return cut
