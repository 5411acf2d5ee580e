"""faster-whisper on the clips and by the measures of `recipes.evaluate`: whole clips, and streamed by LocalAgreement-2.

`python -m recipes.peers --ctranslate2 FOLDER … --manifest DEV.jsonl --alignments DEV-ALIGNED.jsonl --beam 1 5
--chunk-ms 500 1000 --out R.jsonl` prints a table and, with `--out`, appends a JSON line a setting and clock.
Clocks: `audio`, on which computing takes no time (a word is emitted with the audio that had arrived when its look
began), and `wall`, a simulated one on which a look begins when the one before it is done. A look that both need is
computed once. CTranslate2 is given one thread, and seconds are those of the processor: other work on the machine does
not count, and the real-time factor is that of one core.
Exit code: 0; 2 if a setting or a file is wrong, or faster-whisper is not installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asr.errors import ConfigError, EarlybirdError
from asr.resample import Samples
from asr.words import Transcript, Word
from recipes.align import AlignedClip, read_alignments
from recipes.data import Clip, load_audio
from recipes.evaluate import audio_seconds, chosen_clips, scores
from recipes.local_agreement import Hypothesis, Look, TimedWord, audio_clock, wall_clock

__all__ = ["FasterWhisper", "Heard", "remembered", "row", "table", "transcribe_offline", "transcribe_streamed"]

NO_SPEECH = 0.9
"""A segment less likely to be speech than 1 - 0.9 is left out, as whisper_streaming does."""
Entry = dict[str, Any]


class FasterWhisper:
    """A CTranslate2 Whisper on one core, temperature fallback and all other settings as faster-whisper has them.

    Args:
        folder: the converted model.
        beam: width of the search.
        compute_type: "int8", "float32", …

    Raises:
        ConfigError: if faster-whisper is not installed, or cannot load the folder so.
    """

    def __init__(self, folder: Path, *, beam: int, compute_type: str) -> None:
        try:
            from ctranslate2 import set_random_seed
            from faster_whisper import WhisperModel
        except ImportError as error:
            raise ConfigError(
                f"the peer needs faster-whisper: pip install 'earlybird-asr[compare]' ({error})"
            ) from error
        if not (folder / "model.bin").is_file():  # any other name would be looked for on a model hub
            raise ConfigError(f"{folder} has no model.bin; the folder of a Whisper converted to CTranslate2 is needed")
        try:
            self._model = WhisperModel(str(folder), device="cpu", compute_type=compute_type, cpu_threads=1)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"{folder} cannot be loaded as {compute_type}: {error}") from error
        set_random_seed(1)  # what fails at temperature 0 is drawn at higher ones
        self._beam = beam

    def look(self, samples: Samples, prompt: str) -> tuple[Hypothesis, float]:
        """Words with times of [N] samples at 16 kHz, and how many seconds it took."""
        begin = time.process_time()
        # An empty prompt is a prompt to faster-whisper, a space, and makes it write less.
        segments = self._segments(samples, initial_prompt=prompt or None, word_timestamps=True)
        seconds = time.process_time() - begin
        words = tuple(
            TimedWord(
                text=word.word,
                start_ms=round(1000 * word.start),
                end_ms=round(1000 * word.end),
                confidence=word.probability,
            )
            for segment in segments
            if segment.no_speech_prob <= NO_SPEECH
            for word in segment.words
        )
        return Hypothesis(words=words, segment_ends_ms=tuple(round(1000 * one.end) for one in segments)), seconds

    def text(self, samples: Samples) -> tuple[str, float]:
        """The text of [N] samples at 16 kHz heard as a whole, and how many seconds it took."""
        begin = time.process_time()
        segments = self._segments(samples)
        return " ".join(segment.text.strip() for segment in segments), time.process_time() - begin

    def _segments(self, samples: Samples, **options: object) -> list[Any]:
        segments, _ = self._model.transcribe(samples, language="en", beam_size=self._beam, **options)
        return list(segments)


def remembered(look: Look) -> Look:
    """The same, but what it was asked before it answers from memory, with the seconds that it took then."""
    answers: dict[tuple[str, bytes], tuple[Hypothesis, float]] = {}

    def answer(samples: Samples, prompt: str) -> tuple[Hypothesis, float]:
        key = prompt, hashlib.blake2b(samples.tobytes()).digest()
        if key not in answers:
            answers[key] = look(samples, prompt)
        return answers[key]

    return answer


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What one system made of all clips on one clock.

    Attributes:
        clock: "audio" or "wall".
        transcripts: by audio name.
        seconds: of computing.
    """

    clock: str
    transcripts: dict[str, Transcript]
    seconds: float


def transcribe_offline(clips: Sequence[Clip], text: Callable[[Samples], tuple[str, float]]) -> tuple[Heard, Heard]:
    """Every clip heard as a whole, on the audio and on the wall clock: no word is there before its clip has ended.

    Args:
        clips: 16 kHz files.
        text: gives the text of samples and the seconds that it took. When a word was spoken is not asked for, so that
            a word of the transcripts lies anywhere in its clip.
    """
    audio, wall, total = dict[str, Transcript](), dict[str, Transcript](), 0.0
    for clip in clips:
        samples = load_audio(clip.path).numpy()
        written, seconds = text(samples)
        total += seconds
        end_ms = max(1, clip.duration_ms)
        words = [
            Word(text=word, start_ms=0, end_ms=end_ms, emitted_ms=end_ms, confidence=1.0) for word in written.split()
        ]
        later = [replace(word, emitted_ms=end_ms + round(1000 * seconds)) for word in words]
        audio[clip.audio] = Transcript(words=tuple(words), audio_samples=len(samples))
        wall[clip.audio] = Transcript(words=tuple(later), audio_samples=len(samples))
    return (
        Heard(clock="audio", transcripts=audio, seconds=total),
        Heard(clock="wall", transcripts=wall, seconds=total),
    )


