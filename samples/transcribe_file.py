"""Transcribe a recording: `python samples/transcribe_file.py speech.flac [MODEL]`.

Any container and rate will do. The text is what a live session with the same settings would have written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import asr


def main(argv: Sequence[str] | None = None) -> int:
    """Print each word with its times, then the text; exit code 0, or 2 if it cannot be done."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not 1 <= len(arguments) <= 2:
        print("usage: transcribe_file.py AUDIO [MODEL]", file=sys.stderr)
        return 2
    try:
        model = asr.load(*arguments[1:])
        transcript = asr.transcribe(model, arguments[0], delay_ms=480, chunk_ms=320)
    except asr.EarlybirdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for word in transcript.words:
        print(f"{word.start_ms:6} .. {word.end_ms:6} ms, committed {word.delay_ms:4} ms later: {word.text}")
    print(transcript.text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
