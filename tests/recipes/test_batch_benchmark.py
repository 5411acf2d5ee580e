import json
import sys
from pathlib import Path

import pytest
import soundfile

import asr
from asr.errors import ConfigError
from recipes.batch_benchmark import (
    Usage,
    entry,
    evenly,
    link_clips,
    main,
    measured,
    profile_earlybird,
    word_errors,
)
from recipes.data import read_manifest
from tests.tiny_model import bursts, tiny_model


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    lines = []
    for number, text in enumerate(["THE CAT SAT", "A DOG", "NO"]):
        soundfile.write(tmp_path / f"{number}.flac", bursts(0.5, number).numpy(), 16_000)
        lines.append({"audio": f"{number}.flac", "duration": 0.5, "text": text, "source": "made", "licence": "none"})
    (tmp_path / "clips.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "clips.jsonl"


def test_a_process_and_what_it_starts_are_watched(tmp_path: Path) -> None:
    # Two processes of 64 MiB, a good second of work each.
    work = "import time; b = bytearray(2**26); t = time.process_time()\nwhile time.process_time() - t < 0.7: pass"
    program = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {work!r}])\n{work}\np.wait()"
    usage = measured([sys.executable, "-c", program], cpus=1, log=tmp_path / "log")
    assert usage.code == 0
    assert 1.2 <= usage.cpu_seconds <= 2.5
    assert usage.cpu_seconds <= usage.seconds + 0.2, "on one core"
    assert 2**27 <= usage.peak_bytes <= 2**29
    assert measured([sys.executable, "-c", "raise SystemExit(3)"], cpus=1, log=tmp_path / "log").code == 3
    with pytest.raises(ConfigError, match="cpus is 9999"):
        measured(["true"], cpus=9999, log=tmp_path / "log")


def test_figures_are_of_medians_and_the_worst_memory() -> None:
    errors = word_errors([], [])
    usages = [
        Usage(seconds=s, cpu_seconds=c, peak_bytes=m * 2**20, code=0) for s, c, m in [(9, 1, 5), (2, 4, 7), (4, 2, 6)]
    ]
    figures = entry("x", usages, errors, audio_seconds=100)
    assert figures == {
        "system": "x", "audio_seconds_per_cpu_second": 50.0, "times_real_time": 25.0, "peak_mib": 7, "wer": 0.0,
        "cpu_seconds": [1, 4, 2],
    }  # fmt: skip


def test_clips_are_linked_in_their_order_and_scored_by_it(manifest: Path, tmp_path: Path) -> None:
    clips = evenly(read_manifest(manifest), 2)
    assert [clip.text for clip in clips] == ["THE CAT SAT", "A DOG"]
    assert evenly(clips, None) == evenly(clips, 9) == clips
    links = link_clips(clips, tmp_path / "in")
    assert [link.name for link in links] == ["000000.flac", "000001.flac"]
    assert [link.resolve().name for link in links] == ["0.flac", "1.flac"]
    assert word_errors(clips, ["the cat", "a dog"]).rate() == pytest.approx(1 / 5)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    asr.save(tiny_model(tmp_path), tmp_path / "checkpoint", "random weights, for tests")
    return str(tmp_path / "checkpoint")


def test_a_profile_names_functions(manifest: Path, checkpoint: str, tmp_path: Path) -> None:
    link_clips(read_manifest(manifest), tmp_path / "in")
    text = profile_earlybird(tmp_path / "in", ["--model", checkpoint, "--delay-ms", "160", "--chunk-ms", "160"])
    assert "tottime" in text
    assert "jobs.py" in text or "decode.py" in text or "built-in method" in text


@pytest.mark.nightly
def test_the_whole_comparison_without_a_peer(
    manifest: Path, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--manifest", str(manifest), "--repeats", "1", "--out", str(tmp_path / "r.json"), "--earlybird"]
    assert main([*arguments, f"--model {checkpoint} --delay-ms 160 --chunk-ms 160"]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["clips"], report["audio_seconds"]) == (3, 1.5)
    assert report["systems"][0]["wer"] > 0
    assert json.loads(capsys.readouterr().out) == report
    assert main([*arguments, "--model missing"]) == 2
    assert "ended with 2" in capsys.readouterr().err


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    (tmp_path / "empty.jsonl").write_text("")
    assert main(["--manifest", str(tmp_path / "empty.jsonl")]) == 2
    assert "has no clip with a transcript" in capsys.readouterr().err
