"""Long trials: endless speech, noise without a word, and the stream against the file.

`python -m recipes.soak long --model M --manifest DEV.jsonl [--alignments A.jsonl] --minutes 30 --out R.json`
joins clips to one recording (all of them again, in another order, while there is not enough), feeds it fast to one
session in random pieces and reports memory by the minute, what a chunk costs in the first and in the last minutes, the
word error rate beside that of the clips one by one, and the errors near the re-anchorings beside those elsewhere.
`… noise --manifest NOISE.jsonl --seconds 300` reports every word written in digital silence, white and pink noise and
each recording of the manifest, at several levels. `… equal --manifest DEV.jsonl --clips 100` compares files with
sessions that get the same bytes in random pieces.
Exit code: 0 passed; 1 not: state that grew, a word in noise, a text that differs; 2 a setting or a file is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

import asr
from asr.errors import ConfigError, EarlybirdError
from asr.jobs import transcribe_streams
from asr.metrics import WordErrors, count_errors, sum_word_errors
from asr.model import Model
from asr.resample import Samples
from asr.slots import StreamEngine
from asr.transcriber import transcribe
from asr.units import SAMPLE_RATE, samples_to_ms
from asr.words import Transcript
from recipes.align import AlignedClip, read_alignments
from recipes.data import Clip, load_audio, read_manifest
from recipes.located import Located, TimedText, count_by_place, is_near, locate
from recipes.mixing import Joined, Placed, at_level, cut_pieces, join_clips, looped, pink_noise, white_noise
from streaming.events import Words
from streaming.session import Session

LEVELS_DB = (-60, -50, -40, -30, -20)
LARGEST_PIECE = SAMPLE_RATE // 2
NEAR_MS = 2000
WARM_UP_MINUTES = 5
"""Of audio, left out where growth is judged; of a short run no more than half."""
COST_MINUTES = 10
"""The first and the last so many minutes behind the warm-up are compared; of a short run no more than half of them."""
Report = dict[str, Any]


# -- memory and cost -------------------------------------------------------------------------------------------------


def resident_bytes() -> int | None:
    """Memory of this process; None where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else None


