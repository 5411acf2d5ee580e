import io
import json
import os
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np
import pytest
import soundfile

from asr.errors import ConfigError
from asr.results import FileResult
from asr.words import DraftCount, Transcript
from server.batch import BatchSettings, BatchSummary, run_batch
from server.batch_worker import WorkerSettings, in_this_process
from server.inputs import Input, find_inputs
from server.progress import QuietProgress
from tests.server.fake_engine import FakeEngine, transcript_of


def wav(path: Path, seconds: float = 1.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        soundfile.write(file, np.full(round(16_000 * seconds), 0.1), 16_000, format="WAV")
    return path


def names(inputs: list[Input]) -> list[str]:
    return [entry.name.as_posix() for entry in inputs]


def test_folders_are_searched_and_files_taken_as_they_are(tmp_path: Path) -> None:
    for name in ("in/b.wav", "in/sub/A.FLAC", "in/sub/deep/c.mp3", "in/notes.txt", "in/._b.wav", "in/.git/d.wav"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "odd.bin").touch()
    logged: list[str] = []
    inputs = find_inputs([tmp_path / "odd.bin", tmp_path / "in", tmp_path / "gone.wav"], log=logged.append)
    assert names(inputs) == ["odd.bin", "b.wav", "sub/A.FLAC", "sub/deep/c.mp3", "gone.wav"]
    assert logged == []


def test_a_file_reached_twice_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wav(tmp_path / "a.wav")
    monkeypatch.chdir(tmp_path)
    assert names(find_inputs([tmp_path, Path("a.wav"), Path("./a.wav")], log=print)) == ["a.wav"]


def test_folders_that_give_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    logged: list[str] = []
    find_inputs([tmp_path / "empty", wav(tmp_path / "a.wav")], log=logged.append)
    assert logged == [f"warning: no audio file below {tmp_path / 'empty'}"]
    with pytest.raises(ConfigError, match=r"no audio file in .*empty"):
        find_inputs([tmp_path / "empty"], log=logged.append)


def test_settings_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"standard output takes one format, txt,json were given"):
        BatchSettings(formats=("txt", "json"))
    with pytest.raises(ConfigError, match=r"a\.wav, a file; a folder is needed"):
        BatchSettings(out=wav(tmp_path / "a.wav"))


def run(
    inputs: list[Input], engine: FakeEngine, *, channel: object = "mix", depends_on: object = 1, **settings: object
) -> tuple[BatchSummary, str, list[str]]:
    results, logged = io.StringIO(), io.StringIO()
    worker = WorkerSettings(model="m", channel=channel)  # type: ignore[arg-type]
    summary = run_batch(
        lambda tasks: in_this_process(worker, tasks, log=print),
        inputs,
        BatchSettings(**settings),  # type: ignore[arg-type]
        depends_on={"all": depends_on},
        results=results,
        progress=QuietProgress(logged),
    )
    return summary, results.getvalue(), logged.getvalue().splitlines()


def outputs(folder: Path) -> list[str]:
    """Names of the results below a folder, the journal left out."""
    found = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return [name for name in found if name != "run.jsonl"]


def test_a_tree_is_mirrored_and_collisions_keep_their_suffix(tmp_path: Path, engine: FakeEngine) -> None:
    for name in ("in/a.wav", "in/a.mp3", "in/sub/a.wav", "in/sub/it's 日本.wav"):
        wav(tmp_path / name)
    inputs = find_inputs([tmp_path / "in"], log=print)
    summary, _, _ = run(inputs, engine, out=tmp_path / "out", formats=("txt", "json"))
    written = outputs(tmp_path / "out")
    stems = ["a.mp3", "a.wav", "sub/a", "sub/it's 日本"]
    assert written == sorted(f"{stem}.{suffix}" for stem in stems for suffix in ("txt", "json"))
    assert (summary.done, summary.failed) == (4, [])
    result = json.loads((tmp_path / "out/sub/a.json").read_text())
    assert result["file"] == str(tmp_path / "in/sub/a.wav")
    assert (tmp_path / "out/sub/a.txt").read_text() == "wa\n"


def test_one_bad_file_in_twenty(tmp_path: Path, engine: FakeEngine) -> None:
    for k in range(20):
        wav(tmp_path / f"in/{k:02}.wav")
    (tmp_path / "in/07.wav").write_bytes(b"")
    summary, _, logged = run(find_inputs([tmp_path / "in"], log=print), engine, out=tmp_path / "out")
    assert (summary.done, len(summary.failed)) == (19, 1)
    assert len(outputs(tmp_path / "out")) == 19
    reason = f"EmptyAudio: {tmp_path / 'in/07.wav'}: has no bytes"
    assert [logged[0], logged[1], logged[3]] == [f"error: {reason}", "20 files: 19 done, 1 failed", f"failed: {reason}"]
    assert "× real time" in logged[2]
    assert summary.exit_code == 1


def test_every_kind_of_bad_file_has_a_name(tmp_path: Path, engine: FakeEngine, without_ffmpeg: None) -> None:
    wav(tmp_path / "good.wav")
    (tmp_path / "empty.wav").touch()
    soundfile.write(tmp_path / "header.wav", np.zeros(0), 16_000)
    soundfile.write(tmp_path / "nan.wav", np.array([0, np.nan]), 16_000, subtype="FLOAT")
    soundfile.write(tmp_path / "fast.wav", np.zeros(99), 96_000)
    (tmp_path / "text.mp3").write_text("no audio at all\n" * 99)
    paths = [tmp_path, tmp_path / "gone.wav"]
    summary, _, _ = run(find_inputs(paths, log=print), engine, out=tmp_path / "out")
    errors = {entry.path.name: message.partition(":")[0] for entry, message in summary.failed}
    assert summary.done == 1
    assert errors == {
        "empty.wav": "EmptyAudio",
        "header.wav": "EmptyAudio",
        "nan.wav": "InvalidSamples",
        "fast.wav": "AudioFormatError",
        "text.mp3": "UnknownContainer",
        "gone.wav": "AudioFormatError",
    }


