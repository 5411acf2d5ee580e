"""What drafts spare, side by side in one run, and whether they change a word.

`python -m recipes.draft_benchmark speed --audio FILE… [--wider 10]` decodes the same audio by every drafter in turn,
after a warm-up, several times over; medians count. All are measured against `every step`: a call of the decoder in
every step of 80 ms. `none` runs a call for every piece and every block; in the cross family waits take no row, so that
this is what drafting waits would come to. `--wider F` adds a model whose decoder has F times the parameters: its
feed-forwards are widened by random units that nothing reads, so that the text stays and the decoder dominates.

`python -m recipes.draft_benchmark check --manifest DATA/dev.jsonl --delay-ms 480 --chunk-ms 320 --batch-size 1 16`
compares the words of every drafter with those of none, clip by clip. With `--turns` delays, chunks and batch sizes take
turns instead of meeting every clip: each drafter decodes the whole corpus once, each setting by its share of the clips.
`--bf16` has matrix products in bfloat16, with drafts and without, and says what float32 would have written otherwise.

`python -m recipes.draft_benchmark loss --manifest DATA/dev.jsonl --probability 0.5 0.1 --entropy 0.1 0.7` gives the
word error rate and the decoder calls of the exact mode, the relaxed one and the CTC shortcut at those thresholds.
Exit code: 0; 1 if a word differs; 2 if a setting or a file is wrong.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import asr
from asr.blocks import GeluFeedForward
from asr.cross import CrossLayer
from asr.cross_recogniser import CrossRecogniser
from asr.drafting import DRAFTERS, Drafting
from asr.errors import ConfigError, EarlybirdError
from asr.jobs import transcribe_streams
from asr.metrics import count_corpus
from asr.model import Model
from asr.resample import Samples
from asr.slots import StreamEngine
from asr.transcriber import Stream, advance
from asr.words import DecodeStats, DraftCount, Transcript, Word
from recipes.benchmark import read_audio
from recipes.bfloat16 import Bfloat16Products
from recipes.data import load_audio, read_manifest

__all__ = ["Measured", "check", "decode", "differences", "drafters_of", "losses", "measure", "run", "table", "wider"]

Clock = Callable[[], float]
EVERY_STEP = "every step"
"""In the place of a drafter's name: none, and a call of the decoder in every step, needed or not."""


def drafters_of(model: Model) -> list[str]:
    """The drafters that a model can have, none first."""
    lacks = {"ctc": model.ctc_tokenizer is None, "mtp": not model.has_mtp_heads}
    return [name for name in DRAFTERS if not lacks.get(name, False)]


def _loops_of(model: Model) -> list[str]:
    """The drafters, and what is measured against first: in the additive family every step is a call without drafts."""
    return [EVERY_STEP] * isinstance(model.recogniser, CrossRecogniser) + drafters_of(model)


