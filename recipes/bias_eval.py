"""What an n-gram model and phrase lists do to word errors and to rare words, to silence, and to the time of a step.

`python -m recipes.bias_eval --manifest DEV.jsonl --text TEXT.gz ... --lm FILE --out RESULTS.jsonl` decodes the clips
with nothing, with the n-gram, with each clip's own list of each size, and with both, over the weights given; then lists
of absent phrases only; then silence and noise with 100 phrases at the largest boost. A line is printed and written for
each; settings that are in the file are skipped. `--benchmark` measures steps with and without, side by side.

Keywords and distractors: see `recipes.bias_lists`. Up to 1,000 phrases each clip has a list of its own; a longer one
is shared and holds the keywords of all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

import asr
from asr.comparison import KeywordCounts, count_keywords, paired_difference
from asr.jobs import transcribe_streams
from asr.metrics import bootstrap_interval, count_errors, sum_word_errors
from asr.model import Model
from asr.resample import Samples
from asr.slots import StreamEngine
from asr.units import SAMPLE_RATE, STEP_MS
from asr.words import Transcript
from lm_fusion.build import read_lines
from lm_fusion.fusion import Fusion, Steering
from lm_fusion.phrases import DEFAULT_BOOST, MAX_BOOST, PhraseList
from recipes.bias_lists import clip_keywords, distractors, list_for, word_counts
from recipes.data import Clip, load_audio
from recipes.evaluate import chosen_clips
from recipes.sessions import read_noises

OWN_LIST_SIZE = 1_000
"""Up to here each clip has a list of its own."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of the table.

    Attributes:
        lm_weight: 0 leaves the n-gram out.
        boost: of the list; size: its phrases, 0: none.
        absent: whether the list holds distractors only.
    """

    lm_weight: float = 0.0
    boost: float = 0.0
    size: int = 0
    absent: bool = False


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Clips with their keywords.

    Attributes:
        clips: with transcripts.
        keywords: of each clip, by its name; others: what lists are filled with.
    """

    clips: tuple[Clip, ...]
    keywords: dict[str, tuple[str, ...]]
    others: tuple[str, ...]

    @property
    def all_keywords(self) -> tuple[str, ...]:
        """Those of all clips, each once."""
        return tuple(dict.fromkeys(word for words in self.keywords.values() for word in words))


def read_corpus(clips: Sequence[Clip], texts: Sequence[Path], *, common: int) -> Corpus:
    """The clips with their keywords; `common` most frequent words of the texts are none."""
    counts = word_counts(line for path in texts for line in read_lines(path))
    frequent = {word for word, _ in counts.most_common(common)}
    keywords = clip_keywords(clips, frequent)
    spoken = {word for clip in clips for word in word_counts([clip.text or ""])}
    spoken |= {word for words in keywords.values() for word in words}
    return Corpus(clips=tuple(clips), keywords=keywords, others=distractors(counts, frequent, spoken))


def table_settings(
    lm_weights: Sequence[float], boosts: Sequence[float], sizes: Sequence[int], *, default_size: int = 100
) -> list[Setting]:
    """None; the n-gram at each weight; lists of each size at the default boost and of one size at each; both; absent.

    Args:
        lm_weights, boosts, sizes: above 0; without weights there is no n-gram.
        default_size: of the lists with which boosts and weights are tried.
    """
    found = [Setting(), *(Setting(lm_weight=weight) for weight in lm_weights)]
    found += [Setting(boost=DEFAULT_BOOST, size=size) for size in sizes]
    found += [Setting(boost=boost, size=default_size) for boost in boosts]
    found += [Setting(lm_weight=weight, boost=DEFAULT_BOOST, size=default_size) for weight in lm_weights]
    found += [Setting(boost=boost, size=default_size, absent=True) for boost in dict.fromkeys([DEFAULT_BOOST, *boosts])]
    return list(dict.fromkeys(found))


def steering_of(corpus: Corpus, scorer: Fusion, setting: Setting) -> Callable[[str], Steering]:
    """What each clip, by its name, is steered by."""
    shared: PhraseList | None = None
    if setting.size > OWN_LIST_SIZE:
        own = () if setting.absent else corpus.all_keywords
        shared = scorer.builder.build(list_for(own, corpus.others, size=setting.size, seed="all"), boost=setting.boost)

    def steering(name: str) -> Steering:
        phrases = shared
        if phrases is None and setting.size:
            own = () if setting.absent else corpus.keywords[name]
            words = list_for(own, corpus.others, size=setting.size, seed=name)
            phrases = scorer.builder.build(words, boost=setting.boost)
        return Steering(phrases=phrases, lm_weight=setting.lm_weight)

    return steering


