"""What a batch has done, line by line in `run.jsonl`, so that the same command goes on where it was stopped."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from asr.audio import display_path
from asr.errors import ConfigError

JOURNAL_NAME = "run.jsonl"
SAMPLE_BYTES = 1024 * 1024
SAMPLES = 16
"""A file of at most so many samples is hashed whole, a longer one at so many places, its first and its last bytes among
them: of a recording of hours no more has to be read."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Which content a path had. Attributes: size: bytes. time: of its last change, ns. hash: of its content."""

    size: int
    time: int
    hash: str


def identity_of(path: Path) -> Identity | None:
    """What is in a file now; None if it cannot be read."""
    try:
        if not path.is_file():
            return None
        with path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            digest = hashlib.blake2b(digest_size=16)
            last = max(0, status.st_size - SAMPLE_BYTES)
            count = min(SAMPLES, -(-status.st_size // SAMPLE_BYTES))
            for place in range(count):
                # Whole files in a row of samples without a gap, longer ones at even distances.
                start = last * place // (count - 1) if count == SAMPLES else place * SAMPLE_BYTES
                file.seek(start)
                digest.update(file.read(SAMPLE_BYTES))
    except OSError:
        return None
    return Identity(size=status.st_size, time=status.st_mtime_ns, hash=digest.hexdigest())


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What became of one input.

    Attributes:
        file: its path, printable.
        out: the place of its results below the output folder, without the suffix of a format.
        status: whether there are results.
        seconds: of work. audio_seconds: its length.
        error: why there are none.
        warnings: what was suspicious.
        identity: what was in it when it was read.
        formats: of the results.
        settings: `settings_digest` of what they depend on.
    """

    file: str
    out: str
    status: Literal["done", "failed"]
    seconds: float
    audio_seconds: float
    error: str | None = None
    warnings: tuple[str, ...] = ()
    identity: Identity | None = None
    formats: tuple[str, ...] = ()
    settings: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a line holds it; `speed` is seconds of audio for a second of work."""
        values = asdict(self)
        identity = values.pop("identity") or {}
        return {**values, "speed": round(self.audio_seconds / self.seconds, 2) if self.seconds else None, **identity}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: if `values` is no such line.
        """
        identity = None
        if "hash" in values:
            identity = Identity(size=values["size"], time=values["time"], hash=values["hash"])
        return cls(
            file=values["file"],
            out=values["out"],
            status=values["status"],
            seconds=values["seconds"],
            audio_seconds=values["audio_seconds"],
            error=values["error"],
            warnings=tuple(values["warnings"]),
            identity=identity,
            formats=tuple(values["formats"]),
            settings=values["settings"],
        )


def settings_digest(settings: Mapping[str, object]) -> str:
    """A short name for what results depend on."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Journal:
    """The journal of one output folder; held by one run at a time. A context manager.

    A line is there whole or not at all for whoever reads it: one that a crash has cut is left out.

    Args:
        folder: made if it is not there.

    Attributes:
        entries: the newest of each `Entry.out`.

    Raises:
        ConfigError: if another run writes to the folder.
        OSError: if it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / JOURNAL_NAME
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise ConfigError(
                f"another run is writing to {display_path(folder)}; wait for it, or choose another --out"
            ) from None
        self.entries: dict[str, Entry] = {}
        data = self._path.read_bytes()
        for line in data.splitlines():
            try:
                entry = Entry.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue  # the head of a run, or a line that was cut
            self.entries[entry.out] = entry
        if data and not data.endswith(b"\n"):
            os.write(self._file, b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others write to the folder."""
        os.close(self._file)

    def begin(self, head: Mapping[str, object]) -> None:
        """Write down that a run begins, and how."""
        self._append({"run": dict(head)})

    def add(self, entry: Entry) -> None:
        """Write down what became of an input.

        Raises:
            OSError: if it cannot be written.
        """
        self._append(entry.to_json())
        self.entries[entry.out] = entry

    def _append(self, values: Mapping[str, object]) -> None:
        line = json.dumps(values, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"
        os.write(self._file, line)
        os.fsync(self._file)
