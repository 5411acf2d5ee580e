"""The command `earlybird`. Thin: it reads flags and calls; importing it loads no model and no PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from asr.errors import EarlybirdError
from server import batch_cli, live_cli, lm_cli, train_cli
from server.options import DEFAULT_MODEL, ModelOption

DEFAULT_DELAY_MS = 480
DEFAULT_CHUNK_MS = 320

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Streaming speech recognition: what was said, and how soon each word was committed.",
)
app.add_typer(lm_cli.app, name="lm")
app.add_typer(train_cli.app, name="train")
train_cli.add_stage(app, "evaluate")
app.command(epilog=batch_cli.EXIT_CODES)(batch_cli.transcribe)
LIVE_EXIT_CODES = (
    "Exit codes: 0 it ended as it should; 1 the connection or the server failed; 2 wrong usage or settings."
)
app.command(epilog=LIVE_EXIT_CODES)(live_cli.serve)
app.command(epilog=LIVE_EXIT_CODES)(live_cli.listen)

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
