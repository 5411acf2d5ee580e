"""Which files a batch takes, and where below the output folder each belongs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

import soundfile

from asr.audio import display_path
from asr.errors import ConfigError

AUDIO_SUFFIXES = frozenset(
    ".aac .ac3 .aif .aifc .aiff .amr .ape .au .avi .caf .flac .flv .m4a .m4b .m4v .mka .mkv .mov .mp2 .mp3 .mp4 .mpeg "
    ".mpg .oga .ogg .ogv .opus .rf64 .snd .sph .ts .w64 .wav .webm .wma .wmv .wv".split()
)
"""What is taken from a folder. A file named by itself is taken whatever its suffix."""

INDEXED_SUFFIXES = frozenset(".aif .aiff .au .caf .flac .oga .ogg .opus .rf64 .w64 .wav".split())
"""Containers whose length is known without reading them through."""
COMPRESSED_BYTES_A_SECOND = 16_000
"""A guess for the others: 128 kbit/s."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """One audio file.

    Attributes:
        path: where it is.
        name: its place below the output folder: relative to the folder that was given, or its bare name.
    """

    path: Path
    name: PurePath


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which files of a folder are taken, by glob patterns on the name or on the path below the folder.

    Attributes:
        include: one of them must match; empty: the suffix must be one of `AUDIO_SUFFIXES`.
        exclude: none of them may match; a folder that matches is not searched.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def leaves_out(self, name: PurePath) -> bool:
        """Whether a file or a folder is excluded."""
        return _matches(name, self.exclude)

    def takes(self, name: PurePath) -> bool:
        """Whether a file is taken."""
        wanted = _matches(name, self.include) if self.include else name.suffix.lower() in AUDIO_SUFFIXES
        return wanted and not self.leaves_out(name)


def _matches(name: PurePath, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name.name, pattern) or fnmatchcase(name.as_posix(), pattern) for pattern in patterns)


def find_inputs(
    paths: Sequence[Path],
    *,
    log: Callable[[str], None],
    select: Selection | None = None,
    listed: Sequence[Path] = (),
) -> list[Input]:
    """The audio files that `paths` and `listed` name: files as they are, folders with all that lies below them, sorted.

    In folders names that begin with a dot are skipped, and links to folders are not followed. A file reached twice is
    taken once. A path that is not there is kept, and so is a folder with the name of an audio file and none in it: they
    fail by name in their turn.

    Args:
        paths: files and folders.
        log: told about folders that give nothing.
        select: which files of folders are taken.
        listed: more of them, from a list: their places below the output folder are those below the folder that holds
            them all.

    Raises:
        ConfigError: if nothing at all is found.
    """
    select = select or Selection()
    found: dict[str, Input] = {}
    for path, base in [*((path, PurePath()) for path in paths), *_listed(listed)]:
        if path.is_dir():
            members = sorted(_audio_files_below(path, select, log=log))
            if not members:
                log(f"warning: no audio file below {display_path(path)}")
            inputs = [Input(path=member, name=base / member.relative_to(path)) for member in members]
        else:
            inputs = [Input(path=path, name=base if base.parts else PurePath(path.name))]
        for one in inputs:
            found.setdefault(os.path.abspath(one.path), one)
    if not found:
        raise ConfigError(
            f"no audio file in {', '.join(display_path(path) for path in [*paths, *listed]) or 'the list'}"
        )
    return list(found.values())


def _listed(paths: Sequence[Path]) -> Iterator[tuple[Path, PurePath]]:
    """Each path, and its place below the folder that holds them all."""
    if paths:
        full = [os.path.abspath(path) for path in paths]
        common = os.path.commonpath([os.path.dirname(path) for path in full])
        yield from ((path, PurePath(os.path.relpath(one, common))) for path, one in zip(paths, full, strict=True))


def _audio_files_below(folder: Path, select: Selection, *, log: Callable[[str], None]) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        log(f"warning: cannot look into {display_path(error.filename)}: {error.strerror}")

    for parent, folders, files in os.walk(folder, onerror=unreadable):
        place = PurePath(os.path.relpath(parent, folder))
        folders[:] = [name for name in folders if not name.startswith(".") and not select.leaves_out(place / name)]
        for name in files:
            if not name.startswith(".") and select.takes(place / name):
                yield Path(parent, name)
        for name in folders:
            if select.takes(place / name) and not _has_files(Path(parent, name), select):
                yield Path(parent, name)


def _has_files(folder: Path, select: Selection) -> bool:
    return any(True for _ in _audio_files_below(folder, select, log=lambda _: None))


def read_list(path: Path) -> list[Path]:
    """The paths in a file, one a line, or NUL-separated if it holds a NUL; "-" is standard input.

    Raises:
        ConfigError: if it cannot be read, or names nothing.
    """
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--files-from {display_path(path)}: cannot be read: {error.strerror}") from error
    lines = data.split(b"\0") if b"\0" in data else data.splitlines()
    names = [Path(os.fsdecode(line)) for line in lines if line]
    if not names:
        raise ConfigError(f"--files-from {display_path(path)}: names no file")
    return names


def expected_seconds(path: Path) -> float:
    """How long a file is, as far as its header or its size says; 0 if it cannot be opened. To sort and to foretell."""
    try:
        if path.suffix.lower() in INDEXED_SUFFIXES:
            return float(soundfile.info(os.fspath(path)).duration)
        return path.stat().st_size / COMPRESSED_BYTES_A_SECOND
    except (OSError, RuntimeError):  # its turn will tell why
        return 0.0
