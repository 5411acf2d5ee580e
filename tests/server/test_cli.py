import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from typer.main import get_command

from asr import checkpoint
from asr.drafting import Drafting
from asr.errors import CheckpointError, ConfigError
from asr.words import Transcript
from server import engine as server_engine
from server import options
from server.batch_cli import parse_channel
from server.cli import app, main
from server.engine import load_model
from tests.server.fake_engine import FakeEngine

TRANSCRIPT_OF_SILENCE = Transcript(words=(), audio_samples=16_000)
FLAGS = {
    "transcribe": {
        "paths", "--out", "--format", "--delay-ms", "--chunk-ms", "--batch-size", "--threads", "--device", "--channel",
        "--draft", "--draft-mode", "--lm", "--lm-weight", "--phrases", "--boost", "--model", "--stats", "--vad",
        "--include", "--exclude", "--files-from", "--overwrite", "--strict", "--ray",
    },
    "serve": {
        "--host", "--port", "--model", "--device", "--threads", "--max-sessions", "--delay-ms", "--chunk-ms", "--lm",
        "--lm-weight", "--phrases", "--boost", "--tls-cert", "--tls-key", "--tokens", "--open", "--origin", "--idle-s",
        "--session-s", "--resume-s",
    },
    "listen": {
        "path", "--url", "--device", "--list-devices", "--channel", "--delay-ms", "--chunk-ms", "--phrases", "--boost",
        "--token", "--ca", "--json",
    },
    "models": set(),
    "lm": set(),
    "evaluate": {"--processes"},
    "train": set(),
    "doctor": {"--model", "--device", "--delay-ms", "--chunk-ms"},
}  # fmt: skip


def test_the_flags_are_those_that_are_documented() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert {name: {o for p in command.params for o in p.opts} for name, command in commands.items()} == FLAGS


def test_the_default_model_is_the_library_s() -> None:
    assert options.DEFAULT_MODEL == checkpoint.DEFAULT_MODEL


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "a.wav", np.full(32_000, 0.1), 16_000)
    return tmp_path / "a.wav"


