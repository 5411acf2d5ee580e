"""SubRip and WebVTT, written by pysubs2."""

from __future__ import annotations

import html
from collections.abc import Sequence

import pysubs2

from asr.results import FileResult
from streaming.subtitles import Cue, lay_out

ZERO_WIDTH_SPACE = "\u200b"


def cues_of(result: FileResult, *, label: str) -> list[Cue]:
    """The captions of a result; with several channels each names its own, by `label`."""
    several = len(result.transcripts) > 1
    turns = [(f"Channel {turn.channel}" if several else None, turn.words) for turn in result.turns()]
    return lay_out(turns, duration_ms=max(one.duration_ms for one in result.transcripts), label=label)


def render_srt(result: FileResult, file: str) -> str:
    """SubRip; nothing at all where nothing was said."""
    cues = cues_of(result, label="{speaker}:")
    return _written(
        cues, [[line.replace("-->", f"--{ZERO_WIDTH_SPACE}>") for line in cue.lines] for cue in cues], "srt"
    )


def render_vtt(result: FileResult, file: str) -> str:
    """WebVTT; the header alone where nothing was said. A channel is its cue's voice."""
    cues = cues_of(result, label="")
    texts = []
    for cue in cues:
        lines = [html.escape(line, quote=False) for line in cue.lines]
        texts.append([f"<v {cue.speaker}>{lines[0]}", *lines[1:]] if cue.speaker else lines)
    return _written(cues, texts, "vtt")


def _written(cues: Sequence[Cue], texts: Sequence[Sequence[str]], format: str) -> str:
    subtitles = pysubs2.SSAFile()
    subtitles.events = [
        pysubs2.SSAEvent(start=cue.start_ms, end=cue.end_ms, text="\\N".join(map(_literal, lines)))
        for cue, lines in zip(cues, texts, strict=True)
    ]
    # Kept: what looks like a tag is text, such as braces, and would be left out.
    text: str = subtitles.to_string(format, keep_ssa_tags=True)
    return f"{text.rstrip()}\n" if text.strip() else ""


def _literal(line: str) -> str:
    """A line in which pysubs2 finds no line break of its own."""
    return line.replace("\\", f"\\{ZERO_WIDTH_SPACE}")
