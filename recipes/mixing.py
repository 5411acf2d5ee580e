"""Sound for long trials: noise of a stated level, and recordings joined with pauses, with what lies where."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from asr.errors import ConfigError
from asr.resample import Samples
from asr.units import SAMPLE_RATE, samples_to_ms
from recipes.data import Clip, load_audio

__all__ = [
    "Joined",
    "Placed",
    "at_level",
    "cut_pieces",
    "in_noise",
    "join_clips",
    "looped",
    "pink_noise",
    "rms_db",
    "white_noise",
]

P = TypeVar("P", Samples, bytes)


def rms_db(samples: Samples) -> float:
    """Root mean square of [N] samples in dB of full scale; digital silence is -inf.

    >>> round(rms_db(np.full(100, 0.01)), 6)
    -40.0
    """
    power = float(np.square(samples, dtype=np.float64).mean()) if len(samples) else 0.0
    return float(10 * np.log10(power)) if power else float("-inf")


def at_level(samples: Samples, level_db: float) -> Samples:
    """[N] float32, scaled to a root mean square of `level_db` dBFS, then cut off at full scale as a converter would.

    Raises:
        ConfigError: if there is nothing to scale.
    """
    now_db = rms_db(samples)
    if not np.isfinite(now_db):
        raise ConfigError(f"{len(samples)} samples of digital silence cannot be brought to {level_db} dBFS")
    scaled: Samples = np.clip(samples * 10 ** ((level_db - now_db) / 20), -1, 1).astype(np.float32)
    return scaled


def in_noise(samples: Samples, noise: Samples, snr_db: float) -> Samples:
    """[N] samples over noise, which is looped and scaled to be `snr_db` fainter (root mean squares of the whole).

    The sum is not cut off at full scale: it is heard as numbers, not through a converter.

    >>> heard = in_noise(np.full(4, 0.5), np.array([1.0, -1.0]), 20)
    >>> (heard - 0.5).round(3).tolist()
    [0.05, -0.05, 0.05, -0.05]

    Raises:
        ConfigError: if either is digital silence.
    """
    speech_db, noise_db = rms_db(samples), rms_db(noise)
    if not (np.isfinite(speech_db) and np.isfinite(noise_db)):
        raise ConfigError("digital silence is no number of decibels louder or fainter than anything")
    scale = 10 ** ((speech_db - snr_db - noise_db) / 20)
    return (samples + looped(noise, len(samples)) * scale).astype(samples.dtype)


def white_noise(count: int, rng: np.random.Generator) -> Samples:
    """[count] float32 of equal power at every frequency, of unit variance."""
    return rng.standard_normal(count).astype(np.float32)


def pink_noise(count: int, rng: np.random.Generator) -> Samples:
    """[count] float32 of equal power in every octave above 20 Hz, nothing below 20 Hz but what rounding leaves."""
    spectrum = np.fft.rfft(rng.standard_normal(count))
    frequency = np.fft.rfftfreq(count, 1 / SAMPLE_RATE)
    spectrum[frequency < 20] = 0
    spectrum[frequency >= 20] /= np.sqrt(frequency[frequency >= 20])
    return np.fft.irfft(spectrum, count).astype(np.float32)


def looped(samples: Samples, count: int) -> Samples:
    """[count] samples: the recording again and again.

    Raises:
        ConfigError: if it is empty.
    """
    if not len(samples):
        raise ConfigError("an empty recording cannot be repeated")
    return np.tile(samples, -(-count // len(samples)))[:count]


def cut_pieces(whole: P, *, largest: int, rng: random.Random) -> list[P]:
    """[N] samples, or N bytes, in pieces of 1 to `largest`, which joined are the whole; now and then a 1.

    Raises:
        ConfigError: if `largest` is below 1.
    """
    if largest < 1:
        raise ConfigError(f"the largest piece is {largest}; it must be at least 1")
    pieces: list[P] = []
    at = 0
    while at < len(whole):
        size = 1 if rng.random() < 0.05 else rng.randint(1, largest)
        pieces.append(whole[at : at + size])
        at += size
    return pieces


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Attributes: clip: which. start, end: the samples of the whole that it fills."""

    clip: Clip
    start: int
    end: int

    @property
    def start_ms(self) -> int:
        """Where it starts in the whole."""
        return samples_to_ms(self.start)


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Attributes: samples: [N] float32 at 16 kHz. placed: the clips, in order, with pauses between."""

    samples: Samples
    placed: tuple[Placed, ...]

    @property
    def text(self) -> str:
        """The transcripts in order."""
        return " ".join(one.clip.text or "" for one in self.placed)


def join_clips(
    clips: Sequence[Clip],
    *,
    seconds: float,
    seed: int,
    pause_ms: tuple[int, int] = (300, 1000),
    noise_db: float = -65.0,
) -> Joined:
    """Clips in random order, each with a pause of faint noise before it, until there are `seconds` of audio.

    A clip comes again only after all others did. The last one is whole, so the audio is a little longer than asked for.

    Args:
        clips: at least one.
        seconds: how much audio is wanted at least.
        seed: of the order, the pauses and their noise.
        pause_ms: the shortest and longest pause.
        noise_db: level of the pauses, in dBFS.

    Raises:
        ConfigError: if there is no clip, or the pauses or the length are out of range.
    """
    shortest, longest = pause_ms
    if not clips or seconds <= 0 or not 0 < shortest <= longest:
        raise ConfigError(
            f"need clips, seconds above 0 and pauses 0 < shortest <= longest; got {len(clips)} clips, {seconds} s and "
            f"pauses of {pause_ms} ms"
        )
    rng, sound = random.Random(seed), np.random.default_rng(seed)
    parts: list[Samples] = []
    placed: list[Placed] = []
    order: list[Clip] = []
    length = 0
    while length < seconds * SAMPLE_RATE:
        if not order:
            order = rng.sample(list(clips), len(clips))
        clip = order.pop()
        pause = at_level(white_noise(rng.randint(shortest, longest) * SAMPLE_RATE // 1000, sound), noise_db)
        samples = load_audio(clip.path).numpy()
        start = length + len(pause)
        length = start + len(samples)
        parts += [pause, samples]
        placed.append(Placed(clip=clip, start=start, end=length))
    return Joined(samples=np.concatenate(parts), placed=tuple(placed))
