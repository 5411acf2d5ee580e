"""Streamed word error rate and word emission delay over a manifest, for any delays and chunks, per subset.

`python -m recipes.evaluate --model M --manifest DEV.jsonl --alignments DEV-ALIGNED.jsonl --delay-ms 480 --chunk-ms 320`
prints a table and, with `--out`, writes one JSON line per setting. `--every N` takes every N-th clip of each subset.
`--offline` adds what the full-context model writes of the same clips, heard as a whole: the price of the stream.
`--noise NOISE.jsonl --snr-db 20 10 5` disturbs every clip by one of those recordings; which, its name decides.
`--gain-db -20` makes all clips 20 dB fainter, as from a far or badly set microphone.
`--align` first aligns the chosen clips that DEV-ALIGNED.jsonl lacks; `--plots DIR` draws the delays (recipes/awed.py).
WER: jiwer after the English text normaliser, clips with an empty reference apart. Delay: audio clock, matched words
only, against the aligned word ends, with the share of deleted words beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np
import torch

import asr
from asr.cross_recogniser import CrossRecogniser
from asr.errors import ConfigError
from asr.jobs import transcribe_streams
from asr.metrics import (
    CharacterErrors,
    CorpusErrors,
    DelayStats,
    EditCounts,
    MarkCounts,
    WordDelays,
    bootstrap_interval,
    count_character_errors,
    count_corpus,
    count_errors,
    count_marks,
    delay_stats,
    word_delays,
)
from asr.model import Model
from asr.resample import Samples
from asr.units import FRAME_MS, FRAMES_PER_STEP, STEP_MS
from asr.words import Transcript
from recipes import awed
from recipes.align import AlignedClip, align_manifest, read_alignments
from recipes.data import Clip, group_by_subset, load_audio, read_manifest
from recipes.mixing import in_noise
from recipes.teacher import TAIL_STEPS, decode_offline, full_context_features, length_batches, stacked

OFFLINE_SECONDS = 120.0  # of audio decoded at once


def chosen_clips(manifest: Path, *, every: int, subsets: Sequence[str]) -> tuple[Clip, ...]:
    """Every `every`-th clip of each subset (all subsets if none is named)."""
    groups = group_by_subset(read_manifest(manifest))
    return tuple(clip for tag in groups if not subsets or tag in subsets for clip in groups[tag][::every])


def clean(clip: Clip) -> Samples:
    """[N] samples of a clip as it is."""
    samples: Samples = load_audio(clip.path).numpy()
    return samples


def fainter(hear: Callable[[Clip], Samples], gain_db: float) -> Callable[[Clip], Samples]:
    """How clips are heard so many dB louder or, below 0, fainter."""
    return lambda clip: hear(clip) * np.float32(10 ** (gain_db / 20))


def disturbed(noises: Sequence[Clip], snr_db: float) -> Callable[[Clip], Samples]:
    """How clips are heard in noise: one of the recordings and its start depend on the clip's name alone.

    Raises:
        ConfigError: if there is no recording.
    """
    if not noises:
        raise ConfigError("there is no recording of noise to disturb clips by")

    def hear(clip: Clip) -> Samples:
        rng = random.Random(clip.audio)
        noise = clean(noises[rng.randrange(len(noises))])
        return in_noise(clean(clip), np.roll(noise, -rng.randrange(len(noise))), snr_db)

    return hear


def transcripts(
    model: Model,
    clips: Sequence[Clip],
    *,
    delay_ms: int,
    chunk_ms: int,
    batch_size: int,
    hear: Callable[[Clip], Samples] = clean,
) -> dict[str, Transcript]:
    """Transcript by audio name; any error is raised, for data sets have no broken files."""

    def audio(clip: Clip) -> Iterator[Samples]:
        yield hear(clip)

    ordered = sorted(clips, key=lambda clip: clip.duration_ms)
    jobs = ((clip.audio, audio(clip)) for clip in ordered)
    found: dict[str, Transcript] = {}
    for key, result in transcribe_streams(model, jobs, delay_ms=delay_ms, chunk_ms=chunk_ms, batch_size=batch_size):
        if not isinstance(result, Transcript):
            raise result
        found[key] = result
    return found


@torch.inference_mode()
def offline_errors(model: Model, clips: Sequence[Clip]) -> CorpusErrors:
    """Word errors of the same weights over whole clips, as Whisper decodes; clips too long for one look are left out.

    Raises:
        ConfigError: if the model is no cross-family one.
    """
    recogniser = model.recogniser
    if not isinstance(recogniser, CrossRecogniser):
        raise ConfigError(f"{model.name} is no cross-family model; only those can hear a clip as a whole")
    longest_ms = (recogniser.max_frames - TAIL_STEPS * FRAMES_PER_STEP) * FRAME_MS - STEP_MS
    triples: list[tuple[str, str, str]] = []
    for batch in length_batches([clip for clip in clips if clip.duration_ms <= longest_ms], OFFLINE_SECONDS):
        samples, lens = stacked([load_audio(clip.path) for clip in batch], TAIL_STEPS)
        texts = decode_offline(recogniser, *full_context_features(recogniser, samples, lens))
        for clip, pieces in zip(batch, texts, strict=True):
            triples.append((clip.subset_tag or clip.source, clip.text or "", model.vocabulary.decode(pieces)))
    return count_corpus(triples)


def measure(
    clips: Sequence[Clip], results: Mapping[str, Transcript], aligned: Mapping[str, AlignedClip]
) -> tuple[CorpusErrors, dict[str, list[WordDelays]], list[CharacterErrors]]:
    """Word errors by subset, delays of each clip by subset ("all": over all), and character errors of each clip."""
    tag = {clip.audio: clip.subset_tag or clip.source for clip in clips}
    errors = count_corpus((tag[clip.audio], clip.text or "", results[clip.audio].text) for clip in clips)
    delays: dict[str, list[WordDelays]] = {name: [] for name in [*sorted(set(tag.values())), "all"]}
    for clip in clips:
        if clip.audio in aligned:
            found = word_delays(aligned[clip.audio].words, results[clip.audio].words)
            delays[tag[clip.audio]].append(found)
            delays["all"].append(found)
    characters = [count_character_errors(clip.text, results[clip.audio].text) for clip in clips if clip.text]
    return errors, delays, characters


def scores(
    clips: Sequence[Clip], results: Mapping[str, Transcript], aligned: Mapping[str, AlignedClip]
) -> dict[str, object]:
    """Errors and delays of one system's transcripts, by audio name, as they go into a JSON line."""
    errors, delays, characters = measure(clips, results, aligned)
    return {
        "clips": len(clips),
        "audio_seconds": round(audio_seconds(clips), 1),
        "wer": round(100 * errors.total.rate(), 2),
        "interval": _interval(errors.clips),
        "cer": round(100 * sum(characters, CharacterErrors()).rate(), 2),
        "cer_interval": _interval(characters),
        "errors": {clip.audio: astuple(count_errors(clip.text or "", results[clip.audio].text)) for clip in clips},
        "marks": _marks(clips, results),
        "delay": _delay(delay_stats(delays["all"])),
        "histogram": awed.histogram([delay for clip in delays["all"] for delay in clip.delays_ms]),
        "subsets": {
            tag: {
                "wer": round(100 * counts.rate(), 2),
                "words": counts.reference_length,
                "substitutions": counts.substitutions,
                "deletions": counts.deletions,
                "insertions": counts.insertions,
                "delay": _delay(delay_stats(delays[tag])),
            }
            for tag, counts in errors.by_tag.items()
        },
        "empty_reference_insertions": errors.empty_references.insertions,
    }


