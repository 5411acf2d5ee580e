import json
import signal
from pathlib import Path

import pytest
import soundfile

import asr
from asr.audio import read_audio
from asr.errors import ConfigError, EarlybirdError
from recipes.batch_torture import (
    BROKEN,
    FORMATS,
    HARD_NAMES,
    accounted,
    compare_trees,
    main,
    make_folder,
    run_killed,
    texts_alone,
)
from tests.tiny_model import bursts, tiny_model


@pytest.fixture
def clips(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "clips" / f"{n}.flac" for n in range(3)]
    paths[0].parent.mkdir()
    for number, path in enumerate(paths):
        soundfile.write(path, bursts(0.6, number).numpy(), 16_000)
    return paths


def readable(path: Path) -> bool:
    try:
        return len(read_audio(path)) > 0
    except EarlybirdError:
        return False


def test_a_folder_has_all_formats_hard_names_and_the_broken_files(clips: list[Path], tmp_path: Path) -> None:
    made = make_folder(tmp_path / "in", clips, files=100, broken=len(BROKEN), seconds=0.5)
    assert len(set(made)) == 100
    assert {path for path in (tmp_path / "in").rglob("*.*") if path.parent.suffix != ".wav"} == set(made)
    assert {path.suffix for path in made} == {format.suffix for format in FORMATS}
    assert sum(any(path.name.startswith(name) for name in HARD_NAMES) for path in made) == 12
    # Two of the ten ways only cut the end off.
    assert sum(not readable(path) for path in made) == len(BROKEN) - 2
    with pytest.raises(ConfigError, match="got 3, 1, 2"):
        make_folder(tmp_path / "other", clips, files=1, broken=2)


def test_what_differs_between_trees_is_named(tmp_path: Path) -> None:
    for name, files in {"a": {"x/1": "1", "2": "2", "run.jsonl": "a"}, "b": {"x/1": "1!", "3": "3"}}.items():
        for file, text in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(text)
    a, b = tmp_path / "a", tmp_path / "b"
    assert compare_trees(a, b) == [f"only in {a}: 2", f"only in {b}: 3", "differs: x/1"]
    assert compare_trees(a, a) == []


def test_files_without_a_line_are_named(tmp_path: Path) -> None:
    lines = [
        {"run": {}},
        {"file": "a.wav", "status": "failed", "error": "EmptyAudio: x"},
        {"file": "b.wav", "status": "failed", "error": "NoAudioTrack: y"},
        {"file": "a.wav", "status": "done", "error": None},
    ]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = [Path("a.wav"), Path("b.wav"), Path("c\n.wav")]
    assert accounted(tmp_path / "run.jsonl", files) == ({"done": 1, "NoAudioTrack": 1}, ["c\\n.wav"])


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    asr.save(tiny_model(tmp_path), tmp_path / "checkpoint", "random weights, for tests")
    return str(tmp_path / "checkpoint")


def test_texts_are_compared_with_the_file_alone(checkpoint: str, clips: list[Path], tmp_path: Path) -> None:
    options = {"delay_ms": 160, "chunk_ms": 160}
    text = asr.transcribe(asr.load(checkpoint), clips[0], delay_ms=160, chunk_ms=160).text
    (tmp_path / "out").mkdir()
    (tmp_path / "out/0.txt").write_text(f"{text}\n" if text else "")
    (tmp_path / "out/1.flac.txt").write_text("something else\n")
    assert texts_alone(checkpoint, clips, tmp_path / "clips", tmp_path / "out", options) == [
        str(clips[1]),
        str(clips[2]),
    ]


@pytest.mark.nightly
def test_a_batch_that_is_killed_again_and_again_ends_as_one_that_is_not(
    checkpoint: str, clips: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--clips", str(tmp_path / "clips"), "--work", str(tmp_path / "work"), "--model", checkpoint]
    arguments += "--files 40 --broken 10 --kills 4 --alone 6 --delay-ms 160 --chunk-ms 320 --seconds 0.5".split()
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["not_accounted_for"] == report["differences"] == report["texts_different_from_alone"] == []
    assert (sum(report["ended"].values()), report["ended"]["done"]) == (40, 32)
    assert report["exit_codes"] == [1, 1]
    assert report["kills"] >= 1
    assert main(arguments) == 2, "it writes over nothing"


@pytest.mark.nightly
def test_the_command_ends_cleanly_on_a_signal(checkpoint: str, clips: list[Path], tmp_path: Path) -> None:
    import subprocess
    import time

    from recipes.batch_torture import COMMAND

    made = make_folder(tmp_path / "in", clips, files=60, broken=0)
    arguments = [str(tmp_path / "in"), "--model", checkpoint, "--delay-ms", "160", "--chunk-ms", "160"]
    out = tmp_path / "out"
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--out", str(out)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not list(out.rglob("*.txt")):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; the same command goes on from here" in err
    assert not list(out.rglob("*.part"))
    assert run_killed(arguments, out, kills=0, longest=0).code == 0
    assert accounted(out / "run.jsonl", made) == ({"done": 60}, [])