def slope(values: Sequence[float]) -> float | None:
    """Least-squares rise from one value to the next; None with fewer than two.

    >>> slope([1.0, 3.0, 5.0]), slope([1.0])
    (2.0, None)
    """
    if len(values) < 2:
        return None
    index = np.arange(len(values)) - (len(values) - 1) / 2
    return float((index * np.array(values, dtype=np.float64)).sum() / np.square(index).sum())


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one long session did.

    Attributes:
        transcript: its words.
        re_anchors_ms: how much audio was decoded when each re-anchoring was seen.
        state_bytes, resident: at each minute of audio; resident in bytes.
        chunk_seconds: what each whole chunk cost, of the clock; what completes several at once is shared out.
    """

    transcript: Transcript
    re_anchors_ms: tuple[int, ...]
    state_bytes: tuple[int, ...]
    resident: tuple[int, ...]
    chunk_seconds: Sequence[float]


def cost_report(chunk_seconds: Sequence[float], *, chunk_ms: int) -> Report | None:
    """What a chunk costs in the first minutes behind the warm-up, in the last ones, and how it rises over the hours.

    Args:
        chunk_seconds: of each chunk of the audio, in order.
        chunk_ms: how much audio a chunk is.
    Returns:
        Milliseconds a chunk; None for runs of less than 4 minutes, of which too little is left to compare.
    """
    each = 60_000 // chunk_ms
    minutes = [np.array(chunk_seconds[at : at + each]) * 1000 for at in range(0, len(chunk_seconds) - each + 1, each)]
    minutes = minutes[min(WARM_UP_MINUTES, len(minutes) // 2) :]
    window = min(COST_MINUTES, len(minutes) // 2)
    if not window:
        return None
    first, last = np.concatenate(minutes[:window]), np.concatenate(minutes[-window:])
    medians = [float(np.median(minute)) for minute in minutes]
    rise = slope(medians)
    assert rise is not None  # there are two minutes
    return {
        "chunks": len(chunk_seconds),
        "minutes_compared": window,
        "first_median_ms": round(float(np.median(first)), 3),
        "last_median_ms": round(float(np.median(last)), 3),
        "ratio": round(float(np.median(last) / np.median(first)), 4),
        "first_mean_ms": round(float(first.mean()), 3),
        "last_mean_ms": round(float(last.mean()), 3),
        "mean_ratio": round(float(last.mean() / first.mean()), 4),
        "median_rise_ms_per_hour": round(60 * rise, 4),
        "minute_medians_ms": [round(median, 3) for median in medians],
    }


def run_long(
    model: Model,
    samples: Samples,
    *,
    delay_ms: int,
    chunk_ms: int,
    seed: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Feeds [N] samples to one session in random pieces of up to half a second, as fast as they are decoded.

    Args:
        clock: gives seconds.
    """
    rng = random.Random(seed)
    chunk_samples = chunk_ms * SAMPLE_RATE // 1000
    chunk = model.settings(delay_ms=delay_ms, chunk_ms=chunk_ms).chunk
    engine = StreamEngine(model, slots=1, chunks=[chunk])
    marks: list[int] = []
    state_bytes, resident = [engine.state_bytes], [resident_bytes() or 0]
    fed, unshared = 0, 0.0
    chunk_seconds = array("d")  # 8 bytes a chunk: hours of them must not look like memory that grows
    with Session(model, delay_ms=delay_ms, chunk_ms=chunk_ms, engine=engine) as session:
        for piece in cut_pieces(samples, largest=LARGEST_PIECE, rng=rng):
            begin = clock()
            session.feed_audio(piece)
            session.events()
            unshared += clock() - begin
            chunks = (fed + len(piece)) // chunk_samples - fed // chunk_samples
            fed += len(piece)
            if chunks:
                chunk_seconds.extend([unshared / chunks] * chunks)
                unshared = 0.0
            marks += [samples_to_ms(fed)] * (session.stats.re_anchors - len(marks))
            if fed // (60 * SAMPLE_RATE) >= len(state_bytes):
                state_bytes.append(engine.state_bytes)
                resident.append(resident_bytes() or 0)
                print(f"{len(state_bytes) - 1} min, {len(marks)} re-anchorings", file=sys.stderr, flush=True)
        session.close()
        marks += [samples_to_ms(fed)] * (session.stats.re_anchors - len(marks))
        transcript = session.transcript()
    return Run(
        transcript=transcript,
        re_anchors_ms=tuple(marks),
        state_bytes=tuple(state_bytes),
        resident=tuple(resident),
        chunk_seconds=chunk_seconds,
    )


# -- long: the same clips in one stream and one by one ---------------------------------------------------------------