def test_text_goes_to_standard_output_alone(clip: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", str(clip)]) == 0
    assert capsys.readouterr() == ("wa wb\n", "")
    assert engine.loads == [("earlybird-en", "cpu")]
    assert engine.calls[-1] == {
        "delay_ms": 480,
        "chunk_ms": 320,
        "batch_size": 4,
        "drafting": Drafting(),
        "scorer": None,
    }


def test_flags_reach_the_recogniser(clip: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--format json --delay-ms 160 --chunk-ms 80 --batch-size 7 --model other --threads 1 --stats"
    assert main(["transcribe", str(clip), *flags.split()]) == 0
    assert engine.loads == [("other", "cpu")]
    assert engine.calls[-1] == {
        "delay_ms": 160,
        "chunk_ms": 80,
        "batch_size": 7,
        "drafting": Drafting(),
        "scorer": None,
    }
    out, err = capsys.readouterr()
    assert json.loads(out)["text"] == "wa wb"
    assert "2.0 s of audio" in err


def test_drafts_are_handed_on_and_other_names_refused(
    clip: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transcribe", str(clip), "--draft", "ctc", "--draft-mode", "relaxed"]) == 0
    assert engine.calls[0]["drafting"] == Drafting(drafter="ctc", mode="relaxed")
    assert main(["transcribe", str(clip), "--draft", "beam"]) == 2
    assert "draft is 'beam'; there are none, wait, ctc, mtp, auto" in capsys.readouterr().err
    assert main(["transcribe", str(clip), "--draft", "none", "--draft-mode", "relaxed"]) == 2
    assert "needs a drafter that proposes text" in capsys.readouterr().err


def test_out_gets_both_formats(clip: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    out = clip.parent / "out"
    assert main(["transcribe", str(clip), "--out", str(out)]) == 0
    assert capsys.readouterr() == ("", "")
    assert sorted(path.name for path in out.iterdir()) == ["a.json", "a.txt", "run.jsonl"]


def test_one_bad_file_among_good_ones_exits_with_1(
    clip: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    (clip.parent / "b.wav").touch()
    assert main(["transcribe", str(clip.parent), "--stats"]) == 1
    out, err = capsys.readouterr()
    assert out == f"{clip}\twa wb\n"
    assert err.splitlines()[:2] == [
        f"error: EmptyAudio: {clip.parent / 'b.wav'}: has no bytes",
        "2 files: 1 done, 1 failed",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "txt,mp3"], "format is 'mp3'"),
        (["--format", "txt,json"], "standard output takes one format"),
        (["--channel", "left"], "--channel is 'left'"),
        (["--device", "abacus"], "device is 'abacus'; this machine has cpu"),
        (["--chunk-ms", "100"], "chunk_ms is 100; earlybird-en was made for 80, 320"),
        (["--model", "missing"], "CheckpointError: no model is called 'missing'"),
        (["--threads", "0"], "--threads"),
        (["--batch-size", "0"], "--batch-size"),
        (["--delay-ms", "soon"], "--delay-ms"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(
    clip: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["transcribe", str(clip), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_nothing_to_do_exits_with_2(tmp_path: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", str(tmp_path)]) == 2
    assert f"no audio file in {tmp_path}" in capsys.readouterr().err
    assert main(["transcribe"]) == 2


def test_a_file_that_is_not_there_fails_and_the_rest_is_done(
    clip: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transcribe", str(clip), "--", "-x.wav"]) == 1
    out, err = capsys.readouterr()
    assert out == f"{clip}\twa wb\n"
    assert "error: AudioFormatError: -x.wav: cannot be opened: No such file" in err


def test_help_states_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 everything was done; 1 some files failed" in words
    assert "2 wrong usage" in words


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"earlybird-asr": "1.2.3"}[name])
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "1.2.3\n"


def test_importing_the_command_loads_no_torch() -> None:
    program = "import sys, server.cli; print([name for name in ('torch', 'numba', 'soundfile') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_channels() -> None:
    assert (parse_channel("mix"), parse_channel("0"), parse_channel("12")) == ("mix", 0, 12)
    for channel in ("-1", "1.0", "", "²", "each"):
        with pytest.raises(ConfigError, match="must be 'mix' or a number"):
            parse_channel(channel)


def test_threads_are_set_and_checked(engine: FakeEngine) -> None:
    load_model("m", device="cpu", threads=2)
    assert torch.get_num_threads() == 2
    with pytest.raises(ConfigError, match="threads is 0"):
        load_model("m", device="cpu", threads=0)


def test_models_lists_what_each_was_made_for(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_engine, "installed_models", lambda: ["one", "missing", "two"])
    assert main(["models"]) == 1
    out, err = capsys.readouterr()
    listing = "  chunk_ms: [80, 320]\n  delay_ms: [160, 480]\n"
    assert out == f"one\n{listing}two\n{listing}"
    assert "error: missing: CheckpointError: no model is called" in err


def test_no_models(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_engine, "installed_models", list)
    assert main(["models"]) == 0
    assert capsys.readouterr() == ("", "no model is installed\n")


def test_installed_models_are_folders_with_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asr

    for name in ("b", "a", "half"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        if name != "half":
            (tmp_path / "checkpoints" / name / "config.json").touch()
    monkeypatch.setattr(asr, "__file__", str(tmp_path / "__init__.py"))
    assert server_engine.installed_models() == ["a", "b"]


def test_doctor_is_well(engine: FakeEngine, with_ffmpeg: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "cpu"]) == 1, "the fake hears a word in silence"
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("FAIL one second of silence through earlybird-en on cpu")
    assert lines[-1].endswith("but it heard 'wa'")
    assert [line for line in lines[:-1] if line.startswith("FAIL")] == []
    assert lines[-2] == (
        "ok   live sessions of earlybird-en on cpu with one thread: a step of 320 ms takes 80 ms with 1 session and "
        "260 ms with 4: 20 ms for every 80 ms of one session, of which 80 may pass; a server here would take 3"
    )
    assert any(line.startswith("ok   microphones: ") for line in lines)
    assert any(line.startswith(f"ok   ffmpeg: {with_ffmpeg}: ffmpeg version") for line in lines)


def test_doctor_without_ffmpeg_and_without_a_model(
    engine: FakeEngine, without_ffmpeg: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--model", "missing"]) == 1
    out = capsys.readouterr().out
    assert "ok   ffmpeg: not installed: WAV, FLAC, Ogg and MP3 work" in out
    assert "FAIL one second of silence through missing on cpu: CheckpointError: no model" in out


def test_doctor_is_content_when_silence_gives_no_words(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.server.fake_engine.transcript_of", lambda samples: TRANSCRIPT_OF_SILENCE)
    assert main(["doctor"]) == 0
    assert "FAIL" not in capsys.readouterr().out


def test_checkpoint_errors_are_of_the_tree(engine: FakeEngine) -> None:
    with pytest.raises(CheckpointError):
        load_model("missing", device="cpu", threads=1)
