"""Results as text, JSON, subtitles and CTM, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath

from asr.errors import ConfigError
from asr.results import FileResult
from asr.words import Word
from server.writers_subtitles import render_srt, render_vtt

Renderer = Callable[[FileResult, str], str]
"""Of a result without error, and the input's name as the output shall state it."""

LONGEST_NAME = 255
"""Bytes of a file's name on the usual file systems."""
PART_NAME = re.compile(r"\.[0-9a-f]{16}\.part")


def plain_text(result: FileResult) -> str:
    """The text; with several channels a line for every turn, its channel in front."""
    if len(result.transcripts) == 1:
        return result.transcripts[0].text
    return "\n".join(f"channel {turn.channel}: {turn.text}" for turn in result.turns())


def render_text(result: FileResult, file: str) -> str:
    """`plain_text` and a line's end; nothing at all where nothing was said."""
    text = plain_text(result)
    return f"{text}\n" if text else ""


def json_result(result: FileResult, file: str) -> dict[str, object]:
    """The JSON result of docs/design.md §10.

    And `warnings`: what was suspicious about the input. Of several channels: the words of all by time, each with its
    `channel`, and in place of `stats` each channel's under `channels`.
    """
    values = [transcript.to_json(file) for transcript in result.transcripts]
    if len(values) == 1:
        return {**values[0], "warnings": list(result.warnings)}
    words = [
        (word.start_ms, channel, json_word)
        for channel, (transcript, value) in enumerate(zip(result.transcripts, values, strict=True))
        for word, json_word in zip(transcript.words, value["words"], strict=True)  # type: ignore[call-overload]
    ]
    return {
        "file": file,
        "duration": max(value["duration"] for value in values),  # type: ignore[type-var]
        "text": plain_text(result),
        "words": [{**json_word, "channel": channel} for _, channel, json_word in sorted(words, key=lambda w: w[:2])],
        "channels": [
            {"channel": channel, "text": value["text"], "stats": value["stats"]} for channel, value in enumerate(values)
        ],
        "settings": values[0]["settings"],
        "warnings": list(result.warnings),
    }


def render_json(result: FileResult, file: str) -> str:
    """`json_result` for a file of its own."""
    return json.dumps(json_result(result, file), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def render_json_line(result: FileResult, file: str) -> str:
    """`json_result` in one line, for a stream of results."""
    return json.dumps(json_result(result, file), ensure_ascii=False, allow_nan=False) + "\n"


def render_ctm(result: FileResult, file: str) -> str:
    """NIST's CTM: a line a word: file, channel, start, duration, word, confidence.

    Fields are parted by spaces, so that those in the file's name become underscores. Channels count from 1, as NIST's.
    """
    name = re.sub(r"\s", "_", PurePath(file).stem) or "_"
    words: list[tuple[int, int, Word]] = [
        (word.start_ms, channel, word)
        for channel, transcript in enumerate(result.transcripts)
        for word in transcript.words
    ]
    return "".join(
        f"{name} {channel + 1} {word.start_ms / 1000:.3f} {(word.end_ms - word.start_ms) / 1000:.3f} "
        f"{word.text} {word.confidence:.4f}\n"
        for _, channel, word in sorted(words, key=lambda entry: entry[:2])
    )


RENDERERS: Mapping[str, Renderer] = {
    "txt": render_text,
    "json": render_json,
    "srt": render_srt,
    "vtt": render_vtt,
    "ctm": render_ctm,
}
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
    seen: set[PurePath] = set()
    repeated = {name for name in ordered if name in seen or seen.add(name)}  # type: ignore[func-returns-value]
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
            return {name: _fitting(stem) for name, stem in stems.items()}
        stems.update({name: name for name in colliding})


def _fitting(stem: PurePath) -> PurePath:
    """The stem, or where a suffix would make its name too long, as much of it as fits and a mark made of all of it."""
    name = os.fsencode(stem.name)
    room = LONGEST_NAME - max(len(f".{format}") for format in RENDERERS)
    if len(name) <= room:
        return stem
    mark = f"~{zlib.crc32(name):08x}"
    return stem.with_name(name[: room - len(mark)].decode("utf-8", "ignore") + mark)


def write_atomically(path: Path, text: str) -> None:
    """Write `text` as UTF-8 so that `path` is at any moment the old file, the new one, or absent; makes its folder.

    Raises:
        OSError: if it cannot be written; nothing is left behind, unless the process is killed: `remove_parts`.
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


def remove_parts(folders: Iterable[Path]) -> None:
    """Remove what `write_atomically` left in them when its process was killed. Nobody may be writing there."""
    for folder in folders:
        if folder.is_dir():
            for name in os.listdir(folder):
                if PART_NAME.fullmatch(name):
                    (folder / name).unlink(missing_ok=True)
