"""Transcripts as text and JSON, written whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from asr.errors import ConfigError
from asr.words import Transcript

Renderer = Callable[[Transcript, str, Sequence[str]], str]


def render_text(transcript: Transcript, file: str, warnings: Sequence[str]) -> str:
    """The text and a line's end; nothing at all where nothing was said."""
    return f"{transcript.text}\n" if transcript.words else ""


def json_result(transcript: Transcript, file: str, warnings: Sequence[str]) -> dict[str, object]:
    """The JSON result of docs/design.md §10, and `warnings`: what was suspicious about the input."""
    return {**transcript.to_json(file), "warnings": list(warnings)}


def render_json(transcript: Transcript, file: str, warnings: Sequence[str]) -> str:
    """`json_result` for a file of its own."""
    return json.dumps(json_result(transcript, file, warnings), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def render_json_line(transcript: Transcript, file: str, warnings: Sequence[str]) -> str:
    """`json_result` in one line, for a stream of results."""
    return json.dumps(json_result(transcript, file, warnings), ensure_ascii=False, allow_nan=False) + "\n"


RENDERERS: Mapping[str, Renderer] = {"txt": render_text, "json": render_json}
"""By format, which is also the suffix of the file."""


def parse_formats(formats: str) -> tuple[str, ...]:
    """The names in a comma-separated list, each once.

    Raises:
        ConfigError: at an unknown format or none at all.

    >>> parse_formats("txt,json")
    ('txt', 'json')
    """
    names = tuple(dict.fromkeys(name.strip() for name in formats.split(",")))
    for name in names:
        if name not in RENDERERS:
            raise ConfigError(f"format is {name!r}; it must be one or more of {','.join(RENDERERS)}")
    return names


def result_name(path: str | os.PathLike[str]) -> str:
    """The input's name as a result states it: any bytes that are no UTF-8 as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def output_stems(names: Iterable[PurePath]) -> dict[PurePath, PurePath]:
    """Where each input's outputs go, without the suffix of the format: no two to the same place.

    An input's own suffix is dropped, except where stems would then collide.

    Args:
        names: inputs relative to the output folder; all different.

    Returns:
        Output by input, in the order of `names`.

    Raises:
        ConfigError: if a name occurs twice, so that one result would overwrite the other.

    >>> {str(k): str(v) for k, v in output_stems(map(PurePath, ["a.mp3", "a.wav", "b/a.wav"])).items()}
    {'a.mp3': 'a.mp3', 'a.wav': 'a.wav', 'b/a.wav': 'b/a'}
    """
    ordered = list(names)
    repeated = {name for name in ordered if ordered.count(name) > 1} if len(set(ordered)) < len(ordered) else set()
    if repeated:
        raise ConfigError(
            f"several inputs would be written to {result_name(min(repeated))}.*; "
            "give a folder that holds them, so that its tree is kept"
        )
    stems = {name: name.with_suffix("") for name in ordered}
    while True:
        owners: dict[PurePath, list[PurePath]] = {}
        for name, stem in stems.items():
            owners.setdefault(stem, []).append(name)
        colliding = [name for group in owners.values() if len(group) > 1 for name in group]
        if not colliding:
            return stems
        stems.update({name: name for name in colliding})


def write_atomically(path: Path, text: str) -> None:
    """Write `text` as UTF-8 so that `path` is at any moment the old file, the new one, or absent; makes its folder.

    Raises:
        OSError: if it cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A short name: the final one may be as long as the file system allows.
    part = path.parent / f".{secrets.token_hex(8)}.part"
    try:
        with part.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
