"""Stream the clips of this folder through a model: words as they are committed, with their times and delays.

    python samples/demo.py [--model NAME] [--delay-ms N] [--chunk-ms N] [--clips N]

Each clip arrives in pieces of 80 ms, as from a microphone but as fast as the model goes. `delay` is how much audio had
to arrive after a word's end before the word was committed. The totals compare the text with the transcripts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import asr
from asr.audio import Samples, open_audio
from asr.errors import ConfigError, EarlybirdError
from asr.jobs import transcribe_streams
from asr.metrics import WordErrors, count_errors, sum_word_errors
from asr.units import SAMPLE_RATE, STEP_SAMPLES
from asr.words import Transcript

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A line of transcripts.jsonl."""

    audio: Path
    text: str
    speaker: str
    source: str
    licence: str


def read_clips(manifest: Path) -> list[Clip]:
    """The clips that `manifest` lists, their audio relative to its folder.

    Raises:
        ConfigError: if there is none.
    """
    clips = []
    for line in manifest.read_text(encoding="utf-8").splitlines():
        if line.strip():
            entry = json.loads(line)
            clips.append(Clip(**{**entry, "audio": manifest.parent / entry["audio"]}))
    if not clips:
        raise ConfigError(f"{manifest} lists no clip")
    return clips


def arriving(path: Path) -> Iterator[Samples]:
    """The audio in pieces of one step, 80 ms."""
    with open_audio(path) as source:
        yield from source.blocks(STEP_SAMPLES)


def words_table(clip: Clip, transcript: Transcript, errors: WordErrors) -> Table:
    """One row a word."""
    table = Table(
        title=f"{clip.audio.name} · {clip.speaker} · {errors.errors} of {errors.reference_length} words wrong"
    )
    for heading in ("spoken from", "to", "committed at", "delay"):
        table.add_column(heading, justify="right")
    table.add_column("word")
    for word in transcript.words:
        times = (word.start_ms, word.end_ms, word.emitted_ms)
        table.add_row(*(f"{ms / 1000:.2f} s" for ms in times), f"{word.delay_ms} ms", word.text)
    return table


def totals_table(transcripts: Sequence[Transcript], errors: Sequence[WordErrors], wall_seconds: float) -> Table:
    """Word error rate, delays and speed of all clips together."""
    total = sum_word_errors(errors)
    audio_seconds = sum(transcript.audio_samples for transcript in transcripts) / SAMPLE_RATE
    delays = [word.delay_ms for transcript in transcripts for word in transcript.words]
    table = Table(title=f"{len(transcripts)} clips, {audio_seconds:.1f} s of speech", show_header=False)
    detail = f"{total.substitutions} substituted, {total.deletions} deleted, {total.insertions} inserted"
    table.add_row("word error rate", f"{100 * total.rate():.1f} %  ({detail}, of {total.reference_length} words)")
    if delays:
        median, p90 = np.quantile(delays, [0.5, 0.9])
        table.add_row("word delay", f"median {median:.0f} ms, 90 % within {p90:.0f} ms  ({len(delays)} words)")
    table.add_row("real-time factor", f"{wall_seconds / audio_seconds:.3f}  ({torch.get_num_threads()} threads)")
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; exit code 0, or 2 if it cannot run."""
    parser = argparse.ArgumentParser(description="Stream the sample clips through a model.")
    parser.add_argument("--model", default="earlybird-en")
    parser.add_argument("--delay-ms", type=int, default=480)
    parser.add_argument("--chunk-ms", type=int, default=320)
    parser.add_argument("--clips", type=int, default=None, help="only the first N")
    parser.add_argument("--manifest", type=Path, default=FOLDER / "transcripts.jsonl")
    args = parser.parse_args(argv)
    console = Console(highlight=False)
    torch.set_num_threads(1)  # small matrices: more threads mostly wait for each other
    try:
        clips = read_clips(args.manifest)[: args.clips]
        model = asr.load(args.model)
        transcripts, errors, wall_seconds = [], [], 0.0
        for clip in clips:
            started = time.perf_counter()
            job = (clip.audio.name, arriving(clip.audio))
            ((_, transcript),) = transcribe_streams(
                model, [job], delay_ms=args.delay_ms, chunk_ms=args.chunk_ms, batch_size=1
            )
            wall_seconds += time.perf_counter() - started
            if isinstance(transcript, EarlybirdError):
                raise transcript
            transcripts.append(transcript)
            errors.append(count_errors(clip.text, transcript.text))
            console.print(words_table(clip, transcript, errors[-1]))
            console.print(f"heard  {transcript.text}\nsaid   {clip.text}\n", markup=False)
    except EarlybirdError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    console.print(totals_table(transcripts, errors, wall_seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
