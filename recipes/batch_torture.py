"""A folder as bad as folders get, and a batch that is killed again and again: is every file accounted for?

`python -m recipes.batch_torture --clips ../shared/data/dev --work /tmp/torture --model earlybird-en`
makes 1,000 files in eight formats and rates, with names that are hard, 30 of them broken in different ways, and
transcribes them three ways: undisturbed; killed (SIGKILL) at 20 random moments and started again each time; and a few
of them alone. Prints a report as JSON. Exit code: 0 if the trees are equal byte for byte, every file is accounted for
and the texts equal those of the files alone; 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr

from asr.audio import display_path, read_audio
from asr.errors import ConfigError
from asr.resample import Samples
from asr.units import SAMPLE_RATE

__all__ = ["FORMATS", "KilledRun", "compare_trees", "main", "make_folder", "run_killed"]

COMMAND = [sys.executable, "-c", "import sys; from server.cli import main; sys.exit(main())", "transcribe"]
JOURNAL = "run.jsonl"


@dataclass(frozen=True, kw_only=True)
class Format:
    """How a file is written. Attributes: rate: Hz."""

    suffix: str
    container: str
    subtype: str
    rate: int
    channels: int = 1


FORMATS = (
    Format(suffix=".wav", container="WAV", subtype="PCM_16", rate=16_000),
    Format(suffix=".wav", container="WAV", subtype="ULAW", rate=8_000),
    Format(suffix=".wav", container="WAV", subtype="FLOAT", rate=44_100, channels=2),
    Format(suffix=".flac", container="FLAC", subtype="PCM_24", rate=22_050),
    Format(suffix=".mp3", container="MP3", subtype="MPEG_LAYER_III", rate=44_100),
    Format(suffix=".ogg", container="OGG", subtype="VORBIS", rate=32_000),
    Format(suffix=".opus", container="OGG", subtype="OPUS", rate=48_000),
    Format(suffix=".aiff", container="AIFF", subtype="PCM_16", rate=11_025),
)
HARD_NAMES = (
    "two  spaces",
    'it\'s "quoted"',
    "éàü ñ 日本",
    "e\u0301 decomposed",
    "new\nline",
    "-dash",
    "x" * 200,
    "é" * 100,
    "a.b.c",
    "50% $HOME `ls`",
)


def write_audio(path: Path, samples: Samples, format: Format) -> None:
    """Mono samples [N] at 16 kHz as a file of a format."""
    resampled = soxr.resample(samples, SAMPLE_RATE, format.rate)
    frames = np.repeat(resampled[:, None], format.channels, axis=1)
    with path.open("wb") as file:
        soundfile.write(file, np.clip(frames, -1, 1), format.rate, format=format.container, subtype=format.subtype)


def _empty(path: Path, samples: Samples) -> None:
    path.touch()


def _header_only(path: Path, samples: Samples) -> None:
    soundfile.write(path, np.zeros(0), SAMPLE_RATE)


def _header_promises(path: Path, samples: Samples) -> None:
    write_audio(path, samples, FORMATS[0])
    path.write_bytes(path.read_bytes()[:44])


def _cut(path: Path, samples: Samples) -> None:
    write_audio(path, samples, FORMATS[0])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _cut_flac(path: Path, samples: Samples) -> None:
    write_audio(path.with_suffix(".flac"), samples, FORMATS[3])
    data = path.with_suffix(".flac").read_bytes()
    path.with_suffix(".flac").write_bytes(data[: len(data) // 2])


def _text(path: Path, samples: Samples) -> None:
    path.write_text("This is no audio at all.\n" * 40)


def _noise_bytes(path: Path, samples: Samples) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(5_000))


def _nan(path: Path, samples: Samples) -> None:
    broken = samples.copy()
    broken[len(broken) // 2] = np.nan
    soundfile.write(path, broken, SAMPLE_RATE, subtype="FLOAT")


def _dangling(path: Path, samples: Samples) -> None:
    path.symlink_to("gone/for ever.wav")


def _folder(path: Path, samples: Samples) -> None:
    path.mkdir()


BROKEN: tuple[Callable[[Path, Samples], None], ...] = (
    _empty, _header_only, _header_promises, _cut, _cut_flac, _text, _noise_bytes, _nan, _dangling, _folder
)  # fmt: skip
"""Ways to be broken. A cut file still has a text, and a warning."""


def make_folder(
    folder: Path, clips: Sequence[Path], *, files: int, broken: int, seconds: float | None = None, seed: int = 0
) -> list[Path]:
    """A tree of files of all formats, with hard names here and there.

    Args:
        folder: made; must not be there.
        clips: recordings to make them of, used in turn.
        files: how many, broken ones included. broken: of these, in the ways of `BROKEN` in turn.
        seconds: how much of each clip is taken; None: all.

    Returns:
        All of them.
    Raises:
        ConfigError: if there is no clip, or more are to be broken than there are.
    """
    if not clips or broken > files:
        raise ConfigError(f"need clips and at least as many files as broken ones; got {len(clips)}, {files}, {broken}")
    chance = random.Random(seed)
    bad = set(chance.sample(range(files), broken))
    made: list[Path] = []
    for number in range(files):
        samples = read_audio(clips[number % len(clips)])[: None if seconds is None else round(seconds * SAMPLE_RATE)]
        parent = folder / f"part {number % 7}" / "deep" if number % 3 == 0 else folder / f"part {number % 7}"
        parent.mkdir(parents=True, exist_ok=True)
        hard = HARD_NAMES[number // 9 % len(HARD_NAMES)] if number % 9 == 0 else "clip"
        name = f"{hard} {number}"
        if number in bad:
            way = BROKEN[len([one for one in bad if one < number]) % len(BROKEN)]
            path = parent / f"{name}.wav"
            way(path, samples)
            made.append(path.with_suffix(".flac") if way is _cut_flac else path)
        else:
            format = FORMATS[number % len(FORMATS)]
            made.append(parent / f"{name}{format.suffix}")
            write_audio(made[-1], samples, format)
    return made


@dataclass(frozen=True, kw_only=True)
class KilledRun:
    """Attributes: kills: how many hit. lines: of the journal after each run. code: of the last, which was let end."""

    kills: int
    lines: tuple[int, ...]
    code: int


def run_killed(
    arguments: Sequence[str], out: Path, *, kills: int, longest: float, shortest: float = 0.0, seed: int = 0
) -> KilledRun:
    """Runs a batch, kills it at random moments, lets the last run end.

    Every second time only the first process is killed and its workers have to see for themselves.

    Args:
        arguments: of `earlybird transcribe`, --out left out.
        out: the folder for its results.
        kills: how often. shortest, longest: seconds after which it is killed, drawn evenly.
    """
    chance = random.Random(seed)
    hits, lines = 0, []
    for number in range(kills):
        process = _start(arguments, out)
        try:
            process.wait(chance.uniform(shortest, longest))
        except subprocess.TimeoutExpired:
            hits += 1
            if number % 2:
                process.kill()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines.append(_lines(out / JOURNAL))
    return KilledRun(kills=hits, lines=tuple(lines), code=_start(arguments, out).wait())


def timed_run(arguments: Sequence[str], out: Path) -> tuple[int, float, float]:
    """A run that nobody disturbs: its exit code, the seconds to its first result, and all of them."""
    begin = time.monotonic()
    process = _start(arguments, out)
    first: float | None = None
    while process.poll() is None:
        time.sleep(0.1)
        if first is None and _lines(out / JOURNAL) > 1:
            first = time.monotonic() - begin
    seconds = time.monotonic() - begin
    return process.returncode, seconds if first is None else first, seconds


def _lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def _start(arguments: Sequence[str], out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *arguments, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def compare_trees(one: Path, other: Path) -> list[str]:
    """What differs between two output trees, their journals left out: a line a file."""

    def content(folder: Path) -> dict[str, bytes]:
        paths = (path for path in folder.rglob("*") if path.is_file() and path.name != JOURNAL)
        return {os.fsdecode(os.fsencode(path.relative_to(folder))): path.read_bytes() for path in paths}

    first, second = content(one), content(other)
    found = [f"only in {one}: {display_path(name)}" for name in sorted(first.keys() - second.keys())]
    found += [f"only in {other}: {display_path(name)}" for name in sorted(second.keys() - first.keys())]
    return found + [f"differs: {display_path(name)}" for name in sorted(first) if first[name] != second.get(name, b"")
                    and name in second]  # fmt: skip


def accounted(journal: Path, files: Sequence[Path]) -> tuple[dict[str, int], list[str]]:
    """How many ended how, by the newest line of each; and the files that have no line."""
    newest: dict[str, str] = {}
    for line in journal.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "file" in entry:
            newest[entry["file"]] = entry["status"] if entry["error"] is None else entry["error"].partition(":")[0]
    counts: dict[str, int] = {}
    for status in newest.values():
        counts[status] = counts.get(status, 0) + 1
    return counts, [display_path(path) for path in files if display_path(path) not in newest]


def texts_alone(model_name: str, files: Sequence[Path], folder: Path, out: Path, options: dict[str, int]) -> list[str]:
    """Those of `files` whose text in the tree is not that of the file transcribed alone."""
    import asr

    model = asr.load(model_name)
    different = []
    for path in files:
        name = path.relative_to(folder)
        written = [stem for stem in (out / name.with_suffix(".txt"), out / f"{name}.txt") if stem.exists()]
        alone = asr.transcribe(model, path, **options).text  # type: ignore[arg-type] # delay and chunk
        if not written or written[0].read_text(encoding="utf-8").rstrip("\n") != alone:
            different.append(display_path(path))
    return different


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=Path, required=True, help="folder of recordings")
    parser.add_argument("--work", type=Path, required=True, help="folder for all that is made; must not be there")
    parser.add_argument("--model", default="earlybird-en")
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seconds", type=float, help="how much of each clip is taken; all without it")
    parser.add_argument("--broken", type=int, default=30)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--alone", type=int, default=20, help="files to transcribe alone as well")
    parser.add_argument("--delay-ms", type=int, default=480)
    parser.add_argument("--chunk-ms", type=int, default=320)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.work.exists():
        print(f"error: {options.work} is there already", file=sys.stderr)
        return 2
    clips = sorted(
        path for path in options.clips.rglob("*") if path.suffix in (".wav", ".flac", ".opus", ".ogg", ".mp3")
    )
    folder = options.work / "in"
    made = make_folder(
        folder, clips, files=options.files, broken=options.broken, seconds=options.seconds, seed=options.seed
    )
    times = {"delay_ms": options.delay_ms, "chunk_ms": options.chunk_ms}
    arguments = [str(folder), "--model", options.model, "--format", "txt,json,srt,vtt,ctm"]
    arguments += ["--delay-ms", str(options.delay_ms), "--chunk-ms", str(options.chunk_ms)]
    code, first, seconds = timed_run(arguments, options.work / "whole")
    counts, missing = accounted(options.work / "whole" / JOURNAL, made)
    killed = run_killed(
        arguments,
        options.work / "killed",
        kills=options.kills,
        shortest=first / 2,
        longest=first + (seconds - first) / max(1, options.kills),
        seed=options.seed,
    )
    differences = compare_trees(options.work / "whole", options.work / "killed")
    whole = options.work / "whole"
    good = [path for path in made if (whole / path.relative_to(folder).with_suffix(".json")).exists()]
    sample = random.Random(options.seed).sample(good, min(options.alone, len(good)))
    different = texts_alone(options.model, sample, folder, options.work / "whole", times)
    report = {
        "files": len(made),
        "ended": counts,
        "not_accounted_for": missing,
        "seconds_undisturbed": round(seconds, 1),
        "seconds_to_the_first_result": round(first, 1),
        "exit_codes": [code, killed.code],
        "kills": killed.kills,
        "journal_lines_after_each_kill": killed.lines,
        "differences": differences,
        "texts_compared_with_alone": len(sample),
        "texts_different_from_alone": different,
    }
    print(json.dumps(report, indent=1, ensure_ascii=False))
    return 1 if missing or differences or different else 0


if __name__ == "__main__":
    sys.exit(main())
