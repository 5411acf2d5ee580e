"""The command `earlybird lm`: n-gram models over a recogniser's tokens. Thin: it reads flags and calls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asr.errors import ConfigError
from server.options import DEFAULT_MODEL

if TYPE_CHECKING:
    from lm_fusion.ngram_units import Units

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Build, convert and mix n-gram models over a recogniser's tokens; find their weight.",
)

_EXIT_CODES = "Exit codes: 0 it was written; 2 wrong usage, settings or input."

ModelOption = Annotated[str, typer.Option("--model", help="The model whose tokens are meant, by name or folder.")]
UnitsOption = Annotated[str, typer.Option("--units", help="decoder: its pieces; ctc: those of the CTC head.")]
OutOption = Annotated[Path, typer.Option("--out", help="The file to write, for --lm.")]


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse_prune(prune: str) -> list[int]:
    """Numbers between commas.

    Raises:
        ConfigError: if there is anything else.

    >>> parse_prune("0,0,1")
    [0, 0, 1]
    """
    parts = prune.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"--prune is {prune!r}; it must be numbers between commas, such as 0,0,1")
    return [int(part) for part in parts]


def parse_weights(weights: str, name: str) -> list[float]:
    """Numbers between commas, such as 0.1,0.2.

    Raises:
        ConfigError: if there is anything else; `name` is the flag.

    >>> parse_weights("0,0.25", "--weights")
    [0.0, 0.25]
    """
    try:
        return [float(part) for part in weights.split(",")]
    except ValueError:
        raise ConfigError(f"{name} is {weights!r}; it must be numbers between commas, such as 0.1,0.2") from None


def load_units(model: str, units: str) -> Units:
    """The tokens of a model.

    Raises:
        ConfigError: if `units` is unknown, or the model has no CTC head.
        CheckpointError: if there is no such model.
    """
    from asr.checkpoint import load
    from lm_fusion.ngram_units import ctc_units, decoder_units

    if units not in ("decoder", "ctc"):
        raise ConfigError(f"--units is {units!r}; it must be decoder or ctc")
    loaded = load(model)
    if units == "decoder":
        return decoder_units(loaded.vocabulary, loaded.config.vocabulary)
    if loaded.ctc_tokenizer is None:
        raise ConfigError(f"--units is ctc, and the model {model} has no CTC head")
    return ctc_units(loaded.ctc_tokenizer)


@app.command(epilog=_EXIT_CODES)
def build(
    texts: Annotated[
        list[Path], typer.Argument(metavar="TEXT", help="Text, a sentence a line; .gz; or manifests (.jsonl).")
    ],
    out: OutOption,
    order: Annotated[int, typer.Option("--order", help="The longest n-gram, 2 to 6.")] = 4,
    prune: Annotated[
        str, typer.Option("--prune", help="Leave out n-grams met at most so often: a number an order, not falling.")
    ] = "0",
    model: ModelOption = DEFAULT_MODEL,
    units: UnitsOption = "decoder",
    arpa: Annotated[Path | None, typer.Option("--arpa", help="Write the model as ARPA text too.")] = None,
    dev: Annotated[
        Path | None, typer.Option("--dev", help="Text or manifest to measure perplexity on, none of it in TEXT.")
    ] = None,
) -> None:
    """Estimate a modified Kneser–Ney model from text, over a recogniser's tokens; no compiler is needed."""
    from lm_fusion.arpa import write_arpa
    from lm_fusion.build import build_ngrams, read_lines, sentence_case
    from lm_fusion.ngram import build_automaton, perplexity

    thresholds, tokens = parse_prune(prune), load_units(model, units)
    lines = (line for path in texts for line in read_lines(path))
    estimated = build_ngrams(lines, tokens, order=order, prune=thresholds)
    if estimated.fallback:
        orders = ", ".join(map(str, estimated.fallback))
        _log(f"warning: the discounts of order {orders} cannot be estimated from this text; 0.5, 1 and 1.5 are used")
    if arpa is not None:
        write_arpa(estimated.ngrams, arpa)
    automaton = build_automaton(estimated.ngrams, tokens, source=str(out))
    automaton.save(out)
    counts = " + ".join(map(str, estimated.ngrams.counts))
    print(f"{out}: {estimated.sentences} sentences, {estimated.tokens} tokens, {counts} n-grams")
    if dev is not None:
        held_out = [tokens.encode(sentence_case(line)) for line in read_lines(dev)]
        print(f"{dev}: perplexity {perplexity(automaton, held_out):.1f} a token, {len(held_out)} sentences")


