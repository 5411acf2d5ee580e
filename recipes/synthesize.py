"""Sentences spoken by synthetic voices: clips for words that no recording at hand has.

    python -m recipes.synthesize --text TEXT.gz --voice piper:VOICE.onnx --voice flite:slt --hours 2 --out DIR

Sentences of the texts are drawn by a seed; each is spoken by the next voice, at a pace drawn per clip, and written to
DIR/audio as 16 kHz FLAC. `piper:FILE` is a voice of the Piper project, `flite:NAME` one of Debian's flite; they have to
be installed (`pip install piper-tts`, `apt install flite`). `DIR/train.jsonl` names the clips; their source is
`synthetic`, so that a recipe can weigh them. Again on the same DIR it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from asr.audio import read_audio
from asr.errors import ConfigError, EarlybirdError
from asr.resample import Resampler, Samples
from asr.units import SAMPLE_RATE
from lm_fusion.build import read_lines

__all__ = ["Voice", "open_voice", "sentences", "synthesize"]

LEAST_WORDS, MOST_WORDS = 4, 24
PACES = (0.8, 1.25)
"""The bounds of a clip's pace; 1 is the voice's own."""


Speak = Callable[[str, float], Samples]
"""Speaks a sentence at a pace (above 1: faster) as 16 kHz mono samples."""


@dataclass(frozen=True)
class Voice:
    """What manifests call the speaker, and how it speaks."""

    name: str
    speak: Speak


def open_voice(text: str) -> Voice:
    """The voice that `engine:speaker` means.

    Raises:
        ConfigError: if it means none, or its engine is not installed.

    >>> open_voice("hal:9000")
    Traceback (most recent call last):
    ...
    asr.errors.ConfigError: a voice is piper:FILE.onnx or flite:NAME; got 'hal:9000'
    """
    engine, _, speaker = text.partition(":")
    if engine not in ENGINES or not speaker:
        raise ConfigError(f"a voice is piper:FILE.onnx or flite:NAME; got {text!r}")
    return Voice(f"{engine}-{Path(speaker).stem}", ENGINES[engine](speaker))


def _piper(speaker: str) -> Speak:
    try:
        from piper import PiperVoice, SynthesisConfig
    except ImportError as error:
        raise ConfigError(f"piper:{speaker} needs Piper: pip install piper-tts") from error
    if not Path(speaker).is_file():
        raise ConfigError(f"{speaker} is no file; a Piper voice is an .onnx file with its .onnx.json beside it")
    voice = PiperVoice.load(speaker)

    def speak(text: str, pace: float) -> Samples:
        chunks = list(voice.synthesize(text, SynthesisConfig(length_scale=1 / pace)))
        if not chunks:
            raise EarlybirdError(f"the Piper voice {speaker} said nothing to {text!r}")
        sound = np.concatenate([chunk.audio_float_array for chunk in chunks])
        resampler = Resampler(chunks[0].sample_rate)
        return np.concatenate([resampler.step(sound), resampler.finish()])

    return speak


def _flite(speaker: str) -> Speak:
    if shutil.which("flite") is None:
        raise ConfigError(f"flite:{speaker} needs the command flite: apt install flite")

    def speak(text: str, pace: float) -> Samples:
        with tempfile.TemporaryDirectory() as folder:
            written, wav = Path(folder) / "text", Path(folder) / "speech.wav"
            written.write_text(text + "\n", encoding="utf-8")
            command = ["flite", "-voice", speaker, "--setf", f"duration_stretch={1 / pace:.3f}"]
            run = subprocess.run(
                [*command, "-f", str(written), "-o", str(wav)], capture_output=True, text=True, check=False
            )
            if run.returncode or not wav.exists():
                raise EarlybirdError(f"flite:{speaker} did not speak {text!r}: {run.stderr.strip()[-300:]}")
            return read_audio(wav)

    return speak


ENGINES: dict[str, Callable[[str], Speak]] = {"piper": _piper, "flite": _flite}


def sentences(texts: Sequence[Path], *, seed: int) -> Iterator[str]:
    """Lines of 4 to 24 words in a random order; such as are in capitals alone are left out, for nobody writes so."""
    lines = [line for path in texts for line in read_lines(path)]
    random.Random(seed).shuffle(lines)
    for line in lines:
        if LEAST_WORDS <= len(line.split()) <= MOST_WORDS and not line.isupper():
            yield line


def synthesize(
    lines: Iterator[str],
    voices: Sequence[Voice],
    out: Path,
    *,
    hours: float,
    seed: int,
    log: Callable[[str], None] = print,
) -> Path:
    """Writes clips until there are so many hours of them.

    Args:
        lines: what is spoken, each once.
        voices: take turns.
        out: the folder; clips that are there are kept.
        seed: of the paces.
    Returns:
        the manifest.
    Raises:
        ConfigError: if there is no voice, the hours are not above 0, or the lines end too early.
    """
    if not voices or hours <= 0:
        raise ConfigError(f"a voice and hours above 0 are needed; got {len(voices)} voices and {hours} hours")
    manifest = out / "train.jsonl"
    (out / "audio").mkdir(parents=True, exist_ok=True)
    done = manifest.read_text(encoding="utf-8").splitlines() if manifest.exists() else []
    seconds = sum(float(json.loads(line)["duration"]) for line in done)
    with manifest.open("a", encoding="utf-8") as file:
        for at, text in enumerate(lines):
            if seconds >= 3600 * hours:
                break
            if at < len(done):
                continue
            voice, pace = voices[at % len(voices)], random.Random(f"{seed} {at}").uniform(*PACES)
            samples = voice.speak(text, pace)
            name = f"audio/{at:06d}.flac"
            soundfile.write(out / name, samples, SAMPLE_RATE)
            entry = {
                "audio": name,
                "duration": round(len(samples) / SAMPLE_RATE, 3),
                "text": text,
                "speaker": voice.name,
                "source": "synthetic",
                "licence": "the text's and the voice's",
            }
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            file.flush()
            seconds += len(samples) / SAMPLE_RATE
            if at % 100 == 99:
                log(f"{at + 1} clips, {seconds / 3600:.2f} h")
        else:
            raise ConfigError(f"the texts end after {seconds / 3600:.2f} hours of speech; {hours} were asked for")
    return manifest


def build_parser() -> argparse.ArgumentParser:
    """The command line of `python -m recipes.synthesize`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="a sentence a line, .gz too")
    parser.add_argument(
        "--voice", action="append", required=True, help="piper:FILE.onnx or flite:NAME; several take turns"
    )
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's text."""
    args = build_parser().parse_args(argv)
    try:
        voices = [open_voice(voice) for voice in args.voice]
        lines = sentences(args.text, seed=args.seed)
        print(synthesize(lines, voices, args.out, hours=args.hours, seed=args.seed))
    except (EarlybirdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
