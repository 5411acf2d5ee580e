"""Recordings with transcripts, as people have them, to a manifest that the other recipes read.

    python -m recipes.prepare SOURCE [SOURCE …] --out DIR [--dev-share 0.05] [--min-ms 300] [--max-ms 24000]

A source is a folder (each recording with a .txt of its name), a tree like LibriSpeech's (*.trans.txt), a .csv or .tsv
file with a header, or a .jsonl file; tables name the recording (audio, path or file, relative to the table) and the
words (text, transcript or sentence), and may name the speaker. What is not 16 kHz mono that libsndfile reads is
converted to FLAC in DIR/audio. `DIR` gets train.jsonl and, with a dev share, dev.jsonl: whole speakers, chosen by their
names alone, so that more data later moves nobody. What is left out is reported: why, how many clips, how many seconds.
Again on the same DIR it converts only what is new.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from asr.audio import open_audio
from asr.errors import AudioFormatError, ConfigError, EarlybirdError
from asr.units import SAMPLE_RATE

__all__ = ["Found", "Limits", "find_clips", "prepare"]

_AUDIO = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".m4a", ".webm", ".aac", ".aiff"}
_AUDIO_COLUMNS, _TEXT_COLUMNS, _SPEAKER_COLUMNS = (
    ("audio", "path", "file"),
    ("text", "transcript", "sentence"),
    ("speaker", "client_id", "speaker_id"),
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A recording with its transcript; speaker: None where the source names none."""

    path: Path
    text: str | None
    speaker: str | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is kept.

    Attributes:
        min_ms, max_ms: both inclusive.
        max_letters_per_second: more cannot be said: the transcript is another recording's.
    """

    min_ms: int = 300
    max_ms: int = 24_000
    max_letters_per_second: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.min_ms <= self.max_ms or self.max_letters_per_second <= 0:
            raise ConfigError(f"need 0 < min_ms <= max_ms and letters per second above 0; got {self}")


def find_clips(source: Path) -> Iterator[Found]:
    """The recordings of one source, in the order of their names or of the table.

    Raises:
        ConfigError: if the source does not exist, is of no known kind, or a table lacks a column.
    """
    if source.is_dir():
        trees = sorted(source.rglob("*.trans.txt"))
        yield from _read_tree(trees) if trees else _read_folder(source)
    elif source.suffix in (".csv", ".tsv", ".jsonl"):
        yield from _read_table(source)
    else:
        raise ConfigError(f"{source} is neither a folder nor a .csv, .tsv or .jsonl file")


def _read_folder(folder: Path) -> Iterator[Found]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in _AUDIO:
            beside = path.with_suffix(".txt")
            yield Found(path=path, text=beside.read_text(encoding="utf-8") if beside.exists() else None)


def _read_tree(tables: Sequence[Path]) -> Iterator[Found]:
    """LibriSpeech's layout: SPEAKER-CHAPTER.trans.txt holds lines of ID and words, beside ID.flac."""
    for table in tables:
        for line in table.read_text(encoding="utf-8").splitlines():
            name, _, text = line.strip().partition(" ")
            if name:
                beside = [table.parent / f"{name}{suffix}" for suffix in sorted(_AUDIO)]
                path = next((path for path in beside if path.exists()), table.parent / f"{name}.flac")
                yield Found(path=path, text=text, speaker=name.partition("-")[0])


def _read_table(table: Path) -> Iterator[Found]:
    with table.open(encoding="utf-8", newline="") as lines:
        rows: Iterable[Mapping[str, object]]
        if table.suffix == ".jsonl":
            rows = (json.loads(line) for line in lines if line.strip())
        else:
            rows = csv.DictReader(lines, delimiter="\t" if table.suffix == ".tsv" else ",")
        for number, row in enumerate(rows, start=1):
            audio = _column(row, _AUDIO_COLUMNS)
            if audio is None:
                raise ConfigError(f"{table}, entry {number}: names no recording; need one of {_AUDIO_COLUMNS}")
            yield Found(
                path=table.parent / audio, text=_column(row, _TEXT_COLUMNS), speaker=_column(row, _SPEAKER_COLUMNS)
            )


def _column(row: Mapping[str, object], names: Sequence[str]) -> str | None:
    return next((str(row[name]) for name in names if row.get(name) not in (None, "")), None)


class _LeftOut(EarlybirdError):
    """Why a clip is not taken, and how much of it there is."""

    def __init__(self, reason: str, samples: int = 0) -> None:
        super().__init__(reason)
        self.samples = samples


