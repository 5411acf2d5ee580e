"""A live session: audio in pieces of 100 ms goes in, words come out as they are committed.

`python samples/live_session.py speech.flac [MODEL]` plays a file instead of a microphone; `Session` does no I/O, so the
same loop serves a socket or a sound card.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import asr
from asr.audio import open_audio
from streaming.events import Segment, Words
from streaming.session import Session

PIECE_SAMPLES = 1_600


def main(argv: Sequence[str] | None = None) -> int:
    """Print committed text as it comes and each segment with its times; exit code 0, or 2 if it cannot be done."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not 1 <= len(arguments) <= 2:
        print("usage: live_session.py AUDIO [MODEL]", file=sys.stderr)
        return 2
    try:
        session = Session(asr.load(*arguments[1:]), delay_ms=480, chunk_ms=320)
        with open_audio(arguments[0]) as source:
            for piece in source.blocks(PIECE_SAMPLES):
                session.feed_audio(piece, now_ms=time.monotonic_ns() // 1_000_000)
                show(session)
        session.close()
        show(session)
    except asr.EarlybirdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    delays = session.delays.audio()
    if delays is not None:
        print(f"{delays.count} words, half of them committed within {delays.p50_ms} ms of being spoken")
    return 0


def show(session: Session) -> None:
    """Print what happened. Text is append-only: nothing that was printed is ever taken back."""
    for event in session.events():
        if isinstance(event, Words):
            print(event.text, end="", flush=True)
        elif isinstance(event, Segment):
            print(f"\n[{event.start_ms / 1000:.2f} .. {event.end_ms / 1000:.2f} s, {event.reason}]")


if __name__ == "__main__":
    sys.exit(main())