def wider(model: Model, factor: float) -> Model:
    """The same model with a decoder of about `factor` times the parameters, and the same text.

    Raises:
        ConfigError: if it is no cross-family model, or the factor is below 1.
    """
    recogniser = copy.deepcopy(model.recogniser)
    if not isinstance(recogniser, CrossRecogniser) or factor < 1:
        raise ConfigError(f"a cross-family model and a factor of 1 or more are needed; got {model.name} and {factor}")
    layers = [layer for layer in recogniser.decoder.layers if isinstance(layer, CrossLayer)]
    grown = (factor - 1) * sum(p.numel() for p in recogniser.decoder.parameters()) / len(layers)
    dim = recogniser.decoder.dim
    more = round(grown / (2 * dim + 1))
    for layer in layers:
        old = layer.feed_forward
        new = GeluFeedForward(dim=dim, hidden=old.up.out_features + more)
        with torch.no_grad():
            new.down.weight.zero_()
            for mine, theirs in ((new.up.weight, old.up.weight), (new.up.bias, old.up.bias)):
                mine[: theirs.shape[0]] = theirs
            new.down.weight[:, : old.down.in_features] = old.down.weight
            new.down.bias.copy_(old.down.bias)
        layer.feed_forward = new.to(model.device)
    recogniser.eval().requires_grad_(False)
    return replace(model, name=f"{model.name}, decoder x{factor:g}", recogniser=recogniser)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One decode: words, counts, seconds in all, and those in decoder calls and in drafting."""

    words: tuple[Word, ...]
    stats: DecodeStats
    seconds: float
    decoder_seconds: float


class _Stopwatch:
    """Sums the seconds that some calls take."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.seconds = clock, 0.0

    def watch(self, owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = self.clock()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += self.clock() - begin

        setattr(owner, name, timed)


def decode(
    model: Model,
    samples: Samples,
    drafting: Drafting,
    *,
    delay_ms: int,
    chunk_ms: int,
    clock: Clock = time.perf_counter,
    every_step: bool = False,
) -> Measured:
    """Decodes [N] samples as one stream, flush included.

    Args:
        every_step: whether the decoder runs a row in steps that have their answer already.
    Raises:
        ConfigError: if the model was not made for the setting, or cannot draft so.
    """
    settings = model.settings(delay_ms=delay_ms, chunk_ms=chunk_ms)
    engine = StreamEngine(model, slots=1, chunks=[settings.chunk], drafting=drafting)
    watch, recogniser, decoder = _Stopwatch(clock), model.recogniser, model.recogniser.decoder
    more_calls = [0]
    if every_step:
        vars(recogniser)["row"] = _with_every_step(recogniser, more_calls)
    if engine.drafter is not None:
        watch.watch(engine.drafter, "draft")
    for name in ("rows", "logits"):
        watch.watch(decoder, name)
    words: list[Word] = []
    begin = clock()
    try:
        with Stream(engine, settings) as stream:
            stream.feed(samples)
            while moved := advance([stream]):
                words += moved[0][1].words
            stream.begin_flush()
            while moved := advance([stream]):
                words += moved[0][1].words
            seconds = clock() - begin
            stats = replace(
                stream.stats,
                decoder_calls=stream.stats.decoder_calls + more_calls[0],
                decoder_rows=stream.stats.decoder_rows + more_calls[0],
            )
            return Measured(words=tuple(words), stats=stats, seconds=seconds, decoder_seconds=watch.seconds)
    finally:
        if every_step:
            del vars(recogniser)["row"]
        for name in ("rows", "logits"):
            delattr(decoder, name)


def _with_every_step(recogniser: Any, more_calls: list[int]) -> Callable[..., Any]:
    """`recogniser.row` of one stream, which runs the row again in steps that need only what it said before."""
    row = recogniser.row

    def run(active: torch.Tensor, settings: Any, state: Any, draft: Any = None) -> Any:
        if bool(active.any()) and not bool(recogniser.needs_call(active, state).any()):
            again = state.pending[:, : int(state.pending_lens.max())]
            hidden, _ = recogniser.decoder.rows(again, state.pending_lens, state.decoder, state.memory)
            recogniser.decoder.logits(hidden)
            more_calls[0] += 1
        return row(active, settings, state, draft)

    return run


def measure(
    models: Sequence[Model],
    samples: Samples,
    *,
    delay_ms: int,
    chunks_ms: Sequence[int],
    repeats: int,
    clock: Clock = time.perf_counter,
) -> list[dict[str, object]]:
    """An entry for every model, chunk and drafter, cross-family models' ratios to `every step`, others' to none.

    Raises:
        ConfigError: if there is nothing to measure, or a drafter in exact mode changed a word.
    """
    if not len(samples) or repeats < 1:
        raise ConfigError(f"need audio and repeats; got {len(samples)} samples and {repeats} repeats")
    cases = [(model, chunk, name) for model in models for chunk in chunks_ms for name in _loops_of(model)]

    def one(model: Model, chunk: int, name: str) -> Measured:
        every_step = name == EVERY_STEP
        drafting = Drafting.of("none" if every_step else name, "exact")
        return decode(model, samples, drafting, delay_ms=delay_ms, chunk_ms=chunk, clock=clock, every_step=every_step)

    for case in cases:
        one(*case)
    runs = [[one(*case) for case in cases] for _ in range(repeats)]
    found: list[dict[str, object]] = []
    base: dict[str, float] = {}
    for at, (model, chunk, name) in enumerate(cases):
        measured = [run[at] for run in runs]
        stats = measured[0].stats
        seconds, decoder = (
            statistics.median(getattr(m, field) for m in measured) for field in ("seconds", "decoder_seconds")
        )
        if name == _loops_of(model)[0]:
            base = {"calls": stats.decoder_calls, "seconds": seconds, "decoder": decoder}
            plain = measured[0].words
        elif differences(plain, measured[0].words):
            raise ConfigError(f"{model.name}, {chunk} ms: drafts by {name!r} changed {plain} to {measured[0].words}")
        found.append(
            {
                "model": model.name,
                "chunk_ms": chunk,
                "delay_ms": delay_ms,
                "draft": name,
                "steps": stats.steps,
                "blocks": stats.blocks,
                "decoder_calls": stats.decoder_calls,
                "decoder_rows": stats.decoder_rows,
                "steps_a_call": round(stats.steps / max(1, stats.decoder_calls), 3),
                "fewer_calls": round(base["calls"] / max(1, stats.decoder_calls), 3),
                "mean_accepted": round(stats.mean_accepted, 3),
                "seconds": round(seconds, 4),
                "decoder_seconds": round(decoder, 4),
                "faster": round(base["seconds"] / seconds, 3),
                "decoder_faster": round(base["decoder"] / decoder, 3),
            }
        )
    return found


def table(found: Iterable[dict[str, object]]) -> str:
    """The entries for people; the ratios are to the first of the same model and chunk."""
    lines = [
        f"{'model':<30} {'chunk':>5} {'draft':>10} {'calls':>6} {'rows':>6} {'steps/call':>10} {'calls ÷':>8} "
        f"{'time ÷':>7} {'decoder ÷':>9}"
    ]
    for entry in found:
        lines.append(
            f"{entry['model']:<30} {entry['chunk_ms']:>5} {entry['draft']:>10} {entry['decoder_calls']:>6} "
            f"{entry['decoder_rows']:>6} {entry['steps_a_call']:>10.2f} {entry['fewer_calls']:>8.2f} "
            f"{entry['faster']:>7.2f} {entry['decoder_faster']:>9.2f}"
        )
    return "\n".join(lines)


def differences(mine: Sequence[Word], theirs: Sequence[Word]) -> int:
    """Words that differ in text or in any time; one more or one less counts as well."""
    return sum(
        (a and (a.text, a.start_ms, a.end_ms, a.emitted_ms)) != (b and (b.text, b.start_ms, b.end_ms, b.emitted_ms))
        for a, b in itertools.zip_longest(mine, theirs)
    )


def run(
    model: Model,
    clips: Sequence[tuple[str, Samples]],
    drafting: Drafting,
    *,
    delay_ms: int,
    chunk_ms: int,
    batch_size: int,
) -> dict[str, Transcript]:
    """Transcript by clip.

    Raises:
        ConfigError: if the model was not made for the setting; another error, if a clip cannot be decoded.
    """
    jobs = ((key, [samples]) for key, samples in clips)
    found = {}
    for key, result in transcribe_streams(
        model, jobs, delay_ms=delay_ms, chunk_ms=chunk_ms, batch_size=batch_size, drafting=drafting
    ):
        if isinstance(result, EarlybirdError):
            raise result
        found[key] = result
    return found


def _totals(transcripts: Iterable[Transcript]) -> dict[str, object]:
    stats = [one.stats for one in transcripts]
    drafts: dict[str, DraftCount] = {}
    for one in stats:
        for source, count in one.drafts.items():
            drafts[source] = drafts.get(source, DraftCount()) + count
    total = DecodeStats(drafts=drafts)
    return {
        "decoder_calls": sum(one.decoder_calls for one in stats),
        "decoder_rows": sum(one.decoder_rows for one in stats),
        "steps": sum(one.steps for one in stats),
        "mean_accepted": round(total.mean_accepted, 3),
        "drafts": total.to_json()["drafts"],
    }


def check(
    model: Model,
    clips: Sequence[tuple[str, Samples]],
    drafters: Sequence[str],
    *,
    delays_ms: Sequence[int],
    chunks_ms: Sequence[int],
    batch_sizes: Sequence[int],
    turns: bool = False,
    bf16: bool = False,
) -> Iterator[dict[str, object]]:
    """Every drafter against none, which runs alone: an entry a setting.

    Args:
        turns: whether a clip is decoded with one delay, chunk and batch size only, the next clip with the next ones.
        bf16: whether products are bfloat16's; what float32 would have written otherwise is then told as well.

    Raises:
        EarlybirdError: as `run`.
    """
    products = Bfloat16Products if bf16 else nullcontext
    settings = list(
        itertools.product(delays_ms, chunks_ms, [[size] for size in batch_sizes] if turns else [batch_sizes])
    )
    for at, (delay, chunk, sizes) in enumerate(settings):
        part = clips[at :: len(settings)] if turns else clips
        alone = partial(run, model, part, Drafting(drafter="none"), delay_ms=delay, chunk_ms=chunk, batch_size=1)
        rounded: dict[str, object] = {}
        with products():
            plain = alone()
        if bf16:
            full = alone()
            rounded["clips_that_rounding_changes"] = [key for key, one in full.items() if one.text != plain[key].text]
        for batch, name in itertools.product(sizes, drafters):
            with products():
                mine = run(model, part, Drafting.of(name, "exact"), delay_ms=delay, chunk_ms=chunk, batch_size=batch)
            yield {
                "delay_ms": delay,
                "chunk_ms": chunk,
                "batch_size": batch,
                "draft": name,
                "clips": len(part),
                "words": sum(len(one.words) for one in plain.values()),
                "clips_that_differ": [key for key, one in plain.items() if differences(one.words, mine[key].words)],
                **rounded,
                "calls_of_none": sum(one.stats.decoder_calls for one in plain.values()),
                **_totals(mine.values()),
            }


def losses(
    model: Model,
    clips: Sequence[tuple[str, Samples]],
    texts: dict[str, str],
    draftings: Sequence[Drafting],
    *,
    delay_ms: int,
    chunk_ms: int,
    batch_size: int,
) -> Iterator[dict[str, object]]:
    """Word error rate (per cent) and decoder calls of each way of drafting.

    Args:
        texts: what is spoken, by clip.
    Raises:
        EarlybirdError: as `run`.
    """
    for drafting in draftings:
        mine = run(model, clips, drafting, delay_ms=delay_ms, chunk_ms=chunk_ms, batch_size=batch_size)
        errors = count_corpus(("all", texts[key], one.text) for key, one in mine.items())
        yield {
            "delay_ms": delay_ms,
            "chunk_ms": chunk_ms,
            **drafting.to_json(),
            "clips": len(clips),
            "wer": round(100 * errors.total.rate(), 2),
            **_totals(mine.values()),
        }


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.draft_benchmark`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed")
    speed.add_argument("--audio", type=Path, nargs="+", required=True, help="files; one after the other is the audio")
    speed.add_argument("--seconds", type=float, help="no more than so much of the audio")
    speed.add_argument("--delay-ms", type=int, default=480)
    speed.add_argument("--wider", type=float, help="also a decoder of so many times the parameters")
    speed.add_argument("--repeats", type=int, default=3)
    exact = commands.add_parser("check")
    exact.add_argument("--manifest", type=Path, required=True)
    exact.add_argument("--clips", type=int, help="no more than so many")
    exact.add_argument("--delay-ms", type=int, nargs="+", default=[480])
    exact.add_argument("--batch-size", type=int, nargs="+", default=[1])
    exact.add_argument("--draft", nargs="+", help="drafters; those that the model can have, unless told")
    exact.add_argument("--turns", action="store_true", help="a clip is decoded in one setting only")
    exact.add_argument("--bf16", action="store_true", help="matrix products in bfloat16")
    lossy = commands.add_parser("loss")
    lossy.add_argument("--manifest", type=Path, required=True)
    lossy.add_argument("--clips", type=int, help="no more than so many")
    lossy.add_argument("--delay-ms", type=int, default=480)
    lossy.add_argument("--batch-size", type=int, default=1)
    lossy.add_argument("--draft", default="auto")
    lossy.add_argument("--probability", type=float, nargs="*", default=[0.5, 0.3, 0.1, 0.03])
    lossy.add_argument("--entropy", type=float, nargs="*", default=[0.1, 0.3, 0.7, 1.5])
    for command in (speed, exact, lossy):
        command.add_argument("--model", default="earlybird-en")
        command.add_argument("--chunk-ms", type=int, nargs="+", default=[320])
        command.add_argument("--threads", type=int, default=1)
        command.add_argument("--device", default="cpu")
    return parser


def _draftings(draft: str, probabilities: Sequence[float], entropies: Sequence[float]) -> list[Drafting]:
    exact = Drafting.of(draft, "exact")
    return [
        exact,
        *(replace(exact, mode="relaxed", least_probability=value) for value in probabilities),
        *(replace(exact, mode="ctc-shortcut", most_entropy=value) for value in entropies),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    args = build_parser().parse_args(argv)
    differ = False
    try:
        torch.set_num_threads(args.threads)
        model = asr.load(args.model, device=args.device)
        if args.command == "speed":
            models = [model] if args.wider is None else [model, wider(model, args.wider)]
            samples = read_audio(args.audio, seconds=args.seconds)
            found = measure(models, samples, delay_ms=args.delay_ms, chunks_ms=args.chunk_ms, repeats=args.repeats)
            print(table(found))
            for entry in found:
                print(json.dumps(entry | {"threads": args.threads, "device": args.device}))
        else:
            chosen = list(itertools.islice(read_manifest(args.manifest), args.clips))
            clips = [(clip.audio, load_audio(clip.path).numpy()) for clip in chosen]
            if args.command == "check":
                entries = check(
                    model,
                    clips,
                    args.draft or [name for name in drafters_of(model) if name != "none"],
                    delays_ms=args.delay_ms,
                    chunks_ms=args.chunk_ms,
                    batch_sizes=args.batch_size,
                    turns=args.turns,
                    bf16=args.bf16,
                )
            else:
                entries = itertools.chain.from_iterable(
                    losses(
                        model,
                        clips,
                        {clip.audio: clip.text or "" for clip in chosen},
                        _draftings(args.draft, args.probability, args.entropy),
                        delay_ms=args.delay_ms,
                        chunk_ms=chunk_ms,
                        batch_size=args.batch_size,
                    )
                    for chunk_ms in args.chunk_ms
                )
            for entry in entries:
                differ = differ or bool(entry.get("clips_that_differ"))
                print(json.dumps(entry), flush=True)
    except (EarlybirdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(differ)


if __name__ == "__main__":
    raise SystemExit(main())
