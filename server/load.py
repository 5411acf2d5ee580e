"""Load on a running server: clients that speak in real time, more and more of them, and what each waits for its words.

`python -m server.load --url ws://HOST:8765/v1/stream --clips samples/transcripts.jsonl --sessions 1,2,4 --out R.json`
lets N clients stream clips one after the other, each its own, and reports for each N: word delay as the client has it
(from the moment at which the end of the word was sent to the arrival of its message), the time of steps (from
`/metrics`), refusals, words lost against one client alone, and the word error rate.
Exit code: 0 measured; 1 a client was refused or cut off; 2 a setting or a file is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asr.errors import ConfigError, EarlybirdError
from asr.metrics import count_errors, sum_word_errors
from server.client import ConnectionLost, Message, StreamClient
from server.listen import file_pieces
from streaming.emission_delay import DelayHistogram

STAGGER_SECONDS = 0.37
"""Clients begin one after the other, so that their chunks do not end at the same moments."""
BUCKET = re.compile(r'^earlybird_step_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class LoadClip:
    """A recording and what is said in it."""

    path: Path
    text: str


@dataclass
class Heard:
    """What one client got of one clip."""

    clip: LoadClip
    text: str = ""
    delays_ms: list[int] = field(default_factory=list)
    refused: str | None = None


def read_clips(manifest: Path) -> list[LoadClip]:
    """Lines of {"audio", "text"}, paths relative to the manifest.

    Raises:
        ConfigError: if it cannot be read or has none.
    """
    try:
        lines = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines() if line.strip()]
        clips = [LoadClip(path=manifest.parent / line["audio"], text=line["text"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{manifest}: no list of clips with audio and text: {error!r}") from None
    if not clips:
        raise ConfigError(f"{manifest}: has no clip")
    return clips


async def stream_clip(url: str, token: str | None, clip: LoadClip, start: Mapping[str, object]) -> Heard:
    """One client, one clip, in real time."""
    heard = Heard(clip)
    client = StreamClient(url, {"encoding": "pcm_s16le", "sample_rate": 16_000, **start}, token=token)
    ready = asyncio.Event()
    began = 0.0

    async def speak() -> None:
        nonlocal began
        await ready.wait()
        began = time.monotonic()
        pieces: AsyncIterator[bytes] = file_pieces(clip.path, "mix", clock=time.monotonic)
        async for piece in pieces:
            await client.audio(piece)
        client.end()

    speaking = asyncio.create_task(speak())
    try:
        async for message in client.messages():
            ready.set()
            _hear(heard, message, time.monotonic() - began)
    except ConnectionLost as error:
        heard.refused = str(error)
    finally:
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)
    return heard


def _hear(heard: Heard, message: Message, since_s: float) -> None:
    if message["type"] == "words":
        heard.text += message["text"]
        heard.delays_ms += [round(1000 * since_s) - word["end_ms"] for word in message["words"]]
    elif message.get("fatal") or (message["type"] == "closed" and message["reason"] != "end"):
        heard.refused = message.get("code") or message["reason"]


async def run_clients(
    url: str, token: str | None, clips: Sequence[LoadClip], start: Mapping[str, object], *, clients: int
) -> list[Heard]:
    """`clients` at once, each streaming all clips, beginning with another one."""

    async def one(number: int) -> list[Heard]:
        await asyncio.sleep(number * STAGGER_SECONDS)
        turned = [clips[(number + at) % len(clips)] for at in range(len(clips))]
        return [await stream_clip(url, token, clip, start) for clip in turned]

    return [heard for found in await asyncio.gather(*(one(number) for number in range(clients))) for heard in found]


def step_counts(metrics: str) -> dict[float, float]:
    """Steps by the upper end of their bucket in seconds, not yet cumulated away."""
    return {float(bound): float(count) for bound, count in BUCKET.findall(metrics)}


def step_quantile(before: Mapping[float, float], after: Mapping[float, float], share: float) -> float | None:
    """The bucket's end in seconds below which `share` of the steps in between lie; None without any."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in after}
    total = max(counts.values(), default=0.0)
    return min((bound for bound, count in counts.items() if count >= share * total), default=None) if total else None