def reference_words(placed: Placed, aligned: AlignedClip | None) -> list[TimedText]:
    """The words of a clip with their ends on the whole recording's clock.

    Without an alignment the ends are spread evenly over the clip.
    """
    if aligned is not None:
        return [TimedText(text=word.text, at_ms=placed.start_ms + word.end_ms) for word in aligned.words]
    words = (placed.clip.text or "").split()
    span_ms = samples_to_ms(placed.end - placed.start)
    return [
        TimedText(text=word, at_ms=placed.start_ms + span_ms * (i + 1) // len(words)) for i, word in enumerate(words)
    ]


def heard_words(transcript: Transcript, *, offset_ms: int = 0) -> list[TimedText]:
    """A transcript's words with their ends, moved by `offset_ms`."""
    return [TimedText(text=word.text, at_ms=offset_ms + word.end_ms) for word in transcript.words]


def long_report(
    joined: Joined,
    run: Run,
    alone: Mapping[str, Transcript],
    aligned: Mapping[str, AlignedClip],
    *,
    chunk_ms: int,
    near_ms: int,
) -> Report:
    """What a long run shows.

    Args:
        joined: what was fed; run: what came of it.
        alone: by audio name, each clip's transcript decoded by itself.
        aligned: word times, by audio name; clips without have theirs spread evenly.
        chunk_ms: how much audio each of the run's chunks is.
        near_ms: how near to a re-anchoring is near.
    """
    pairs = [(placed, reference_words(placed, aligned.get(placed.clip.audio))) for placed in joined.placed]
    whole = locate([word for _, words in pairs for word in words], heard_words(run.transcript))
    single: list[Located] = []
    for placed, words in pairs:
        single += locate(words, heard_words(alone[placed.clip.audio], offset_ms=placed.start_ms))
    one_by_one = sum_word_errors(
        count_errors(placed.clip.text or "", alone[placed.clip.audio].text) for placed in joined.placed
    )
    resident_mb = [value / 2**20 for value in run.resident]
    settled_mb = resident_mb[min(WARM_UP_MINUTES, len(resident_mb) // 2) :]
    return {
        "check": "long",
        "minutes": round(len(joined.samples) / SAMPLE_RATE / 60, 2),
        "clips": len(joined.placed),
        "settings": dict(run.transcript.settings),
        "chunk_cost": cost_report(run.chunk_seconds, chunk_ms=chunk_ms),
        "stats": run.transcript.stats.to_json(),
        "long": _errors(count_errors(joined.text, run.transcript.text)),
        "one_by_one": _errors(one_by_one),
        "near_ms": near_ms,
        "places": {
            name: {
                place: {**_errors(errors), "doubled": doubled}
                for place, (errors, doubled) in count_by_place(units, run.re_anchors_ms, within_ms=near_ms).items()
            }
            for name, units in (("long", whole), ("one_by_one", single))
        },
        "near_errors": [
            {"kind": unit.kind, "text": unit.text, "at_ms": unit.at_ms, "doubled": unit.doubled}
            for unit in whole
            if unit.kind != "hit" and is_near(unit.at_ms, run.re_anchors_ms, within_ms=near_ms)
        ],
        "re_anchors_ms": list(run.re_anchors_ms),
        "state_bytes": sorted(set(run.state_bytes)),
        "resident_mb": [round(value, 1) for value in resident_mb],
        "resident_mb_per_minute": slope(settled_mb),
        "passed": len(set(run.state_bytes)) == 1,
    }


def _errors(errors: WordErrors) -> Report:
    return {
        "wer": round(100 * errors.rate(), 2),
        "words": errors.reference_length,
        "substitutions": errors.substitutions,
        "deletions": errors.deletions,
        "insertions": errors.insertions,
    }


def _decoded(
    jobs: Iterator[tuple[str, Iterator[Samples]]], model: Model, args: argparse.Namespace
) -> Iterator[tuple[str, Transcript]]:
    """Transcripts as they finish; any error is raised, for data sets have no broken files."""
    for key, result in transcribe_streams(
        model, jobs, delay_ms=args.delay_ms, chunk_ms=args.chunk_ms, batch_size=args.batch_size
    ):
        if not isinstance(result, Transcript):
            raise result
        yield key, result


def check_long(model: Model, args: argparse.Namespace) -> Report:
    """See the module's text."""
    clips = [clip for clip in _clips(args) if clip.text]
    joined = join_clips(clips, seconds=60 * args.minutes, seed=args.seed)
    aligned = dict(read_alignments(args.alignments)) if args.alignments else {}
    run = run_long(model, joined.samples, delay_ms=args.delay_ms, chunk_ms=args.chunk_ms, seed=args.seed)
    once = {placed.clip.audio: placed.clip for placed in joined.placed}
    jobs = ((name, iter([load_audio(clip.path).numpy()])) for name, clip in once.items())
    alone = dict(_decoded(jobs, model, args))
    return long_report(joined, run, alone, aligned, chunk_ms=args.chunk_ms, near_ms=NEAR_MS)


# -- noise -----------------------------------------------------------------------------------------------------------


def noise_streams(
    clips: Sequence[Clip], *, count: int, levels_db: Sequence[float], seed: int
) -> Iterator[tuple[str, Samples]]:
    """(name and level, [count] samples): digital silence, then white and pink noise and each clip at each level."""
    yield "silence", np.zeros(count, dtype=np.float32)
    rng = np.random.default_rng(seed)
    for name, made in (("white", white_noise), ("pink", pink_noise)):
        samples = made(count, rng)
        for level_db in levels_db:
            yield f"{name} {level_db:g} dBFS", at_level(samples, level_db)
    for clip in clips:
        samples = looped(load_audio(clip.path).numpy(), count)
        for level_db in levels_db:
            yield f"{clip.audio} {level_db:g} dBFS", at_level(samples, level_db)


def noise_entry(name: str, transcript: Transcript) -> Report:
    """What one condition gave, as a line of the partial file."""
    return {
        "condition": name,
        "seconds": round(transcript.audio_samples / SAMPLE_RATE, 2),
        "words": [
            {"text": word.text, "start_ms": word.start_ms, "confidence": round(word.confidence, 3)}
            for word in transcript.words
        ],
    }


def noise_report(found: Sequence[Report]) -> Report:
    """Words written in each condition, from `noise_entry`'s; those without one are only counted."""
    spoke = sorted((entry for entry in found if entry["words"]), key=lambda entry: str(entry["condition"]))
    return {
        "check": "noise",
        "conditions": len(found),
        "seconds_each": found[0]["seconds"] if found else 0,
        "words": sum(len(entry["words"]) for entry in spoke),
        "written": [{"condition": entry["condition"], "words": entry["words"]} for entry in spoke],
        "passed": not spoke,
    }


def read_partial(path: Path, run: Report) -> list[Report]:
    """The conditions that an interrupted run had finished; a last line cut short is taken off the file.

    Raises:
        ConfigError: if they are of a run with other settings.
    """
    if not path.exists():
        path.write_text(json.dumps(run) + "\n", encoding="utf-8")
        return []
    whole = path.read_text(encoding="utf-8")
    kept = whole[: whole.rfind("\n") + 1]
    path.write_text(kept, encoding="utf-8")
    first, *found = [json.loads(line) for line in kept.splitlines()] or [None]
    if first != run:
        raise ConfigError(f"{path} is of another run ({first}; this one is {run}); remove it to start anew")
    return found


def check_noise(model: Model, args: argparse.Namespace) -> Report:
    """See the module's text. With `--out`, what is finished is kept beside it, and an interrupted run goes on."""
    names = ("model", "seconds", "level_db", "seed", "delay_ms", "chunk_ms")
    run = {name: getattr(args, name) for name in names} | {"manifest": str(args.manifest)}
    partial: Path | None = None if args.out is None else args.out.with_name(args.out.name + ".partial")
    if partial is not None:
        partial.parent.mkdir(parents=True, exist_ok=True)
    found = [] if partial is None else read_partial(partial, run)
    done = {entry["condition"] for entry in found}
    streams = noise_streams(
        _clips(args), count=round(args.seconds * SAMPLE_RATE), levels_db=args.level_db, seed=args.seed
    )
    jobs = ((name, iter([samples])) for name, samples in streams if name not in done)
    for name, transcript in _decoded(jobs, model, args):
        found.append(noise_entry(name, transcript))
        if partial is not None:
            with partial.open("a", encoding="utf-8") as out:
                out.write(json.dumps(found[-1]) + "\n")
        print(f"{len(found)}: {name}: {transcript.text!r}", file=sys.stderr, flush=True)
    if partial is not None:
        partial.unlink()
    return noise_report(found)


# -- equal -----------------------------------------------------------------------------------------------------------


def both_ways(model: Model, samples: Samples, *, delay_ms: int, chunk_ms: int, rng: random.Random) -> tuple[str, str]:
    """The text of [N] samples as 16-bit PCM: read from a file, and from a session that gets the bytes in random pieces.

    A piece may end within a sample.
    """
    pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.wav"
        soundfile.write(path, pcm, SAMPLE_RATE, subtype="PCM_16")
        whole = transcribe(model, path, delay_ms=delay_ms, chunk_ms=chunk_ms).text
    with Session(model, delay_ms=delay_ms, chunk_ms=chunk_ms) as session:
        for piece in cut_pieces(pcm.tobytes(), largest=2 * LARGEST_PIECE, rng=rng):
            session.feed_audio(piece)
        session.close()
        text = "".join(event.text for event in session.events() if isinstance(event, Words))
    return whole, text.strip()


def equal_report(pairs: Mapping[str, tuple[str, str]]) -> Report:
    """Which of (file's text, session's text) differ in a byte."""
    unequal = {name: pair for name, pair in pairs.items() if pair[0].encode() != pair[1].encode()}
    return {
        "check": "equal",
        "clips": len(pairs),
        "with_text": sum(bool(pair[0]) for pair in pairs.values()),
        "unequal": [{"audio": name, "file": pair[0], "session": pair[1]} for name, pair in unequal.items()],
        "passed": not unequal,
    }


def check_equal(model: Model, args: argparse.Namespace) -> Report:
    """See the module's text."""
    rng = random.Random(args.seed)
    clips = _clips(args)
    pairs = {}
    for clip in rng.sample(clips, min(args.clips, len(clips))):
        samples = load_audio(clip.path).numpy()
        pairs[clip.audio] = both_ways(model, samples, delay_ms=args.delay_ms, chunk_ms=args.chunk_ms, rng=rng)
        print(f"{clip.audio}: {pairs[clip.audio][0]!r}", file=sys.stderr, flush=True)
    return equal_report(pairs)


# -- the command -----------------------------------------------------------------------------------------------------


def _clips(args: argparse.Namespace) -> list[Clip]:
    found = [
        clip
        for clip in read_manifest(args.manifest)
        if (not args.subset or (clip.subset_tag or clip.source) in args.subset)
        and (clip.subset_tag or clip.source) not in args.skip_subset
    ]
    if not found:
        raise ConfigError(f"{args.manifest} has no clip of the subsets asked for")
    return found


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.soak`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    checks = parser.add_subparsers(dest="check", required=True)
    for name, check in (("long", check_long), ("noise", check_noise), ("equal", check_equal)):
        one = checks.add_parser(name)
        one.set_defaults(run=check)
        one.add_argument("--model", default="earlybird-en")
        one.add_argument("--manifest", type=Path, required=True)
        one.add_argument("--subset", action="append", default=[], help="a subset_tag, or source; repeatable")
        one.add_argument("--skip-subset", action="append", default=[])
        one.add_argument("--delay-ms", type=int, default=480)
        one.add_argument("--chunk-ms", type=int, default=320)
        one.add_argument("--batch-size", type=int, default=16)
        one.add_argument("--threads", type=int, default=1)
        one.add_argument("--seed", type=int, default=1)
        one.add_argument("--out", type=Path, help="the report, as JSON; it is printed as well")
        if name == "long":
            one.add_argument("--minutes", type=float, default=30.0)
            one.add_argument("--alignments", type=Path)
        elif name == "noise":
            one.add_argument("--seconds", type=float, default=300.0)
            one.add_argument("--level-db", type=float, nargs="+", default=list(LEVELS_DB))
        else:
            one.add_argument("--clips", type=int, default=100)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    args = build_parser().parse_args(argv)
    try:
        torch.set_num_threads(args.threads)
        report: Report = args.run(asr.load(args.model), args)
    except (EarlybirdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = json.dumps(report, indent=1, ensure_ascii=False)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
