"""A folder of recordings through `earlybird transcribe` and through faster-whisper, side by side in one run.

`python -m recipes.batch_benchmark --manifest ../shared/data/dev.jsonl --ctranslate2 WHISPER_TINY_EN --clips 400
--cpus 2 --out R.json`
Systems: earlybird; faster-whisper (int8) file by file, and with its batched pipeline. Each runs in processes of its own
on the same cores, in turn, three times over; medians count. Reported for each: audio seconds per second of the clock
and per CPU second, peak memory of all its processes together, word error rate; and how many times as fast as the others
earlybird is. CPU seconds and memory are sampled from outside, ten times a second; the model's loading is part of both.
`--profile` says where earlybird's own time goes.
Exit code: 0; 2 if a setting or a file is wrong.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asr.errors import ConfigError, EarlybirdError
from asr.metrics import WordErrors, count_errors, sum_word_errors
from recipes.data import Clip, normalize_english, read_manifest

__all__ = ["Usage", "entry", "evenly", "link_clips", "main", "measured", "profile_earlybird", "word_errors"]

EARLYBIRD = [sys.executable, "-c", "import sys; from server.cli import main; sys.exit(main())", "transcribe"]
PEERS = ("sequential", "batched")
SAMPLE_SECONDS = 0.1
REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a run took. Attributes: seconds: of the clock. cpu_seconds, peak_bytes: of all its processes together."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    code: int


def measured(command: Sequence[str], *, cpus: int, log: Path) -> Usage:
    """Runs a command on the first `cpus` cores that this process may use and watches it and all that it starts.

    Raises:
        ConfigError: if psutil is not installed, or there are fewer cores.
    """
    try:
        import psutil
    except ImportError as error:
        raise ConfigError("the benchmark needs psutil: pip install 'earlybird-asr[compare]'") from error
    cores = sorted(os.sched_getaffinity(0))
    if cpus > len(cores):
        raise ConfigError(f"cpus is {cpus}; this process may use {len(cores)}")
    begin = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    os.sched_setaffinity(process.pid, cores[:cpus])
    root = psutil.Process(process.pid)
    used: dict[int, float] = {}
    peak = 0
    seen: dict[int, psutil.Process] = {}  # a process whose parent has ended is no child any more
    while process.poll() is None:
        try:
            seen |= {one.pid: one for one in [root, *root.children(recursive=True)]}
        except psutil.NoSuchProcess:
            continue
        resident = 0
        for pid, one in seen.items():
            try:
                times = one.cpu_times()
                used[pid] = times.user + times.system
                resident += one.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        peak = max(peak, resident)
        time.sleep(SAMPLE_SECONDS)
    return Usage(
        seconds=time.perf_counter() - begin, cpu_seconds=sum(used.values()), peak_bytes=peak, code=process.returncode
    )


def evenly(clips: Sequence[Clip], count: int | None) -> list[Clip]:
    """So many of them, at even distances; None: all."""
    count = len(clips) if count is None else min(count, len(clips))
    return [clips[at * len(clips) // count] for at in range(count)]


def link_clips(clips: Sequence[Clip], folder: Path) -> list[Path]:
    """Links to the clips in a folder, numbered in their order."""
    folder.mkdir(parents=True)
    links = []
    for number, clip in enumerate(clips):
        links.append(folder / f"{number:06}{clip.path.suffix}")
        links[-1].symlink_to(clip.path.resolve())
    return links


def word_errors(clips: Sequence[Clip], texts: Sequence[str]) -> WordErrors:
    """Errors of all clips that have a transcript."""
    return sum_word_errors(
        count_errors(normalize_english(clip.text or ""), normalize_english(text))
        for clip, text in zip(clips, texts, strict=True)
        if normalize_english(clip.text or "")
    )


def entry(name: str, usages: Sequence[Usage], errors: WordErrors, *, audio_seconds: float) -> dict[str, object]:
    """The figures of one system."""
    cpu = statistics.median(usage.cpu_seconds for usage in usages)
    return {
        "system": name,
        "audio_seconds_per_cpu_second": round(audio_seconds / cpu, 2) if cpu else None,
        "times_real_time": round(audio_seconds / statistics.median(usage.seconds for usage in usages), 2),
        "peak_mib": round(max(usage.peak_bytes for usage in usages) / 2**20),
        "wer": round(errors.rate(), 4),
        "cpu_seconds": [round(usage.cpu_seconds, 2) for usage in usages],
    }


def run_peer(kind: str, folder: Path, *, model: str, beam: int, batch: int, threads: int, out: Path) -> None:
    """faster-whisper over a folder: a JSON line a file, {"file", "text"}.

    Raises:
        ConfigError: if faster-whisper is not installed.
    """
    try:
        from faster_whisper import BatchedInferencePipeline, WhisperModel
    except ImportError as error:
        raise ConfigError("the benchmark needs faster-whisper: pip install 'earlybird-asr[compare]'") from error
    whisper = WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=threads)
    pipeline = BatchedInferencePipeline(whisper)
    with out.open("w", encoding="utf-8") as lines:
        for path in sorted(folder.iterdir()):
            options = {"language": "en", "beam_size": beam, "without_timestamps": True}
            if kind == "batched":
                segments, _ = pipeline.transcribe(str(path), batch_size=batch, **options)
            else:
                segments, _ = whisper.transcribe(str(path), **options)
            text = " ".join(segment.text.strip() for segment in segments)
            lines.write(json.dumps({"file": path.name, "text": text}, ensure_ascii=False) + "\n")


def profile_earlybird(folder: Path, options: Sequence[str], lines: int = 25) -> str:
    """Where the time of one process goes that decodes the folder: functions by their own time."""
    import asr

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", default="earlybird-en")
    for name, default in (("--delay-ms", 480), ("--chunk-ms", 320), ("--batch-size", 4)):
        parser.add_argument(name, type=int, default=default)
    chosen, _ = parser.parse_known_args(list(options))
    model = asr.load(chosen.model)
    profile = cProfile.Profile()
    profile.enable()
    for _ in asr.transcribe_files(
        model,
        sorted(folder.iterdir()),
        delay_ms=chosen.delay_ms,
        chunk_ms=chosen.chunk_ms,
        batch_size=chosen.batch_size,
    ):
        pass
    profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(lines)
    return text.getvalue()


def _systems(options: argparse.Namespace, folder: Path, work: Path) -> dict[str, list[str]]:
    systems = {
        f"earlybird {options.earlybird}".strip(): [
            *EARLYBIRD, str(folder), "--format", "txt", "--overwrite", *shlex.split(options.earlybird)
        ]
    }  # fmt: skip
    for kind in PEERS if options.ctranslate2 else ():
        systems[f"faster-whisper int8 {kind}, beam {options.beam}"] = [
            sys.executable, "-m", "recipes.batch_benchmark", "--peer", kind, "--folder", str(folder),
            "--ctranslate2", options.ctranslate2, "--beam", str(options.beam), "--batch", str(options.batch),
            "--cpus", str(options.cpus),
        ]  # fmt: skip
    return systems


def _texts(system: str, out: Path, links: Sequence[Path]) -> list[str]:
    if system.startswith("earlybird"):
        paths = [out / f"{link.stem}.txt" for link in links]
        return [path.read_text(encoding="utf-8") if path.exists() else "" for path in paths]
    told = {line["file"]: line["text"] for line in map(json.loads, out.read_text(encoding="utf-8").splitlines())}
    return [told.get(link.name, "") for link in links]


def compare(options: argparse.Namespace) -> dict[str, object]:
    """The report.

    Raises:
        ConfigError: if there is no clip with a transcript, or a system fails.
    """
    clips = evenly([clip for clip in read_manifest(options.manifest) if clip.text], options.clips)
    if not clips:
        raise ConfigError(f"{options.manifest} has no clip with a transcript")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        links = link_clips(clips, work / "in")
        systems = _systems(options, work / "in", work)
        usages: dict[str, list[Usage]] = {name: [] for name in systems}
        outs = {name: work / f"out{number}" for number, name in enumerate(systems)}
        for _ in range(options.repeats):
            for name, command in systems.items():
                usage = measured([*command, "--out", str(outs[name])], cpus=options.cpus, log=work / "log")
                if usage.code:
                    raise ConfigError(f"{name} ended with {usage.code}: {(work / 'log').read_text()[-2000:]}")
                usages[name].append(usage)
        audio = sum(clip.duration_ms for clip in clips) / 1000
        entries = [
            entry(name, usages[name], word_errors(clips, _texts(name, outs[name], links)), audio_seconds=audio)
            for name in systems
        ]
        report: dict[str, object] = {
            "clips": len(clips),
            "audio_seconds": round(audio, 1),
            "cpus": options.cpus,
            "repeats": options.repeats,
            "systems": entries,
            "earlybird_is_so_many_times_as_fast_per_cpu_second": {
                str(one["system"]): round(
                    float(entries[0]["audio_seconds_per_cpu_second"])  # type: ignore[arg-type]
                    / float(one["audio_seconds_per_cpu_second"]),  # type: ignore[arg-type]
                    2,
                )
                for one in entries[1:]
            },
        }
        if options.profile:
            print(profile_earlybird(work / "in", shlex.split(options.earlybird)), file=sys.stderr)
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--ctranslate2", help="folder of a CTranslate2 Whisper; without it faster-whisper is left out")
    parser.add_argument("--clips", type=int, help="so many, at even distances; all without it")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--earlybird", default="", help="more flags of earlybird transcribe, in one string")
    parser.add_argument("--beam", type=int, default=5, help="faster-whisper's own default")
    parser.add_argument("--batch", type=int, default=8, help="of its batched pipeline")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, help="file of the report")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        if options.peer is not None:
            run_peer(
                options.peer,
                options.folder,
                model=options.ctranslate2,
                beam=options.beam,
                batch=options.batch,
                threads=options.cpus,
                out=options.out,
            )
            return 0
        if options.manifest is None:
            raise ConfigError("--manifest is needed: recordings with transcripts")
        report = compare(options)
    except EarlybirdError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    text = json.dumps(report, indent=1, ensure_ascii=False)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
