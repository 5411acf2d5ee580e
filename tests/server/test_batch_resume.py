"""A batch goes on where it was stopped, and does nothing twice."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from server.batch import BatchSettings, Stopped, result_settings, run_batch, stop_on_signals
from server.batch_worker import Outcome, WorkerSettings, in_this_process
from server.dispatch import Task
from server.inputs import find_inputs
from server.journal import JOURNAL_NAME
from server.progress import QuietProgress
from tests.server.fake_engine import FakeEngine
from tests.server.test_batch import outputs, run, wav


def batch(tmp_path: Path, engine: FakeEngine, **settings: object) -> tuple[list[str], list[str]]:
    """What was transcribed in a run over tmp_path/in, and what was logged."""
    out = tmp_path / "out"
    before = journal_lines(out)
    logged = run(find_inputs([tmp_path / "in"], log=print), engine, out=out, **settings)[2]
    lines = [json.loads(line) for line in journal_lines(out)[len(before) :]]
    return [Path(line["file"]).name for line in lines if "file" in line], logged


def journal_lines(out: Path) -> list[str]:
    journal = out / JOURNAL_NAME
    return journal.read_text().splitlines() if journal.exists() else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate("abc"):
        wav(tmp_path / "in" / f"{name}.wav", 3.0 - number)
    return tmp_path


def test_what_is_done_is_not_done_again(folder: Path, engine: FakeEngine) -> None:
    assert batch(folder, engine)[0] == ["a.wav", "b.wav", "c.wav"], "the longest first"
    content = {name: (folder / "out" / name).stat().st_mtime_ns for name in outputs(folder / "out")}
    done, logged = batch(folder, engine)
    assert done == []
    assert logged == ["3 files: 0 done, 3 done before, 0 failed"]
    assert {name: (folder / "out" / name).stat().st_mtime_ns for name in outputs(folder / "out")} == content
    assert batch(folder, engine, overwrite=True)[0] == ["a.wav", "b.wav", "c.wav"]


def test_changed_input_is_done_again(folder: Path, engine: FakeEngine) -> None:
    batch(folder, engine)
    wav(folder / "in/b.wav", 1.5)
    os.utime(folder / "in/c.wav", ns=(1, 1))
    assert sorted(batch(folder, engine)[0]) == ["b.wav", "c.wav"]
    status = (folder / "in/a.wav").stat()
    data = bytearray((folder / "in/a.wav").read_bytes())
    data[-1] ^= 1
    (folder / "in/a.wav").write_bytes(data)
    os.utime(folder / "in/a.wav", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert batch(folder, engine)[0] == ["a.wav"], "same size and time, other content"


def test_other_settings_and_more_formats_are_done_again(folder: Path, engine: FakeEngine) -> None:
    batch(folder, engine, formats=("txt", "json"))
    assert batch(folder, engine, formats=("json",))[0] == []
    assert len(batch(folder, engine, formats=("txt", "srt"))[0]) == 3
    assert len(batch(folder, engine, formats=("srt",), depends_on=2)[0]) == 3


def test_a_result_that_is_gone_is_written_again(folder: Path, engine: FakeEngine) -> None:
    batch(folder, engine)
    (folder / "out/b.txt").unlink()
    assert batch(folder, engine)[0] == ["b.wav"]


def test_what_failed_is_tried_again(folder: Path, engine: FakeEngine) -> None:
    (folder / "in/d.wav").touch()
    assert batch(folder, engine)[1][1] == "4 files: 3 done, 1 failed"
    assert batch(folder, engine)[0] == ["d.wav"]
    wav(folder / "in/d.wav")
    assert batch(folder, engine) == (["d.wav"], ["4 files: 1 done, 3 done before, 0 failed", *batch_speed(folder)])
    assert batch(folder, engine)[0] == []


def batch_speed(folder: Path) -> list[object]:
    class Speed:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, str) and other.endswith("× real time")

    return [Speed()]


def test_strict_fails_what_has_a_warning(folder: Path, engine: FakeEngine) -> None:
    path = wav(folder / "in/d.wav", 2.0)
    path.write_bytes(path.read_bytes()[:32_044])
    done, logged = batch(folder, engine, strict=True)
    assert len(done) == 4
    assert logged[-1] == f"failed: {path}: strict: header promised 2.0 s, 1.0 s decoded"
    assert not (folder / "out/d.txt").exists()
    assert batch(folder, engine)[0] == ["d.wav"], "what failed is tried again"
    assert (folder / "out/d.txt").exists()
    assert batch(folder, engine)[0] == []
    assert batch(folder, engine, strict=True)[0] == ["d.wav"], "a warning of an earlier run counts as well"


def test_what_a_killed_run_left_is_removed(folder: Path, engine: FakeEngine) -> None:
    batch(folder, engine)
    (folder / "out/.0123456789abcdef.part").write_text("half")
    (folder / "out/.part").write_text("another's")
    batch(folder, engine)
    assert outputs(folder / "out") == [".part", "a.txt", "b.txt", "c.txt"]


def stopping(after: int, number: int) -> object:
    """A transcriber that gets a signal behind so many outcomes, and says whether it was closed."""
    closed = []

    def transcribe(tasks: Sequence[Task]) -> Iterator[Outcome]:
        try:
            for count, outcome in enumerate(in_this_process(WorkerSettings(model="m"), tasks, log=print)):
                if count == after:
                    os.kill(os.getpid(), number)
                yield outcome
        finally:
            closed.append(True)

    transcribe.closed = closed  # type: ignore[attr-defined]
    return transcribe


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_batch_cleanly_and_it_goes_on_from_there(
    folder: Path, engine: FakeEngine, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    before = signal.getsignal(number)
    transcribe = stopping(1, number)
    settings = BatchSettings(out=folder / "out")
    inputs = find_inputs([folder / "in"], log=print)
    progress = QuietProgress(sys.stderr)
    summary = run_batch(
        transcribe,  # type: ignore[arg-type]
        inputs,
        settings,
        depends_on={"all": 1},
        results=sys.stdout,
        progress=progress,
    )
    assert (summary.done, summary.stopped, summary.exit_code) == (1, number, 128 + number)
    assert transcribe.closed == [True]  # type: ignore[attr-defined]
    assert signal.getsignal(number) is before
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "3 files: 1 done, 0 failed, 2 left"
    assert err[-1] == f"stopped by {number.name}; the same command goes on from here"
    assert batch(folder, engine)[0] == ["b.wav", "c.wav"]


def test_a_second_signal_does_not_disturb_the_first() -> None:
    reached = []

    def stopped_twice() -> None:
        with stop_on_signals():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                reached.append(True)

    with pytest.raises(Stopped) as stopped:
        stopped_twice()
    assert reached == [True]
    assert stopped.value.signal == signal.SIGTERM


def test_results_depend_on_the_content_of_models_and_lists(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_text("1")
    (tmp_path / "words.txt").write_text("Kubernetes")
    worker = WorkerSettings(model=str(tmp_path / "model"), phrases=tmp_path / "words.txt", threads=1, batch_size=4)
    before = result_settings(worker)
    json.dumps(before)
    assert result_settings(WorkerSettings(**{**vars(worker), "threads": 2, "batch_size": 9})) == before
    assert result_settings(WorkerSettings(**{**vars(worker), "delay_ms": 80})) != before
    (tmp_path / "words.txt").write_text("Kubernetez")
    phrases = result_settings(worker)
    (tmp_path / "model/weights").write_text("2")
    assert len({json.dumps(one) for one in (before, phrases, result_settings(worker))}) == 3
    assert result_settings(WorkerSettings(model="earlybird-en"))["weights"]
    assert result_settings(WorkerSettings(model="missing"))["weights"] == {}
