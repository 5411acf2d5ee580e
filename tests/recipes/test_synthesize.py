"""Synthetic clips: what is spoken, by whom, and that a run goes on where it was."""

from __future__ import annotations

import gzip
import json
import shutil
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from asr.errors import ConfigError
from asr.resample import Samples
from recipes.data import load_audio, read_manifest
from recipes.synthesize import PACES, Voice, main, open_voice, sentences, synthesize

LINES = [f"this is sentence number {k}" for k in range(40)]


class Spoken:
    """A voice that needs a second for everything and remembers what it said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, float]] = []

    def __call__(self, text: str, pace: float) -> Samples:
        self.said.append((text, pace))
        return np.full(16_000, 0.1, np.float32)


def test_sentences_are_drawn_by_the_seed_and_headlines_left_out(tmp_path: Path) -> None:
    text = tmp_path / "text.gz"
    with gzip.open(text, "wt", encoding="utf-8") as file:
        file.write("\n".join([*LINES, "TOO LOUD TO BE WRITTEN SO", "too short", "long " * 30]))
    found = list(sentences([text], seed=1))
    assert sorted(found) == sorted(LINES)
    assert found == list(sentences([text], seed=1)) != list(sentences([text], seed=2))


def test_voices_take_turns_until_the_hours_are_full(tmp_path: Path) -> None:
    voices = [Voice("one", Spoken()), Voice("two", Spoken())]
    manifest = synthesize(iter(LINES), voices, tmp_path, hours=5 / 3600, seed=1)
    clips = read_manifest(manifest)
    assert [clip.text for clip in clips] == LINES[:5]
    assert [json.loads(line)["speaker"] for line in manifest.read_text().splitlines()] == ["one", "two"] * 2 + ["one"]
    assert all(clip.source == "synthetic" and len(load_audio(clip.path)) == 16_000 for clip in clips)


def test_a_run_that_was_stopped_goes_on_with_the_same_clips(tmp_path: Path) -> None:
    whole, parts = Spoken(), Spoken()
    synthesize(iter(LINES), [Voice("v", whole)], tmp_path / "whole", hours=6 / 3600, seed=3)
    for hours in (2 / 3600, 6 / 3600):
        synthesize(iter(LINES), [Voice("v", parts)], tmp_path / "parts", hours=hours, seed=3)
    assert parts.said == whole.said
    assert len({pace for _, pace in whole.said}) == 6
    assert all(PACES[0] <= pace <= PACES[1] for _, pace in whole.said)
    assert (tmp_path / "parts/train.jsonl").read_text() == (tmp_path / "whole/train.jsonl").read_text()


def test_too_little_text_is_an_error_and_what_was_spoken_stays(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"texts end after 0\.00 hours.*1 were asked for"):
        synthesize(iter(LINES[:2]), [Voice("v", Spoken())], tmp_path, hours=1, seed=1)
    assert len(read_manifest(tmp_path / "train.jsonl")) == 2


@pytest.mark.parametrize(("voices", "hours"), [([], 1.0), ([Voice("v", Spoken())], 0.0)])
def test_nothing_to_speak_with_or_for(tmp_path: Path, voices: list[Voice], hours: float) -> None:
    with pytest.raises(ConfigError, match=r"a voice and hours above 0 are needed"):
        synthesize(cycle(LINES), voices, tmp_path, hours=hours, seed=1)


def test_a_voice_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs the command flite: apt install flite"):
        open_voice("flite:slt")


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--text", "none.txt", "--voice", "hal:9000", "--hours", "1", "--out", str(tmp_path)]
    assert main(arguments) == 2
    assert "a voice is piper:FILE.onnx or flite:NAME" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("flite") is None, reason="flite is not installed")
def test_flite_speaks_faster_when_told(tmp_path: Path) -> None:
    voice = open_voice("flite:slt")
    slow, fast = (voice.speak("the quick brown fox jumps over the dog", pace) for pace in (0.8, 1.25))
    assert voice.name == "flite-slt"
    assert 1.3 < len(slow) / len(fast) < 1.8
    assert np.abs(slow).max() > 0.05