def test_a_channel_that_only_some_files_have(tmp_path: Path, engine: FakeEngine) -> None:
    soundfile.write(tmp_path / "stereo.wav", np.full((16_000, 2), 0.1), 16_000)
    wav(tmp_path / "mono.wav")
    summary, text, _ = run(find_inputs([tmp_path], log=print), engine, channel=1)
    assert [(entry.path.name, message.partition(":")[0]) for entry, message in summary.failed] == [
        ("mono.wav", "ConfigError")
    ]
    assert text == f"{tmp_path / 'stereo.wav'}\twa\n"


def test_a_result_that_cannot_be_written_fails_that_file_alone(tmp_path: Path, engine: FakeEngine) -> None:
    inputs = [Input(path=wav(tmp_path / f"{n}.wav"), name=PurePath(f"{n}.wav")) for n in ("a", "b")]
    (tmp_path / "out/a.txt").mkdir(parents=True)
    summary, _, logged = run(inputs, engine, out=tmp_path / "out")
    assert (summary.done, [entry.name for entry, _ in summary.failed]) == (1, [PurePath("a.wav")])
    assert "result not written: Is a directory" in logged[0]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.txt", "b.txt", "run.jsonl"]


def test_two_files_of_one_name_are_refused_before_any_work(tmp_path: Path, engine: FakeEngine) -> None:
    inputs = find_inputs([wav(tmp_path / "x/a.wav"), wav(tmp_path / "y/a.wav")], log=print)
    with pytest.raises(ConfigError, match=r"several inputs would be written to a\.wav\.\*"):
        run(inputs, engine, out=tmp_path / "out")
    assert engine.calls == []
    summary, text, _ = run(inputs, engine)
    assert (summary.done, len(text.splitlines())) == (2, 2)


def test_standard_output(tmp_path: Path, engine: FakeEngine) -> None:
    inputs = find_inputs([wav(tmp_path / "a\nb.wav", 2.0)], log=print)
    assert run(inputs, engine)[1:] == ("wa wb\n", [])
    (line,) = run(inputs, engine, formats=("json",))[1].splitlines()
    assert json.loads(line)["file"] == str(tmp_path / "a\nb.wav")
    wav(tmp_path / "c.wav")
    text = run(find_inputs([tmp_path], log=print), engine)[1]
    assert text == f"{tmp_path}/a\\nb.wav\twa wb\n{tmp_path}/c.wav\twa\n"


def test_names_that_are_no_utf_8(tmp_path: Path, engine: FakeEngine) -> None:
    wav(tmp_path / "in" / os.fsdecode(b"\xff.wav"))
    run(find_inputs([tmp_path / "in"], log=print), engine, out=tmp_path / "out", formats=("json",))
    (name,) = outputs(tmp_path / "out")
    path = tmp_path / "out" / name
    assert os.fsencode(name) == b"\xff.json"
    assert json.loads(path.read_text())["file"].endswith(r"\xff.wav")


def test_warnings_are_logged_and_kept_with_the_result(tmp_path: Path, engine: FakeEngine) -> None:
    path = wav(tmp_path / "a.wav", 2.0)
    path.write_bytes(path.read_bytes()[:32_044])
    _, text, logged = run(find_inputs([path], log=print), engine, formats=("json",))
    assert json.loads(text)["warnings"] == ["header promised 2.0 s, 1.0 s decoded"]
    assert logged == [f"warning: {path}: header promised 2.0 s, 1.0 s decoded"]


def test_files_are_opened_when_their_turn_comes(tmp_path: Path, engine: FakeEngine) -> None:
    wav(tmp_path / "in/a.wav", 2.0)
    wav(tmp_path / "in/b.wav", 1.0)

    def removing_the_next(tasks):  # type: ignore[no-untyped-def]
        for outcome in in_this_process(WorkerSettings(model="m"), tasks, log=print):
            (tmp_path / "in/b.wav").unlink(missing_ok=True)
            yield outcome

    summary = run_batch(
        removing_the_next,
        find_inputs([tmp_path / "in"], log=print),
        BatchSettings(),
        depends_on={},
        results=io.StringIO(),
        progress=QuietProgress(io.StringIO()),
    )
    assert [entry.path.name for entry, _ in summary.failed] == ["b.wav"]


def result_of(transcript: Transcript) -> FileResult:
    return FileResult(path=Path("a.wav"), transcripts=(transcript,))


def test_totals() -> None:
    summary = BatchSummary(wall_seconds=1.5)
    assert summary.stats_line() == "0.0 s of audio, 1.5 s of work, 0 words, 0 steps, 0 decoder calls, 0 decoder rows"
    summary.add(result_of(transcript_of(32_000)))
    drafts = {"ctc": DraftCount(proposed=(3, 2), accepted=(2, 1))}
    one = transcript_of(16_000)
    summary.add(result_of(replace(one, stats=replace(one.stats, decoder_rows=9, drafts=drafts))))
    assert summary.stats_line() == (
        "3.0 s of audio, 1.5 s of work, real-time factor 0.500, 3 words, 37 steps, 3 decoder calls, "
        "9 decoder rows, ctc drafts 3 of 5 accepted, "
        "word delay median 480 ms, p90 480 ms"
    )
