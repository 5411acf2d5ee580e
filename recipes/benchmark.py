"""What a stream costs: real-time factor, alone and beside others, and memory, side by side in one run.

`python -m recipes.benchmark --model M --audio FILE… --chunk-ms 80 320 --delay-ms 480 --streams 1 8 16 --threads 1`
Every setting decodes the same audio: once to warm up, then in turn with all the others, three times; the median counts,
so that a machine that slows down does not favour what ran first. Factors are seconds of work for a second of audio; the
ratio compares each setting with the first one.
Exit code: 0; 2 if a setting or a file is wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import asr
from asr.audio import open_audio
from asr.errors import ConfigError, EarlybirdError
from asr.model import Model
from asr.resample import Samples
from asr.slots import StreamEngine
from asr.transcriber import Stream, advance
from asr.units import SAMPLE_RATE

__all__ = ["Setting", "decode_together", "entries", "measure", "table"]

REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Attributes: delay_ms, chunk_ms: of every stream. streams: how many are decoded in one batch."""

    delay_ms: int
    chunk_ms: int
    streams: int


def decode_together(model: Model, samples: Samples, setting: Setting) -> tuple[StreamEngine, int]:
    """Decodes [N] samples as `setting.streams` streams in one batch, flush included.

    Each stream hears the audio from another place on, so that they do not say the same at the same time.

    Returns:
        The engine, and how many words all streams wrote.
    Raises:
        ConfigError: if the model was not made for the setting, or there is no stream.
    """
    chosen = model.settings(delay_ms=setting.delay_ms, chunk_ms=setting.chunk_ms)
    engine = StreamEngine(model, slots=setting.streams, chunks=[chosen.chunk])
    streams = [Stream(engine, chosen) for _ in range(setting.streams)]
    for number, stream in enumerate(streams):
        stream.feed(np.roll(samples, -(len(samples) * number // len(streams))))
    words = 0
    while moved := advance(streams):
        words += sum(len(delta.words) for _, delta in moved)
    for stream in streams:
        stream.begin_flush()
    while moved := advance(streams):
        words += sum(len(delta.words) for _, delta in moved)
    for stream in streams:
        stream.close()
    return engine, words


def measure(
    model: Model,
    samples: Samples,
    settings: Sequence[Setting],
    *,
    repeats: int = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, object]]:
    """One entry a setting, in their order.

    Args:
        model: what `asr.load` gave.
        samples: [N] at 16 kHz.
        settings: all are run in turn, `repeats` times over, after a warm-up of each.
        clock: gives seconds.

    Raises:
        ConfigError: if there is no audio or no setting, or the model was not made for one.
    """
    if not len(samples) or not settings or repeats < 1:
        raise ConfigError(
            f"need audio, settings and repeats; got {len(samples)} samples, {len(settings)} settings, {repeats} repeats"
        )
    state_bytes, words = [], []
    for setting in settings:
        engine, count = decode_together(model, samples, setting)
        state_bytes.append(engine.state_bytes // setting.streams)
        words.append(count)
    seconds: list[list[float]] = [[] for _ in settings]
    for _ in range(repeats):
        for setting, taken in zip(settings, seconds, strict=True):
            begin = clock()
            decode_together(model, samples, setting)
            taken.append(clock() - begin)
    return entries(settings, seconds, state_bytes, words, audio_seconds=len(samples) / SAMPLE_RATE)


def entries(
    settings: Sequence[Setting],
    seconds: Sequence[Sequence[float]],
    state_bytes: Sequence[int],
    words: Sequence[int],
    *,
    audio_seconds: float,
) -> list[dict[str, object]]:
    """Figures from the seconds that each setting's runs took, every stream hearing `audio_seconds`."""
    medians = [statistics.median(taken) for taken in seconds]
    factors = [median / (audio_seconds * setting.streams) for median, setting in zip(medians, settings, strict=True)]
    return [
        {
            "delay_ms": setting.delay_ms,
            "chunk_ms": setting.chunk_ms,
            "streams": setting.streams,
            "real_time_factor": round(factor, 5),
            "streams_in_real_time": round(1 / factor, 2),
            "ratio": round(factor / factors[0], 4),
            "median_seconds": round(median, 4),
            "least_seconds": round(min(taken), 4),
            "most_seconds": round(max(taken), 4),
            "audio_seconds": round(audio_seconds * setting.streams, 2),
            "state_bytes_per_stream": bytes_,
            "words": count,
        }
        for setting, factor, median, taken, bytes_, count in zip(
            settings, factors, medians, seconds, state_bytes, words, strict=True
        )
    ]


def table(found: Sequence[dict[str, object]]) -> str:
    """The entries for people: per-stream real-time factor, its ratio to the first line's, memory a stream."""
    lines = [f"{'delay':>6} {'chunk':>6} {'streams':>7} {'RTF':>8} {'ratio':>6} {'MiB/stream':>10}"]
    for entry in found:
        size = entry["state_bytes_per_stream"]
        assert isinstance(size, int)
        lines.append(
            f"{entry['delay_ms']:>6} {entry['chunk_ms']:>6} {entry['streams']:>7} {entry['real_time_factor']:>8.4f} "
            f"{entry['ratio']:>6.2f} {size / 2**20:>10.2f}"
        )
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.benchmark`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="earlybird-en")
    parser.add_argument("--audio", type=Path, nargs="+", required=True, help="files; one after the other is the audio")
    parser.add_argument("--seconds", type=float, help="no more than so much of the audio")
    parser.add_argument("--delay-ms", type=int, nargs="+", default=[480])
    parser.add_argument("--chunk-ms", type=int, nargs="+", default=[320])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="JSON lines are written here rather than to stdout")
    return parser


def read_audio(paths: Sequence[Path], *, seconds: float | None) -> Samples:
    """[N] samples of all files in a row, at most `seconds` of them.

    Raises:
        AudioFormatError: if one cannot be used.
    """
    parts: list[Samples] = []
    for path in paths:
        with open_audio(path) as source:
            parts += list(source.blocks())
    samples = np.concatenate(parts)
    return samples if seconds is None else samples[: round(seconds * SAMPLE_RATE)]


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    args = build_parser().parse_args(argv)
    try:
        torch.set_num_threads(args.threads)
        settings = [
            Setting(delay_ms=delay_ms, chunk_ms=chunk_ms, streams=streams)
            for chunk_ms in args.chunk_ms
            for delay_ms in args.delay_ms
            for streams in args.streams
        ]
        model = asr.load(args.model, device=args.device)
        found = measure(model, read_audio(args.audio, seconds=args.seconds), settings, repeats=args.repeats)
    except (EarlybirdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shared = {"model": model.name, "threads": args.threads, "repeats": args.repeats, "device": args.device}
    text = "".join(json.dumps(shared | entry) + "\n" for entry in found)
    print(table(found))
    if args.out is None:
        print(text, end="")
    else:
        args.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