def _taken(found: Found, out: Path, limits: Limits) -> dict[str, object]:
    """One line of the manifest, without source and licence.

    Raises:
        _LeftOut: with the reason.
    """
    text = " ".join((found.text or "").split())
    if not any(character.isalnum() for character in text):
        raise _LeftOut("no transcript" if found.text is None else "no letter or digit in the transcript")
    try:
        path, samples = _readable(found.path, out)
    except (AudioFormatError, OSError) as error:
        reason = "the file is missing" if isinstance(error, FileNotFoundError) else type(error).__name__
        raise _LeftOut(f"not readable: {reason}") from error
    milliseconds = samples * 1000 // SAMPLE_RATE
    if milliseconds < limits.min_ms:
        raise _LeftOut(f"shorter than min_ms={limits.min_ms}", samples)
    if milliseconds > limits.max_ms:
        raise _LeftOut(f"longer than max_ms={limits.max_ms}", samples)
    if sum(character.isalnum() for character in text) * SAMPLE_RATE > limits.max_letters_per_second * samples:
        raise _LeftOut(f"more than {limits.max_letters_per_second:g} letters a second", samples)
    entry: dict[str, object] = {"audio": os.path.relpath(path, out), "duration": samples / SAMPLE_RATE, "text": text}
    return entry if found.speaker is None else entry | {"speaker": found.speaker}


def _readable(path: Path, out: Path) -> tuple[Path, int]:
    """A file that `load_audio` takes, converted where need be, and its samples.

    Raises:
        AudioFormatError, FileNotFoundError: if it cannot be read.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        info = soundfile.info(str(path))
        if info.samplerate == SAMPLE_RATE and info.channels == 1:
            return path, int(info.frames)
    except soundfile.LibsndfileError:
        pass  # ffmpeg may read it
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    target = out / "audio" / f"{path.stem}-{name}.flac"
    if not target.exists():
        with open_audio(path) as source:
            samples = np.concatenate([*source.blocks(), np.zeros(0, dtype=np.float32)])
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_suffix(".tmp")
        soundfile.write(scratch, samples, SAMPLE_RATE, format="FLAC")
        scratch.rename(target)
    return target, int(soundfile.info(str(target)).frames)


def prepare(
    sources: Sequence[Path], out: Path, *, limits: Limits, dev_share: float, source: str, licence: str
) -> tuple[dict[str, int], Counter[str]]:
    """Writes the manifests; gives the clips of each, and what was left out, in clips by reason.

    Args:
        dev_share: of the speakers (of the clips, where none is named) that go to dev.jsonl.
        source, licence: what the manifest states of every clip.

    Raises:
        ConfigError: as `find_clips`; if the share is not in [0, 1), or no clip is left.
    """
    if not 0 <= dev_share < 1:
        raise ConfigError(f"dev_share is {dev_share}; it must be at least 0 and below 1")
    out.mkdir(parents=True, exist_ok=True)
    lost: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    splits: dict[str, dict[str, dict[str, object]]] = {"train": {}, "dev": {}}
    kept = 0.0
    for found in (clip for each in sources for clip in find_clips(each)):
        try:
            entry = _taken(found, out, limits)
            name = str(entry["audio"])
            if any(name in clips for clips in splits.values()):
                raise _LeftOut("named twice")
        except _LeftOut as left:
            lost[str(left)] += 1
            seconds[str(left)] += left.samples
            continue
        split = "dev" if _lot(found.speaker or name) < dev_share else "train"
        splits[split][name] = {**entry, "source": source, "licence": licence}
        kept += float(str(entry["duration"]))
    if not any(splits.values()):
        raise ConfigError(f"no clip is left of {sum(lost.values())}: {dict(lost)}")
    for split, clips in splits.items():
        if clips or split == "train":
            lines = (json.dumps(entry, ensure_ascii=False) + "\n" for entry in clips.values())
            (out / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    for reason, count in lost.most_common():
        print(f"left out {count} clips ({seconds[reason] / SAMPLE_RATE:.1f} s): {reason}", file=sys.stderr)
    counts = {split: len(clips) for split, clips in splits.items()}
    print(f"kept {sum(counts.values())} clips, {kept / 3600:.2f} h: {counts}", file=sys.stderr)
    return counts, lost


def _lot(name: str) -> float:
    """[0, 1), the same for a name always."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:12], 16) / 16**12


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when the manifests are written, 2 when a source or a setting is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+", metavar="SOURCE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dev-share", type=float, default=0.0)
    parser.add_argument("--min-ms", type=int, default=Limits.min_ms)
    parser.add_argument("--max-ms", type=int, default=Limits.max_ms)
    parser.add_argument("--source", default="own", help="what the manifest calls this data")
    parser.add_argument("--licence", default="not stated")
    args = parser.parse_args(argv)
    try:
        prepare(
            args.sources,
            args.out,
            limits=Limits(min_ms=args.min_ms, max_ms=args.max_ms),
            dev_share=args.dev_share,
            source=args.source,
            licence=args.licence,
        )
    except (EarlybirdError, OSError, json.JSONDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