def decode(
    model: Model,
    clips: Sequence[Clip],
    scorer: Fusion,
    steering: Callable[[str], Steering],
    *,
    delay_ms: int,
    chunk_ms: int,
    batch_size: int,
) -> dict[str, str]:
    """The text of each clip, by its name; any error is raised."""

    def audio(clip: Clip) -> Iterator[Samples]:
        yield load_audio(clip.path).numpy()

    ordered = sorted(clips, key=lambda clip: clip.duration_ms)
    results = transcribe_streams(
        model,
        ((clip.audio, audio(clip)) for clip in ordered),
        delay_ms=delay_ms,
        chunk_ms=chunk_ms,
        batch_size=batch_size,
        scorer=scorer,
        steering=steering,
    )
    texts: dict[str, str] = {}
    for name, result in results:
        if not isinstance(result, Transcript):
            raise result
        texts[name] = result.text
    return texts


def measure(corpus: Corpus, setting: Setting, texts: dict[str, str], base: dict[str, str]) -> dict[str, object]:
    """Word errors and keywords of one setting, beside those of nothing."""
    spoken = frozenset(corpus.all_keywords)
    clips = [clip for clip in corpus.clips if clip.text]
    errors, before = (tuple(count_errors(c.text or "", said[c.audio]) for c in clips) for said in (texts, base))
    kept = [at for at, counts in enumerate(errors) if counts.reference_length]
    errors, before = (tuple(counts[at] for at in kept) for counts in (errors, before))
    interval = bootstrap_interval(errors, seed=1)
    change = paired_difference(errors, before, seed=1)
    found = sum((count_keywords(spoken, c.text or "", texts[c.audio]) for c in clips), KeywordCounts())
    return {
        **asdict(setting),
        "clips": len(clips),
        "wer": round(100 * sum_word_errors(errors).rate(), 2),
        "interval": None if interval is None else [round(100 * bound, 2) for bound in interval],
        "wer_change": [round(100 * value, 2) for value in (change.difference, change.low, change.high)],
        "keywords": found.spoken,
        "recall": None if found.recall is None else round(100 * found.recall, 1),
        "precision": None if found.precision is None else round(100 * found.precision, 1),
        "identical": round(100 * sum(texts[c.audio] == base[c.audio] for c in clips) / len(clips), 1),
    }


def line(entry: dict[str, object]) -> str:
    """One setting in a line for people."""
    kind = "absent " if entry["absent"] else ""
    return (
        f"lm {entry['lm_weight']:<5} boost {entry['boost']:<4} {kind}phrases {entry['size']:<6} WER {entry['wer']} % "
        f"{entry['interval']}, change {entry['wer_change']}, keyword recall {entry['recall']} % of "
        f"{entry['keywords']}, precision {entry['precision']} %, texts as without {entry['identical']} %"
    )


def quiet_words(
    model: Model, noises: Sequence[Samples], others: Sequence[str], *, delay_ms: int, chunk_ms: int
) -> dict[str, int]:
    """Words written on sounds without speech: with nothing, and with 100 phrases at the largest boost."""
    scorer = Fusion.of(model, slots=1)
    phrases = scorer.builder.build(list_for((), others, size=100, seed="quiet"), boost=MAX_BOOST)

    def words(steering: Steering) -> int:
        jobs = ((str(at), [samples]) for at, samples in enumerate(noises))
        results = transcribe_streams(
            model, jobs, delay_ms=delay_ms, chunk_ms=chunk_ms, batch_size=1, scorer=scorer, steering=lambda _: steering
        )
        count = 0
        for _, result in results:
            if not isinstance(result, Transcript):
                raise result
            count += len(result.words)
        return count

    return {"none": words(Steering()), "boosted": words(Steering(phrases=phrases))}


def step_seconds(
    model: Model,
    speech: Sequence[Samples],
    steerings: Sequence[tuple[Fusion | None, Sequence[Steering | None]]],
    *,
    blocks: int,
) -> list[list[float]]:
    """Seconds of each block of a batch, for each of several scorers, measured in turn.

    Args:
        model: of all engines.
        speech: of each stream, at least `blocks` + 1 blocks of 320 ms; the first block warms up.
        steerings: a scorer, or None, and what each stream is steered by.
        blocks: to measure.
    """
    settings = model.settings(delay_ms=480, chunk_ms=320)
    engines = []
    for scorer, each in steerings:
        engine = StreamEngine(model, slots=len(speech), chunks=[settings.chunk], scorer=scorer)
        rows = [engine.acquire(settings, steering) for steering in each]
        engines.append((engine, rows))
    size = settings.chunk.chunk_steps * STEP_MS * SAMPLE_RATE // 1000
    seconds: list[list[float]] = [[] for _ in engines]
    for block in range(blocks + 1):
        for at, (engine, rows) in enumerate(engines):
            batch = {row: part[block * size : (block + 1) * size] for row, part in zip(rows, speech, strict=True)}
            begin = time.perf_counter()
            engine.step(batch)
            if block:
                seconds[at].append(time.perf_counter() - begin)
    return seconds


