"""The command `earlybird`. Thin: it reads flags and calls; importing it loads no model and no PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asr.errors import ConfigError, EarlybirdError
from server import live_cli, lm_cli

if TYPE_CHECKING:
    from asr.channels import Channel

DEFAULT_MODEL = "earlybird-en"
DEFAULT_DELAY_MS = 480
DEFAULT_CHUNK_MS = 320
DEFAULT_BATCH_SIZE = 4

EXIT_CODES = (
    "Exit codes: 0 everything was done; 1 some files failed (the others have results); 2 wrong usage or settings."
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Streaming speech recognition: what was said, and how soon each word was committed.",
)
app.add_typer(lm_cli.app, name="lm")
LIVE_EXIT_CODES = (
    "Exit codes: 0 it ended as it should; 1 the connection or the server failed; 2 wrong usage or settings."
)
app.command(epilog=LIVE_EXIT_CODES)(live_cli.serve)
app.command(epilog=LIVE_EXIT_CODES)(live_cli.listen)

ModelOption = Annotated[str, typer.Option("--model", help="Name of an installed model, or a checkpoint folder.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
DelayOption = Annotated[
    int, typer.Option("--delay-ms", help="How long the model may listen past a word's end: a multiple of 80.")
]
ChunkOption = Annotated[
    int, typer.Option("--chunk-ms", help="How much audio the encoder takes at once: a multiple of 80.")
]


def log(line: str) -> None:
    """One line to standard error."""
    print(line, file=sys.stderr, flush=True)


def parse_channel(channel: str) -> Channel:
    """A channel's number, or "mix".

    Raises:
        ConfigError: if it is neither.

    >>> parse_channel("1")
    1
    """
    if channel == "mix":
        return "mix"
    if not (channel.isascii() and channel.isdigit()):
        raise ConfigError(f"--channel is {channel!r}; it must be 'mix' or a number from 0")
    return int(channel)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("earlybird-asr"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Global options."""


@app.command(epilog=EXIT_CODES)
def transcribe(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Audio files, and folders of them.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results, the tree kept; else standard output.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option("--format", help="txt,json: with --out both, on standard output txt unless told otherwise."),
    ] = None,
    delay_ms: DelayOption = DEFAULT_DELAY_MS,
    chunk_ms: ChunkOption = DEFAULT_CHUNK_MS,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Files decoded at once.")] = DEFAULT_BATCH_SIZE,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="PyTorch threads; a small model gains little from more than 1.")
    ] = 1,
    device: DeviceOption = "cpu",
    channel: Annotated[str, typer.Option("--channel", help="A channel's number from 0, or mix.")] = "mix",
    draft: Annotated[
        str, typer.Option("--draft", help="Who drafts for the decoder: none, wait, ctc, mtp or auto.")
    ] = "auto",
    draft_mode: Annotated[
        str,
        typer.Option("--draft-mode", help="exact: the text stays the same; relaxed and ctc-shortcut: it may change."),
    ] = "exact",
    lm: Annotated[Path | None, typer.Option("--lm", help="An n-gram model of `earlybird lm build`.")] = None,
    lm_weight: Annotated[float | None, typer.Option("--lm-weight", help="How much it counts, 0 to 2.")] = None,
    phrases: Annotated[
        Path | None,
        typer.Option("--phrases", help="Phrases to recognise more readily, one a line; a tab and a boost may follow."),
    ] = None,
    boost: Annotated[float | None, typer.Option("--boost", help="Of the other phrases: nats a piece, 0 to 5.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    stats: Annotated[bool, typer.Option("--stats", help="Print totals to standard error at the end.")] = False,
) -> None:
    """Transcribe files as if they were streams: the text depends on --delay-ms and --chunk-ms alone.

    Results go to standard output or, with --out, to one file per input and format (stems that collide keep their
    suffix: a.mp3.json, a.wav.json). Warnings and errors go to standard error.
    """
    from server.batch import BatchSettings, find_inputs, run_batch
    from server.engine import load_model, load_scorer, transcribe_jobs
    from server.writers import parse_formats

    chosen = parse_formats(formats) if formats is not None else ("txt", "json") if out is not None else ("txt",)
    settings = BatchSettings(formats=chosen, out=out, channel=parse_channel(channel))
    inputs = find_inputs(paths, log=log)
    loaded = load_model(model, device=device, threads=threads)
    scorer = load_scorer(loaded, slots=batch_size, lm=lm, lm_weight=lm_weight, phrases=phrases, boost=boost, log=log)
    summary = run_batch(
        lambda jobs: transcribe_jobs(
            loaded,
            jobs,
            delay_ms=delay_ms,
            chunk_ms=chunk_ms,
            batch_size=batch_size,
            draft=draft,
            draft_mode=draft_mode,
            scorer=scorer,
        ),
        inputs,
        settings,
        results=sys.stdout,
        log=log,
    )
    if stats:
        log(summary.stats_line())
    raise typer.Exit(1 if summary.failed else 0)


@app.command(epilog="Exit codes: 0 all can be loaded; 1 one cannot.")
def models() -> None:
    """List the installed models and the settings that each was made for."""
    from server.engine import installed_models, load_model

    names = installed_models()
    if not names:
        log("no model is installed")
    failed = False
    for name in names:
        try:
            description = load_model(name, device="cpu", threads=1).describe()
        except EarlybirdError as error:
            failed = True
            log(f"error: {name}: {type(error).__name__}: {error}")
            continue
        print(name)
        for key, value in description.items():
            print(f"  {key}: {value}")
    raise typer.Exit(1 if failed else 0)


@app.command(epilog="Exit codes: 0 all is well; 1 something that a transcription needs is missing.")
def doctor(
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = "cpu",
    delay_ms: DelayOption = DEFAULT_DELAY_MS,
    chunk_ms: ChunkOption = DEFAULT_CHUNK_MS,
) -> None:
    """Report versions, devices, decoders and models, and try a tiny decode."""
    from server.doctor import examine

    ok = True
    for finding in examine(model_name=model, device=device, delay_ms=delay_ms, chunk_ms=chunk_ms):
        print(finding, flush=True)
        ok = ok and finding.ok
    raise typer.Exit(0 if ok else 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code: 0 done, 1 some files failed, 2 wrong usage or settings.

    Args:
        argv: the arguments after the command's name; None for those of the process.
    """
    try:
        app(args=None if argv is None else list(argv), prog_name="earlybird")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except EarlybirdError as error:
        log(f"error: {type(error).__name__}: {error}")
        return 2
    return 0