def report(heard: Sequence[Heard], alone: Mapping[Path, str]) -> dict[str, object]:
    """What a run came to; `alone`: each clip's text without load, empty where it is not known."""
    delays = DelayHistogram()
    for one in heard:
        for delay_ms in one.delays_ms:
            delays.add(delay_ms)
    summary = delays.summary()
    served = [one for one in heard if one.refused is None]
    errors = sum_word_errors([count_errors(one.clip.text, one.text) for one in served])
    differing = [one.clip.path.name for one in served if alone.get(one.clip.path, one.text) != one.text]
    lost = sum(max(0, len(alone.get(one.clip.path, one.text).split()) - len(one.text.split())) for one in served)
    return {
        "streams": len(heard),
        "refused": sorted({one.refused for one in heard if one.refused is not None}),
        "words": 0 if summary is None else summary.count,
        "delay_p50_ms": None if summary is None else summary.p50_ms,
        "delay_p95_ms": None if summary is None else summary.p95_ms,
        "delay_max_ms": None if summary is None else summary.max_ms,
        "lost_words": lost,
        "texts_that_differ": differing,
        "wer": errors.rate(),
    }


def fetch_metrics(url: str, token: str | None) -> str:
    """The server's `/metrics`, empty if it keeps them to itself."""
    address = re.sub(r"^ws", "http", url).partition("/v1/")[0] + "/metrics"
    request = urllib.request.Request(address, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


def measure(
    url: str, token: str | None, clips: Sequence[LoadClip], start: Mapping[str, object], sessions: Sequence[int]
) -> list[dict[str, object]]:
    """A report for each number of sessions; texts are compared with those of the first run."""
    reports, alone = [], dict[Path, str]()
    for clients in sessions:
        before = step_counts(fetch_metrics(url, token))
        heard = asyncio.run(run_clients(url, token, clips, start, clients=clients))
        after = step_counts(fetch_metrics(url, token))
        if not alone:
            alone = {one.clip.path: one.text for one in heard if one.refused is None}
        steps = {f"step_p{percent}_s_at_most": step_quantile(before, after, percent / 100) for percent in (50, 95)}
        reports.append({"sessions": clients, **report(heard, alone), **steps})
        print(json.dumps(reports[-1]), flush=True)
    return reports


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    made = argparse.ArgumentParser(prog="python -m server.load", description=(__doc__ or "").partition("\n")[0])
    made.add_argument("--url", default="ws://127.0.0.1:8765/v1/stream")
    made.add_argument("--token")
    made.add_argument("--clips", type=Path, required=True)
    made.add_argument("--most-clips", type=int, help="only the first so many")
    made.add_argument(
        "--sessions", default="1,2,4", help="numbers of clients, one run each; the first is the reference"
    )
    made.add_argument("--delay-ms", type=int)
    made.add_argument("--chunk-ms", type=int)
    made.add_argument("--out", type=Path)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; gives its exit code."""
    flags = parser().parse_args(argv)
    try:
        clips = read_clips(flags.clips)[: flags.most_clips]
        if not all(part.isdigit() and int(part) for part in flags.sessions.split(",")):
            raise ConfigError(f"--sessions is {flags.sessions!r}; numbers from 1, with commas between, are needed")
        chosen = (("delay_ms", flags.delay_ms), ("chunk_ms", flags.chunk_ms))
        start = {name: value for name, value in chosen if value is not None}
        reports = measure(flags.url, flags.token, clips, start, [int(part) for part in flags.sessions.split(",")])
    except EarlybirdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if flags.out is not None:
        flags.out.write_text(
            json.dumps({"url": flags.url, **start, "runs": reports}, indent=1) + "\n", encoding="utf-8"
        )
    return 1 if any(one["refused"] for one in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