def _marks(clips: Sequence[Clip], results: Mapping[str, Transcript]) -> dict[str, object]:
    """Over the clips whose reference is punctuated."""
    marks = sum((count_marks(clip.text or "", results[clip.audio].text) for clip in clips), MarkCounts())
    capitals = marks.capitals / marks.words if marks.words else None
    return {"f1": _rounded(marks.f1()), "wanted": marks.wanted, "capitals": _rounded(capitals), "words": marks.words}


def audio_seconds(clips: Sequence[Clip]) -> float:
    """Length of all clips, as their manifest states it."""
    return sum(clip.duration_ms for clip in clips) / 1000


def _interval(clips: Sequence[EditCounts]) -> list[float] | None:
    interval = bootstrap_interval(clips, seed=1)
    return [round(100 * bound, 2) for bound in interval] if interval else None


def report(
    model: Model,
    clips: Sequence[Clip],
    aligned: dict[str, AlignedClip],
    *,
    delay_ms: int,
    chunk_ms: int,
    batch: int,
    offline: CorpusErrors | None = None,
    noises: Sequence[Clip] = (),
    snr_db: float | None = None,
    gain_db: float = 0.0,
) -> dict[str, object]:
    """Everything known of one setting, as it goes into a JSON line.

    Args:
        offline: of `offline_errors`; None: not asked for.
        noises: that disturb the clips; snr_db: how much louder the clips are, None: they are heard as they are.
        gain_db: of all that is heard.
    """
    hear = fainter(clean if snr_db is None else disturbed(noises, snr_db), gain_db)
    begin = time.monotonic()
    results = transcripts(model, clips, delay_ms=delay_ms, chunk_ms=chunk_ms, batch_size=batch, hear=hear)
    seconds = time.monotonic() - begin
    whole = {} if offline is None else {"wer": round(100 * offline.total.rate(), 2), "clips": len(offline.clips)}
    return {
        "model": model.name,
        "delay_ms": delay_ms,
        "chunk_ms": chunk_ms,
        "snr_db": snr_db,
        "gain_db": gain_db,
        **scores(clips, results, aligned),
        "offline": whole or None,
        "seconds": round(seconds, 1),
        "real_time_factor": round(seconds / audio_seconds(clips), 3),
    }