def transcribe_streamed(clips: Sequence[Clip], look: Look, *, chunk_ms: int) -> tuple[Heard, Heard]:
    """Every clip streamed by LocalAgreement-2, on the audio and on the wall clock.

    Args:
        clips: 16 kHz files.
        look: what hears the audio since the last cut.
        chunk_ms: the least new audio between two looks.
    """
    audio, wall = dict[str, Transcript](), dict[str, Transcript]()
    audio_total = wall_total = 0.0
    for number, clip in enumerate(clips, start=1):
        samples = load_audio(clip.path).numpy()
        known = remembered(look)
        free, timed = audio_clock(samples, known, chunk_ms=chunk_ms), wall_clock(samples, known, chunk_ms=chunk_ms)
        audio_total, wall_total = audio_total + free.seconds, wall_total + timed.seconds
        audio[clip.audio] = Transcript(words=free.words, audio_samples=len(samples))
        wall[clip.audio] = Transcript(words=timed.words, audio_samples=len(samples))
        if not number % 20:
            print(f"{number} of {len(clips)} clips", file=sys.stderr, flush=True)
    return (
        Heard(clock="audio", transcripts=audio, seconds=audio_total),
        Heard(clock="wall", transcripts=wall, seconds=wall_total),
    )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Attributes: folder, beam: the model and its search. chunk_ms: of the stream; None: clips as a whole."""

    folder: Path
    beam: int
    chunk_ms: int | None

    def head(self, compute_type: str) -> Entry:
        """How an entry names it."""
        return {
            "model": self.folder.name,
            "compute_type": compute_type,
            "beam": self.beam,
            "chunk_ms": self.chunk_ms,
        }


def settings(folders: Sequence[Path], beams: Sequence[int], chunks_ms: Sequence[int]) -> Iterator[Setting]:
    """Whole clips first, then the streams."""
    for chunk_ms in (None, *chunks_ms):
        for folder in folders:
            for beam in beams:
                yield Setting(folder=folder, beam=beam, chunk_ms=chunk_ms)


def entries(
    setting: Setting, clips: Sequence[Clip], aligned: dict[str, AlignedClip], *, compute_type: str
) -> list[Entry]:
    """One setting on its clocks.

    Raises:
        ConfigError: if the model cannot be had.
    """
    whisper = FasterWhisper(setting.folder, beam=setting.beam, compute_type=compute_type)
    whisper.look(load_audio(clips[0].path).numpy(), "")  # the first call is slower than all others
    if setting.chunk_ms is None:
        both = transcribe_offline(clips, whisper.text)
    else:
        both = transcribe_streamed(clips, whisper.look, chunk_ms=setting.chunk_ms)
    return [
        {
            **setting.head(compute_type),
            "clock": heard.clock,
            **scores(clips, heard.transcripts, aligned),
            "seconds": round(heard.seconds, 1),
            "real_time_factor": round(heard.seconds / audio_seconds(clips), 3),
        }
        for heard in both
    ]


def row(entry: Entry) -> str:
    """An entry as a line of the table."""
    how = "whole clips" if entry["chunk_ms"] is None else f"agreement {entry['chunk_ms']} ms"
    rates = []
    for name, interval in (("wer", "interval"), ("cer", "cer_interval")):
        low, high = entry[interval] or (float("nan"), float("nan"))
        rates.append(f"{entry[name]:>6.2f} {f'{low:.1f}-{high:.1f}':>11}")
    delays = [entry["delay"][f"{name}_ms"] for name in ("p50", "p90")]
    shown = " ".join(f"{'-' if delay is None else delay:>6}" for delay in delays)
    return (
        f"{entry['model']:<16} {entry['beam']:>4} {how:<17} {entry['clock']:<5} {' '.join(rates)} {shown} "
        f"{entry['real_time_factor']:>6.3f}"
    )


def table(found: Sequence[Entry]) -> str:
    """All entries for people: error rates in per cent with 95 % intervals, word delays in ms."""
    head = (
        f"{'model':<16} {'beam':>4} {'how':<17} {'clock':<5} {'WER':>6} {'95 %':>11} {'CER':>6} {'95 %':>11} "
        f"{'p50':>6} {'p90':>6} {'RTF':>6}"
    )
    return "\n".join([head, *map(row, found)])


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.peers`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ctranslate2", type=Path, nargs="+", required=True, help="folders of converted Whispers")
    parser.add_argument("--compute-type", default="int8")
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--chunk-ms", type=int, nargs="*", default=[500, 1000], help="none: whole clips only")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--alignments", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--subset", action="append", default=[])
    parser.add_argument("--out", type=Path, help="JSON lines are appended; settings there are skipped")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    args = build_parser().parse_args(argv)
    try:
        clips = chosen_clips(args.manifest, every=args.every, subsets=args.subset)
        if not clips:
            raise ConfigError(f"{args.manifest} has no clip of the subsets asked for")
        aligned = dict(read_alignments(args.alignments))
        found: list[Entry] = []
        if args.out is not None and args.out.exists():
            found = [json.loads(line) for line in args.out.read_text(encoding="utf-8").splitlines()]
        for setting in settings(args.ctranslate2, args.beam, args.chunk_ms):
            head = setting.head(args.compute_type)
            if any(head.items() <= entry.items() for entry in found):
                continue
            new = entries(setting, clips, aligned, compute_type=args.compute_type)
            found += new
            if args.out is not None:
                with args.out.open("a", encoding="utf-8") as out:
                    out.write("".join(json.dumps(entry) + "\n" for entry in new))
    except (EarlybirdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
