"""Manifests of speech clips, their audio, and the text rule by which transcripts are scored.

A manifest is JSON lines: `{"audio", "duration" (s), "text", "speaker", "source", "licence", …}`, `audio` relative to
the manifest's folder. Everything else a line holds is kept in `Clip.extra`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import soundfile
import torch
from torch import Tensor

from asr.errors import AudioFormatError, ConfigError, EmptyAudio, InvalidSamples, UnknownContainer
from asr.metrics import normalize_english
from asr.units import SAMPLE_RATE

__all__ = ["Clip", "filter_by_duration", "group_by_subset", "load_audio", "normalize_english", "read_manifest"]

_REQUIRED = ("audio", "duration", "source", "licence")
_KNOWN = frozenset({*_REQUIRED, "text", "speaker", "subset_tag"})
_NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Clip:
    """One line of a manifest.

    Attributes:
        audio: the name in the manifest, relative to its folder; unique within a manifest.
        path: where the file lies.
        duration_ms: what the manifest states, in whole milliseconds.
        text: the transcript as written; None where there is none.
        speaker, source, licence: provenance, for the model card and for splits by speaker.
        subset_tag: the part of a development set this clip is reported under.
        extra: whatever else the line holds.
    """

    audio: str
    path: Path
    duration_ms: int
    text: str | None
    speaker: str | None
    source: str
    licence: str
    subset_tag: str | None = None
    extra: Mapping[str, object] = field(default_factory=lambda: _NOTHING)


def read_manifest(path: str | Path) -> tuple[Clip, ...]:
    """Read a manifest, in its order.

    Args:
        path: a file of JSON lines; empty lines are allowed.

    Raises:
        ConfigError: if a line is no JSON object, lacks a field, has a duration that is not above 0, or names an audio
            file that an earlier line names.
    """
    path = Path(path)
    clips: dict[str, Clip] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            clip = _parse_line(line, folder=path.parent, where=f"{path}, line {number}")
            if clip.audio in clips:
                raise ConfigError(f"{path}, line {number}: {clip.audio!r} is listed twice")
            clips[clip.audio] = clip
    return tuple(clips.values())


def _parse_line(line: str, *, folder: Path, where: str) -> Clip:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error})") from error
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: need a JSON object, got {type(entry).__name__}")
    missing = [name for name in _REQUIRED if name not in entry]
    if missing:
        raise ConfigError(f"{where}: lacks {', '.join(missing)}")
    duration = entry["duration"]
    if not isinstance(duration, int | float) or duration <= 0:
        raise ConfigError(f"{where}: duration is {duration!r}; need seconds above 0")
    return Clip(
        audio=str(entry["audio"]),
        path=folder / str(entry["audio"]),
        duration_ms=round(duration * 1000),
        text=_optional_text(entry, "text"),
        speaker=_optional_text(entry, "speaker"),
        source=str(entry["source"]),
        licence=str(entry["licence"]),
        subset_tag=_optional_text(entry, "subset_tag"),
        extra=MappingProxyType({name: value for name, value in entry.items() if name not in _KNOWN}),
    )


def _optional_text(entry: Mapping[str, object], name: str) -> str | None:
    value = entry.get(name)
    return None if value is None else str(value)


def filter_by_duration(
    clips: Iterable[Clip], *, min_ms: int, max_ms: int, report: Callable[[str], None] | None = None
) -> tuple[Clip, ...]:
    """Keep the clips with min_ms <= duration <= max_ms, and say how many went and which setting sent them.

    Args:
        clips: any clips.
        min_ms, max_ms: both inclusive.
        report: receives one line per setting that dropped something; None prints to stderr.

    Raises:
        ConfigError: if min_ms > max_ms.
    """
    if min_ms > max_ms:
        raise ConfigError(f"min_ms ({min_ms}) must not exceed max_ms ({max_ms})")
    say = report if report is not None else _print_to_stderr
    clips = tuple(clips)
    short = [clip for clip in clips if clip.duration_ms < min_ms]
    long = [clip for clip in clips if clip.duration_ms > max_ms]
    for dropped, reason in ((short, f"shorter than min_ms={min_ms}"), (long, f"longer than max_ms={max_ms}")):
        if dropped:
            lost_ms = sum(clip.duration_ms for clip in dropped)
            say(f"dropped {len(dropped)} of {len(clips)} clips ({lost_ms / 1000:.1f} s): {reason}")
    return tuple(clip for clip in clips if min_ms <= clip.duration_ms <= max_ms)


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def load_audio(path: str | Path) -> Tensor:
    """Samples [N] float32 in [-1, 1] of a 16 kHz mono file that libsndfile reads.

    Data sets are prepared at 16 kHz; other rates are refused rather than resampled, because a wrong rate in a data set
    is a mistake in its preparation.

    Raises:
        UnknownContainer: if libsndfile cannot read the file.
        AudioFormatError: if the rate is not 16 kHz or there is more than one channel.
        EmptyAudio: if there is no sample.
        InvalidSamples: if there is NaN or infinity.
    """
    try:
        samples, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise UnknownContainer(f"{path}: libsndfile cannot read it ({error})") from error
    if rate != SAMPLE_RATE or samples.shape[1] != 1:
        raise AudioFormatError(f"{path}: {rate} Hz, {samples.shape[1]} channels; data sets need {SAMPLE_RATE} Hz mono")
    if not samples.shape[0]:
        raise EmptyAudio(f"{path}: no sample")
    wave = torch.from_numpy(samples[:, 0].copy())  # [N]
    if not bool(torch.isfinite(wave).all()):
        raise InvalidSamples(f"{path}: NaN or infinity among {wave.shape[0]} samples")
    return wave


def group_by_subset(clips: Sequence[Clip]) -> dict[str, tuple[Clip, ...]]:
    """Clips by subset_tag, tags sorted; clips without a tag are under their source."""
    groups: dict[str, list[Clip]] = {}
    for clip in clips:
        groups.setdefault(clip.subset_tag or clip.source, []).append(clip)
    return {tag: tuple(groups[tag]) for tag in sorted(groups)}
