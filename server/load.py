"""Load on a running server: clients that speak in real time, more and more of them, and what each waits for its words.

`python -m server.load --url ws://HOST:8765/v1/stream --clips samples/transcripts.jsonl --sessions 1 2 4 8 --out R.json`
lets N clients stream clips one after the other, each its own, and reports for each N: word delay as the client has it
(from the moment at which the end of the word was sent to the arrival of its message), the time of steps (from
`/metrics`), how lag grew within a session, refusals, words lost and texts that differ against one client alone, and the
word error rate. It stops where the machine is too slow: 95 % of steps take longer than `--longest-step-ms` (80, a step
of audio; a chunk of 320 ms has four times as long), or lag grows.
`--alignments A.jsonl` measures delays against these ends of words, of words that were recognised, rather than the
server's own. `--peer whisperlive` speaks to a server of WhisperLive instead (`server/whisperlive.py`), whose words
count from when they no longer change; it needs `--alignments`.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from asr.errors import ConfigError, EarlybirdError
from asr.metrics import count_errors, sum_word_errors
from server import whisperlive
from server.client import ConnectionLost, Message, StreamClient
from server.listen import file_pieces
from server.load_clips import ArrivedWord, Heard, LoadClip, read_clips
from streaming.emission_delay import DelayHistogram

STAGGER_SECONDS = 0.37
"""Clients begin one after the other, so that their chunks do not end at the same moments."""
BUCKET = re.compile(r'^earlybird_step_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


LONGEST_STEP_MS = 80
"""A turn of the engine takes all blocks that are due; in longer chunks it may take longer before anybody waits."""
LAG_GROWTH_MS = 500
"""A session that has fallen behind by so much more in its second half than in its first is not served in real time."""


Speak = Callable[[LoadClip], Awaitable[Heard]]
"""One client that streams one clip in real time."""


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
        heard.words += [
            ArrivedWord(text=word["text"], emitted_ms=round(1000 * since_s), end_ms=word["end_ms"])
            for word in message["words"]
        ]
    elif message["type"] == "heartbeat":
        heard.lags_ms.append(message["lag_ms"])
    elif message.get("fatal") or (message["type"] == "closed" and message["reason"] != "end"):
        heard.refused = message.get("code") or message["reason"]


async def run_clients(speak: Speak, clips: Sequence[LoadClip], *, clients: int) -> list[Heard]:
    """`clients` at once, each streaming all clips, beginning with another one."""

    async def one(number: int) -> list[Heard]:
        await asyncio.sleep(number * STAGGER_SECONDS)
        turned = [clips[(number + at) % len(clips)] for at in range(len(clips))]
        return [await speak(clip) for clip in turned]

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
    growths = [one.lag_growth_ms for one in served if one.lag_growth_ms is not None]
    lost = sum(max(0, len(alone.get(one.clip.path, one.text).split()) - len(one.text.split())) for one in served)
    return {
        "streams": len(heard),
        "refused": sorted({one.refused for one in heard if one.refused is not None}),
        "words": 0 if summary is None else summary.count,
        "delay_p50_ms": None if summary is None else summary.p50_ms,
        "delay_p90_ms": None if summary is None else summary.p90_ms,
        "delay_p95_ms": None if summary is None else summary.p95_ms,
        "delay_max_ms": None if summary is None else summary.max_ms,
        "lost_words": lost,
        "texts_that_differ": differing,
        "lag_growth_ms": round(median(growths)) if growths else None,
        "wer": errors.rate(),
        "deletion_rate": errors.deletions / errors.reference_length if errors.reference_length else None,
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


def too_slow(entry: Mapping[str, Any], longest_step_ms: int = LONGEST_STEP_MS) -> bool:
    """Whether a report shows a machine that does not keep up: steps that are too long, or lag that grows."""
    step, growth = entry["step_p95_s_at_most"], entry["lag_growth_ms"]
    return (step is not None and 1000 * step > longest_step_ms) or (growth is not None and growth > LAG_GROWTH_MS)


def measure(
    speak: Speak,
    metrics: Callable[[], str],
    clips: Sequence[LoadClip],
    sessions: Sequence[int],
    longest_step_ms: int = LONGEST_STEP_MS,
) -> list[dict[str, object]]:
    """A report for each number of sessions, until one is `too_slow`; texts are compared with those of the first run."""
    reports, alone = [], dict[Path, str]()
    for clients in sessions:
        before = step_counts(metrics())
        heard = asyncio.run(run_clients(speak, clips, clients=clients))
        after = step_counts(metrics())
        if not alone:
            alone = {one.clip.path: one.text for one in heard if one.refused is None}
        steps = {f"step_p{percent}_s_at_most": step_quantile(before, after, percent / 100) for percent in (50, 95)}
        reports.append({"sessions": clients, **report(heard, alone), **steps})
        print(json.dumps(reports[-1]), file=sys.stderr, flush=True)
        if too_slow(reports[-1], longest_step_ms):
            break
    return reports


COLUMNS = {
    "sessions": "sessions", "words": "words", "p50": "delay_p50_ms", "p90": "delay_p90_ms", "p95": "delay_p95_ms",
    "step95": "step_p95_s_at_most", "lag+": "lag_growth_ms", "lost": "lost_words", "del": "deletion_rate", "WER": "wer",
}  # fmt: skip


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """The reports for people: delays and lag in ms, steps in seconds, rates as shares."""

    def shown(value: object) -> str:
        return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)

    rows = [list(COLUMNS), *([shown(one[name]) for name in COLUMNS.values()] for one in reports)]
    heads = ["differ", *(str(len(one["texts_that_differ"])) for one in reports)]
    return "\n".join(" ".join(f"{cell:>8}" for cell in [*row, head]) for row, head in zip(rows, heads, strict=True))


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    made = argparse.ArgumentParser(prog="python -m server.load", description=(__doc__ or "").partition("\n")[0])
    made.add_argument("--url", default="ws://127.0.0.1:8765/v1/stream")
    made.add_argument("--peer", choices=["whisperlive"], help="the server is one of these")
    made.add_argument("--token")
    made.add_argument("--clips", type=Path, required=True)
    made.add_argument("--alignments", type=Path, help="when the words of the clips end")
    made.add_argument("--most-clips", type=int, help="only the first so many")
    made.add_argument(
        "--sessions", type=int, nargs="+", default=[1, 2, 4], help="clients, one run each; the first is the reference"
    )
    made.add_argument("--delay-ms", type=int)
    made.add_argument("--chunk-ms", type=int)
    made.add_argument(
        "--longest-step-ms", type=int, default=LONGEST_STEP_MS, help="stop where 95 %% of steps take longer than this"
    )
    made.add_argument("--out", type=Path)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; gives its exit code."""
    flags = parser().parse_args(argv)
    try:
        clips = read_clips(flags.clips, flags.alignments)[: flags.most_clips]
        if min(flags.sessions) < 1:
            raise ConfigError(f"--sessions is {flags.sessions}; numbers from 1 are needed")
        chosen = (("delay_ms", flags.delay_ms), ("chunk_ms", flags.chunk_ms))
        start = {name: value for name, value in chosen if value is not None}
        if flags.peer and (flags.alignments is None or start or flags.token):
            raise ConfigError("--peer needs --alignments and knows no --delay-ms, --chunk-ms or --token")

        def speak(clip: LoadClip) -> Awaitable[Heard]:
            if flags.peer:
                return whisperlive.stream_clip(flags.url, clip)
            return stream_clip(flags.url, flags.token, clip, start)

        def metrics() -> str:
            return "" if flags.peer else fetch_metrics(flags.url, flags.token)

        reports = measure(speak, metrics, clips, flags.sessions, flags.longest_step_ms)
    except EarlybirdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(reports))
    if flags.out is not None:
        told = {"url": flags.url, "peer": flags.peer, **start, "runs": reports}
        flags.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 1 if any(one["refused"] for one in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
