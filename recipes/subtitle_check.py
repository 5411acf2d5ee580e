"""Do subtitles keep the rules of broadcasters, and do two parsers that did not write them agree?

`earlybird transcribe FOLDER --format srt,vtt --out OUT`, then `python -m recipes.subtitle_check OUT`: reads every .srt
with `srt` and the .vtt beside it with `webvtt-py`, holds them against the rules of `streaming/subtitles.py` and against
each other, prints a report as JSON. Exit code: 0; 1 if a rule is broken or the two differ; 2 if there is nothing to
check or a file cannot be read.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import srt
import webvtt

from streaming.subtitles import LEAST_MS, LINE_COLUMNS, LINES, MOST_MS, MS_A_CHARACTER, Cue, columns

__all__ = ["broken_rules", "main", "read_srt", "read_vtt"]

ZERO_WIDTH_SPACE = "\u200b"
"""Stands where a parser would take text for a mark of its own."""


def broken_rules(cues: Sequence[Cue]) -> list[str]:
    """What is wrong with the captions of a file, in words; empty if nothing is."""
    found = [f"overlap: {a} {b}" for a, b in pairwise(cues) if b.start_ms < a.end_ms]
    for cue in cues:
        shown = cue.end_ms - cue.start_ms
        if not 1 <= len(cue.lines) <= LINES or any(columns(line) > LINE_COLUMNS for line in cue.lines):
            found.append(f"lines: {cue}")
        if not LEAST_MS <= shown <= MOST_MS:
            found.append(f"time: {cue}")
        if sum(map(len, cue.lines)) * MS_A_CHARACTER > shown:
            found.append(f"too fast: {cue}")
        if cue.start_ms < 0 or not all(cue.lines):
            found.append(f"empty: {cue}")
    return found


def read_srt(text: str) -> list[Cue]:
    """The captions of a SubRip text, as the package `srt` reads them.

    Raises:
        srt.SRTParseError: if it is none.
    """
    return [
        _cue(round(one.start.total_seconds() * 1000), round(one.end.total_seconds() * 1000), one.content.split("\n"))
        for one in srt.parse(text)
    ]


def read_vtt(text: str) -> list[Cue]:
    """The captions of a WebVTT text, as the package `webvtt-py` reads them.

    Raises:
        webvtt.errors.MalformedFileError: if it is none.
    """
    return [
        _cue(_milliseconds(one.start), _milliseconds(one.end), [html.unescape(line) for line in one.lines])
        for one in webvtt.from_string(text).captions
    ]


def _cue(start_ms: int, end_ms: int, lines: Sequence[str]) -> Cue:
    texts = tuple(line.replace(ZERO_WIDTH_SPACE, "") for line in lines)
    return Cue(start_ms=start_ms, end_ms=end_ms, lines=texts)


def _milliseconds(stamp: str) -> int:
    """Of a WebVTT time.

    >>> _milliseconds("01:00:02.200")
    3602200
    """
    hours, minutes, seconds = stamp.split(":")
    return (int(hours) * 60 + int(minutes)) * 60_000 + round(float(seconds) * 1000)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of .srt files, each with a .vtt beside it")
    args = parser.parse_args(argv)
    files = sorted(args.folder.rglob("*.srt"))
    broken: list[str] = []
    differ: list[str] = []
    captions = 0
    try:
        for file in files:
            one = read_srt(file.read_text(encoding="utf-8"))
            other = read_vtt(file.with_suffix(".vtt").read_text(encoding="utf-8"))
            captions += len(one)
            broken += [f"{file}: {rule}" for rule in broken_rules(one)]
            if one != other:
                differ.append(str(file))
    except (OSError, srt.SRTParseError, webvtt.errors.MalformedFileError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not files:
        print(f"error: there is no .srt file in {args.folder}", file=sys.stderr)
        return 2
    report = {"files": len(files), "captions": captions, "rules_broken": broken, "parsers_differ": differ}
    print(json.dumps(report, indent=1))
    return int(bool(broken or differ))


if __name__ == "__main__":
    raise SystemExit(main())
