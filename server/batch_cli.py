"""The command `earlybird transcribe`. Thin: it reads flags and calls; importing it loads no model and no PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asr.errors import ConfigError
from server.options import DEFAULT_MODEL, ModelOption

if TYPE_CHECKING:
    from asr.channels import Channel

DEFAULT_BATCH_SIZE = 4
EXIT_CODES = (
    "Exit codes: 0 everything was done; 1 some files failed (the others have results); 2 wrong usage or settings; "
    "130 and 143 stopped by Ctrl-C and by SIGTERM (the same command goes on from there)."
)

Paths = Annotated[list[Path] | None, typer.Argument(metavar="PATH...", help="Audio files, and folders of them.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results, the tree kept; else standard output.")]
Formats = Annotated[
    str | None,
    typer.Option(
        "--format", help="txt,json,srt,vtt,ctm: with --out txt,json, on standard output txt unless told otherwise."
    ),
]
DelayMs = Annotated[
    int, typer.Option("--delay-ms", help="How long the model may listen past a word's end: a multiple of 80.")
]
ChunkMs = Annotated[int, typer.Option("--chunk-ms", help="How much audio the encoder takes at once: a multiple of 80.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Files that a process decodes at once.")]
Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        min=1,
        help="PyTorch threads of a process; there are as many processes as the cores feed. A small model gains little "
        "from more than 1.",
    ),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
ChannelName = Annotated[
    str, typer.Option("--channel", help="A channel's number from 0; mix; or each: all of them, their words by time.")
]
Vad = Annotated[bool, typer.Option("--vad", help="Leave out long silence; the times stay those of the file.")]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", help="Of folders, take only what matches: a glob on the name or the path below."),
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", help="Of folders, leave out files and folders that match.")
]
FilesFrom = Annotated[
    Path | None, typer.Option("--files-from", help="A list of more PATHs, one a line or NUL-separated; - is stdin.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Also do what is done: by default a run goes on where one was stopped.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Fail a file with a warning: cut input, speech-like sound without a word.")
]
RayAddress = Annotated[
    str | None, typer.Option("--ray", help="Let a Ray cluster work: its address, or local to start one here.")
]
DraftName = Annotated[str, typer.Option("--draft", help="Who drafts for the decoder: none, wait, ctc, mtp or auto.")]
DraftMode = Annotated[
    str, typer.Option("--draft-mode", help="exact: the text stays the same; relaxed and ctc-shortcut: it may change.")
]
Lm = Annotated[Path | None, typer.Option("--lm", help="An n-gram model of `earlybird lm build`.")]
LmWeight = Annotated[float | None, typer.Option("--lm-weight", help="How much it counts, 0 to 2.")]
Phrases = Annotated[
    Path | None,
    typer.Option("--phrases", help="Phrases to recognise more readily, one a line; a tab and a boost may follow."),
]
Boost = Annotated[float | None, typer.Option("--boost", help="Of the other phrases: nats a piece, 0 to 5.")]
Stats = Annotated[bool, typer.Option("--stats", help="Print totals to standard error at the end.")]


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


def transcribe(
    paths: Paths = None,
    out: Out = None,
    formats: Formats = None,
    delay_ms: DelayMs = 480,
    chunk_ms: ChunkMs = 320,
    batch_size: BatchSize = DEFAULT_BATCH_SIZE,
    threads: Threads = 1,
    device: Device = "cpu",
    channel: ChannelName = "mix",
    vad: Vad = False,
    include: Include = None,
    exclude: Exclude = None,
    files_from: FilesFrom = None,
    overwrite: Overwrite = False,
    strict: Strict = False,
    ray: RayAddress = None,
    draft: DraftName = "auto",
    draft_mode: DraftMode = "exact",
    lm: Lm = None,
    lm_weight: LmWeight = None,
    phrases: Phrases = None,
    boost: Boost = None,
    model: ModelOption = DEFAULT_MODEL,
    stats: Stats = False,
) -> None:
    """Transcribe files as if they were streams: the text depends on --delay-ms and --chunk-ms alone.

    Results go to standard output or, with --out, to one file per input and format (stems that collide keep their
    suffix: a.mp3.json, a.wav.json); run.jsonl there says what became of each file, and the same command goes on where
    it was stopped. Warnings and errors go to standard error.
    """
    from server.batch import BatchSettings, result_settings, run_batch
    from server.batch_worker import WorkerSettings
    from server.inputs import Selection, find_inputs, read_list
    from server.progress import batch_progress
    from server.runners import Runner
    from server.writers import parse_formats

    chosen = parse_formats(formats) if formats is not None else ("txt", "json") if out is not None else ("txt",)
    settings = BatchSettings(formats=chosen, out=out, overwrite=overwrite, strict=strict)
    worker = WorkerSettings(
        model=model,
        device=device,
        threads=threads,
        delay_ms=delay_ms,
        chunk_ms=chunk_ms,
        batch_size=batch_size,
        channel="each" if channel == "each" else parse_channel(channel),
        vad=vad,
        draft=draft,
        draft_mode=draft_mode,
        lm=lm,
        lm_weight=lm_weight,
        phrases=phrases,
        boost=boost,
    )
    listed = read_list(files_from) if files_from is not None else []
    if not paths and not listed:
        raise ConfigError("nothing to transcribe; name files or folders, or a list of them with --files-from")
    progress = batch_progress()
    inputs = find_inputs(
        paths or [],
        log=progress.log,
        select=Selection(include=tuple(include or ()), exclude=tuple(exclude or ())),
        listed=listed,
    )
    summary = run_batch(
        Runner(worker, ray=ray, progress=progress),
        inputs,
        settings,
        depends_on=result_settings(worker),
        results=sys.stdout,
        progress=progress,
    )
    if stats:
        progress.log(summary.stats_line())
    raise typer.Exit(summary.exit_code)