@app.command(epilog=_EXIT_CODES)
def convert(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="An ARPA file, plain or gzipped, or a KenLM binary.")],
    out: OutOption,
    model: ModelOption = DEFAULT_MODEL,
    units: UnitsOption = "decoder",
) -> None:
    """Turn an n-gram model over the same tokens into the file that loads at once."""
    from lm_fusion.arpa import KENLM_MAGIC, read_arpa
    from lm_fusion.ngram import build_automaton
    from lm_fusion.ngram_kenlm import read_kenlm

    tokens = load_units(model, units)
    with source.open("rb") as file:
        binary = file.read(len(KENLM_MAGIC)) == KENLM_MAGIC
    ngrams = read_kenlm(source, tokens) if binary else read_arpa(source)
    build_automaton(ngrams, tokens, source=str(source)).save(out)
    print(f"{out}: {' + '.join(map(str, ngrams.counts))} n-grams")


@app.command(epilog=_EXIT_CODES)
def mix(
    first: Annotated[Path, typer.Argument(metavar="ARPA1", help="An ARPA file, plain or gzipped.")],
    second: Annotated[Path, typer.Argument(metavar="ARPA2", help="Another, over the same tokens.")],
    out: OutOption,
    weight: Annotated[float, typer.Option("--weight", help="Of the first model, between 0 and 1.")] = 0.5,
    model: ModelOption = DEFAULT_MODEL,
    units: UnitsOption = "decoder",
    arpa: Annotated[Path | None, typer.Option("--arpa", help="Write the mixture as ARPA text too.")] = None,
) -> None:
    """Interpolate two models linearly into one."""
    from lm_fusion.arpa import read_arpa, write_arpa
    from lm_fusion.ngram import build_automaton
    from lm_fusion.ngram_mix import mix as mix_ngrams

    tokens = load_units(model, units)
    mixture = mix_ngrams(read_arpa(first), read_arpa(second), weight)
    if arpa is not None:
        write_arpa(mixture, arpa)
    build_automaton(mixture, tokens, source=f"{first} and {second}").save(out)
    print(f"{out}: {' + '.join(map(str, mixture.counts))} n-grams")


@app.command(epilog="Exit codes: 0 a gain or none was found; 2 wrong usage, settings or input.")
def tune(
    manifest: Annotated[
        Path, typer.Argument(metavar="DEV.jsonl", help="Clips with transcripts, none of them in TEXT.")
    ],
    lm: Annotated[Path | None, typer.Option("--lm", help="The n-gram model.")] = None,
    weights: Annotated[str, typer.Option("--weights", help="Weights of --lm to try.")] = "0,0.05,0.1,0.2,0.3",
    phrases: Annotated[Path | None, typer.Option("--phrases", help="A list, a phrase a line.")] = None,
    boosts: Annotated[str, typer.Option("--boosts", help="Boosts of --phrases to try.")] = "0,0.5,1,1.5,2,3",
    every: Annotated[int, typer.Option("--every", min=1, help="Take every so-many-th clip.")] = 1,
    model: ModelOption = DEFAULT_MODEL,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    delay_ms: Annotated[int, typer.Option("--delay-ms", help="See `earlybird transcribe`.")] = 480,
    chunk_ms: Annotated[int, typer.Option("--chunk-ms", help="See `earlybird transcribe`.")] = 320,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Files decoded at once.")] = 16,
) -> None:
    """Find the weight of an n-gram model and the boost of a list on clips with transcripts, or that there is no gain.

    The pair with the fewest word errors on every second clip is judged on the others, which had no say in it.
    """
    from lm_fusion.fusion import Fusion
    from lm_fusion.phrases import read_phrases
    from server import lm_tune
    from server.engine import load_model

    clips = lm_tune.read_spoken_clips(manifest, every=every)
    loaded = load_model(model, device=device, threads=1)
    found = lm_tune.tune(
        loaded,
        clips,
        Fusion.of(loaded, slots=batch_size, lm=lm),
        lm_weights=[] if lm is None else parse_weights(weights, "--weights"),
        phrases=() if phrases is None else read_phrases(phrases),
        boosts=[] if phrases is None else parse_weights(boosts, "--boosts"),
        delay_ms=delay_ms,
        chunk_ms=chunk_ms,
        batch_size=batch_size,
        log=_log,
    )
    print(lm_tune.verdict(found))
