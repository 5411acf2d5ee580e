"""The commands `earlybird serve` and `earlybird listen`. Thin: they read flags and call."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from server.options import DEFAULT_MODEL

DEFAULT_URL = "ws://127.0.0.1:8765/v1/stream"
TOKEN_VARIABLE = "EARLYBIRD_TOKEN"

DelayOption = Annotated[
    int | None, typer.Option("--delay-ms", help="How long the model may listen past a word's end: a multiple of 80.")
]
ChunkOption = Annotated[
    int | None, typer.Option("--chunk-ms", help="How much audio the encoder takes at once: a multiple of 80.")
]
PhrasesOption = Annotated[Path | None, typer.Option("--phrases", help="Phrases to recognise more readily, one a line.")]
BoostOption = Annotated[float | None, typer.Option("--boost", help="Of the phrases: nats a piece, 0 to 5.")]


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def serve(
    host: Annotated[str, typer.Option("--host", help="Where to listen; 0.0.0.0 for all networks.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535)] = 8765,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Name of an installed model, or a checkpoint folder; without it int8:earlybird-en on a CPU, which "
            "holds a third more sessions at the same word error rate, and earlybird-en elsewhere.",
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="PyTorch threads; a small model gains little from more than 1.")
    ] = 1,
    max_sessions: Annotated[
        int | None,
        typer.Option(
            "--max-sessions", min=1, help="Sessions at once; without it, as many as a measurement at start allows."
        ),
    ] = None,
    delay_ms: DelayOption = 480,
    chunk_ms: ChunkOption = 320,
    lm: Annotated[Path | None, typer.Option("--lm", help="An n-gram model of `earlybird lm build`.")] = None,
    lm_weight: Annotated[float | None, typer.Option("--lm-weight", help="How much it counts, 0 to 2.")] = None,
    phrases: PhrasesOption = None,
    boost: BoostOption = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key, PEM.")] = None,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", help="File of bearer tokens, one a line: only who has one may use it.")
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Let everybody on the network use it, without a token.")
    ] = False,
    origins: Annotated[
        list[str] | None, typer.Option("--origin", help="A web page's origin that may connect, such as https://a.org.")
    ] = None,
    idle_s: Annotated[
        int, typer.Option("--idle-s", min=1, help="A session without a word from its client ends.")
    ] = 300,
    session_s: Annotated[
        int | None, typer.Option("--session-s", min=1, help="A session with so much audio ends; without it, none does.")
    ] = None,
    resume_s: Annotated[
        int, typer.Option("--resume-s", min=0, help="A session whose connection broke is kept so long.")
    ] = 30,
) -> None:
    """Serve live captions: a page at /, the websocket at /v1/stream, /metrics, /healthz and /readyz."""
    from server.capacity import with_measured_sessions
    from server.engine import load_model, load_scorer
    from server.serve import WorkerFailed, serve_until_stopped, set_up_logging, tls_context
    from server.settings import ServeSettings, check_exposure, read_tokens

    context = tls_context(tls_cert, tls_key)
    settings = ServeSettings(
        host=host,
        port=port,
        max_sessions=max_sessions or 1,
        delay_ms=delay_ms or 480,
        chunk_ms=chunk_ms or 320,
        tokens=() if tokens is None else read_tokens(tokens),
        origins=tuple(origins or ()),
        idle_ms=1000 * idle_s,
        session_ms=None if session_s is None else 1000 * session_s,
        resume_ms=1000 * resume_s,
    )
    check_exposure(settings, open_to_all=open_to_all)
    set_up_logging()
    model = model or (f"int8:{DEFAULT_MODEL}" if device == "cpu" else DEFAULT_MODEL)
    loaded = load_model(model, device=device, threads=threads)
    if max_sessions is None:
        settings = with_measured_sessions(loaded, settings, log=_log)
    scorer = load_scorer(
        loaded,
        slots=settings.max_sessions,
        lm=lm,
        lm_weight=lm_weight,
        phrases=phrases,
        boost=boost,
        log=_log,
    )
    try:
        asyncio.run(serve_until_stopped(loaded, settings, tls=context, scorer=scorer, log=_log))
    except WorkerFailed as error:
        _log(f"error: {error}")
        raise typer.Exit(1) from None


def listen(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="An audio file, sent as fast as it was spoken; else a microphone."),
    ] = None,
    url: Annotated[str, typer.Option("--url", help="The server's websocket.")] = DEFAULT_URL,
    device: Annotated[
        str | None, typer.Option("--device", help="The microphone: its number, or a part of its name.")
    ] = None,
    list_devices: Annotated[bool, typer.Option("--list-devices", help="List the microphones and stop.")] = False,
    channel: Annotated[str, typer.Option("--channel", help="Of a file: a channel's number from 0, or mix.")] = "mix",
    delay_ms: DelayOption = None,
    chunk_ms: ChunkOption = None,
    phrases: PhrasesOption = None,
    boost: BoostOption = None,
    token: Annotated[
        str | None,
        typer.Option("--token", envvar=TOKEN_VARIABLE, help="The server's bearer token; better in the variable."),
    ] = None,
    ca: Annotated[Path | None, typer.Option("--ca", help="Certificate that signs the server's, PEM.")] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Print every message of the server as a line.")] = False,
) -> None:
    """Show live captions in the terminal, from a server that runs: committed text plain, what may change dim.

    Control-C ends the session after its last words.
    """
    import ssl
    import time

    from server.batch_cli import parse_channel
    from server.client import ConnectionLost, StreamClient
    from server.listen import TerminalView, file_pieces, json_line, listen, microphone_pieces
    from server.microphone import choose_device, input_devices, sounddevice

    if list_devices:
        for one in input_devices(sounddevice()):
            print(one)
        return
    start: dict[str, object] = {"encoding": "pcm_s16le", "sample_rate": 16_000}
    if phrases is not None:
        from lm_fusion.phrases import read_phrases

        start["phrases"] = [{"text": phrase.text, "boost": phrase.boost} for phrase in read_phrases(phrases)]
    start |= {key: value for key, value in (("delay_ms", delay_ms), ("chunk_ms", chunk_ms), ("boost", boost)) if value}

    async def run() -> dict[str, object]:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        if path is None:
            library = sounddevice()
            chosen = choose_device(input_devices(library), device)
            start["sample_rate"] = chosen.sample_rate
            _log(f"listening to {chosen.name}; Control-C ends it")
            pieces = microphone_pieces(library, chosen, stop)
        else:
            pieces = file_pieces(path, parse_channel(channel), clock=time.monotonic)
        tls = None if ca is None else ssl.create_default_context(cafile=str(ca))
        client = StreamClient(url, start, token=token, tls=tls)
        view = TerminalView(sys.stdout, sys.stderr, plain=not sys.stdout.isatty())
        show = (lambda message: print(json_line(message), flush=True)) if json_lines else view.show
        return await listen(client, pieces, show, stop=stop)

    try:
        last = asyncio.run(run())
    except ConnectionLost as error:
        _log(f"error: {error}")
        raise typer.Exit(1) from None
    if last.get("reason") != "end":
        raise typer.Exit(1)