def benchmark(
    model: Model, corpus: Corpus, lm: Path | None, *, batches: Sequence[int], blocks: int, log: Callable[[str], None]
) -> None:
    """Prints the time of a step with phrases, and with the n-gram too, as a ratio of that without."""
    sound = np.concatenate([load_audio(clip.path).numpy() for clip in corpus.clips[:20]])
    length = (blocks + 1) * 4 * STEP_MS * SAMPLE_RATE // 1000
    sound = np.tile(sound, -(-2 * length // len(sound)))
    for batch in batches:
        starts = np.linspace(0, len(sound) - length, batch).astype(int)
        speech = [sound[start : start + length] for start in starts]
        variants: list[tuple[str, Fusion | None, list[Steering | None]]] = [("none", None, [None] * batch)]
        for name, file in (("phrases", None), ("phrases and n-gram", lm)):
            if name != "phrases" and file is None:
                continue
            scorer = Fusion.of(model, slots=batch, lm=file)
            lists = [scorer.builder.build(list_for((), corpus.others, size=100, seed=str(row))) for row in range(batch)]
            weight = scorer.default.lm_weight
            variants.append((name, scorer, [Steering(phrases=phrases, lm_weight=weight) for phrases in lists]))
        measured = step_seconds(model, speech, [(scorer, each) for _, scorer, each in variants], blocks=blocks)
        base = measured[0]
        for (name, _, _), seconds in zip(variants, measured, strict=True):
            ratio = statistics.median(a / b for a, b in zip(seconds, base, strict=True))
            log(
                f"batch {batch}, a list of 100 each, {name}: median {1000 * statistics.median(seconds):.1f} ms a "
                f"block, {ratio:.3f} of none ({blocks} blocks, in turn)"
            )


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="earlybird-en")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="what the n-gram model is trained on")
    parser.add_argument("--common", type=int, default=5_000, help="so many of the text's words are no keywords")
    parser.add_argument("--lm", type=Path)
    parser.add_argument("--lm-weights", type=float, nargs="*", default=[0.05, 0.1, 0.2, 0.3])
    parser.add_argument("--boosts", type=float, nargs="*", default=[0.5, 1.0, 2.0, 3.0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[10, 100, 1_000, 20_000])
    parser.add_argument("--noise", type=Path, help="manifest of sounds without speech")
    parser.add_argument("--silence-seconds", type=int, default=60, help="decoded with --noise")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--subset", action="append", default=[])
    parser.add_argument("--delay-ms", type=int, default=480)
    parser.add_argument("--chunk-ms", type=int, default=320)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--benchmark", type=int, nargs="*", default=[], metavar="BATCH", help="such as 16 64")
    parser.add_argument("--blocks", type=int, default=20, help="of the benchmark")
    parser.add_argument("--skip-table", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    model = asr.load(args.model)
    clips = chosen_clips(args.manifest, every=args.every, subsets=args.subset)
    corpus = read_corpus(clips, args.text, common=args.common)
    print(f"{len(clips)} clips, {len(corpus.all_keywords)} keywords, {len(corpus.others)} distractors", flush=True)
    if not args.skip_table:
        run_table(model, corpus, args)
    if args.noise is not None:
        noises = [noise.numpy() for noise in read_noises(args.noise)]
        silence = np.zeros(args.silence_seconds * SAMPLE_RATE, dtype=np.float32)
        words = quiet_words(model, [silence, *noises], corpus.others, delay_ms=args.delay_ms, chunk_ms=args.chunk_ms)
        print(f"words on silence and {len(noises)} noises, 100 phrases at boost {MAX_BOOST}: {words}", flush=True)
    benchmark(
        model, corpus, args.lm, batches=args.benchmark, blocks=args.blocks, log=lambda text: print(text, flush=True)
    )
    return 0


def run_table(model: Model, corpus: Corpus, args: argparse.Namespace) -> None:
    """Decodes and reports every setting that `args.out` has not."""
    entries = [json.loads(row) for row in args.out.read_text().splitlines()] if args.out.exists() else []
    known = {tuple(entry[name] for name in asdict(Setting())): entry["texts"] for entry in entries}
    scorer = Fusion.of(model, slots=args.batch_size, lm=args.lm, lm_weight=0.0)
    settings = table_settings(args.lm_weights if args.lm else [], args.boosts, args.sizes)
    base: dict[str, str] = {}
    for setting in settings:
        key = tuple(asdict(setting).values())
        texts = known.get(key)
        if texts is None:
            texts = decode(
                model,
                corpus.clips,
                scorer,
                steering_of(corpus, scorer, setting),
                delay_ms=args.delay_ms,
                chunk_ms=args.chunk_ms,
                batch_size=args.batch_size,
            )
            with args.out.open("a") as out:
                out.write(json.dumps({**asdict(setting), "texts": texts}) + "\n")
        base = base or texts
        print(line(measure(corpus, setting, texts, base)), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