def _delay(stats: DelayStats) -> dict[str, object]:
    entry: dict[str, object] = {}
    for prefix, quantiles in (("", stats.pooled), ("utterance_", stats.utterance_means)):
        for name in ("p50", "p90", "p95"):
            entry[f"{prefix}{name}_ms"] = round(getattr(quantiles, name)) if quantiles else None
    return {
        **entry,
        "matched": stats.matched,
        "matched_share": _rounded(stats.matched_share),
        "reference_words": stats.reference_words,
        "deletions": stats.deletions,
        "deletion_rate": _rounded(stats.deletion_rate),
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 4)


def line(entry: dict[str, object]) -> str:
    """One setting in a line for people."""
    delay, subsets = entry["delay"], entry["subsets"]
    assert isinstance(delay, dict)
    assert isinstance(subsets, dict)
    each = "  ".join(f"{tag} {values['wer']}" for tag, values in subsets.items())
    noise = "" if entry.get("snr_db") is None else f", {entry['snr_db']} dB over noise"
    noise += f", gain {entry['gain_db']} dB" if entry.get("gain_db") else ""
    return (
        f"{entry['model']} delay {entry['delay_ms']} chunk {entry['chunk_ms']}{noise}: WER {entry['wer']} % "
        f"{entry['interval']}, median delay {delay['p50_ms']} ms, p90 {delay['p90_ms']} ms | {each} | "
        f"RTF {entry['real_time_factor']}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="earlybird-en")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--alignments", type=Path, required=True)
    parser.add_argument("--align", action="store_true", help="first align the clips that --alignments lacks")
    parser.add_argument("--offline", action="store_true", help="also decode every clip as a whole")
    parser.add_argument("--delay-ms", type=int, nargs="+", default=[480])
    parser.add_argument("--chunk-ms", type=int, nargs="+", default=[320])
    parser.add_argument("--noise", type=Path, help="manifest of recordings without speech, for --snr-db")
    parser.add_argument("--snr-db", type=float, nargs="+", default=[], help="clips over noise so much louder than it")
    parser.add_argument("--gain-db", type=float, nargs="+", default=[0.0], help="of all that is heard")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--subset", action="append", default=[])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="one JSON line per setting is appended; settings there are skipped")
    parser.add_argument("--plots", type=Path, help="folder for plots of --out, as PNG and JSON")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.plots is not None and args.out is None:
        raise ConfigError("--plots draws what --out holds; state --out as well")
    if bool(args.snr_db) != (args.noise is not None):
        raise ConfigError("--snr-db and --noise go together")
    noises = () if args.noise is None else read_manifest(args.noise)
    model = asr.load(args.model)
    clips = chosen_clips(args.manifest, every=args.every, subsets=args.subset)
    if args.align:
        for reason, count in align_manifest(clips, args.alignments, processes=1).most_common():
            print(f"{count} clips not aligned: {reason}", file=sys.stderr)
    aligned = dict(read_alignments(args.alignments))
    offline = offline_errors(model, clips) if args.offline else None
    if offline is not None:
        print(f"offline: WER {100 * offline.total.rate():.2f} % of {len(offline.clips)} clips", flush=True)
    done = set()
    if args.out is not None and args.out.exists():
        for row in args.out.read_text().splitlines():
            entry = json.loads(row)
            done.add((entry["delay_ms"], entry["chunk_ms"], entry.get("snr_db"), entry.get("gain_db", 0.0)))
    settings = itertools.product(args.chunk_ms, args.delay_ms, args.snr_db or [None], args.gain_db)
    for chunk_ms, delay_ms, snr_db, gain_db in settings:
        if (delay_ms, chunk_ms, snr_db, gain_db) in done:
            continue
        entry = report(
            model,
            clips,
            aligned,
            delay_ms=delay_ms,
            chunk_ms=chunk_ms,
            batch=args.batch_size,
            offline=offline,
            noises=noises,
            snr_db=snr_db,
            gain_db=gain_db,
        )
        print(line(entry), flush=True)
        if args.out is not None:
            with args.out.open("a") as out:
                out.write(json.dumps(entry) + "\n")
    if args.plots is not None:
        awed.draw(awed.read_results([args.out]), args.plots)
    print(f"{len(clips)} clips", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
