"""Preparation: every kind of source, what is left out and why, and manifests that the recipes read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import soundfile

from asr.errors import ConfigError
from recipes.data import load_audio, read_manifest
from recipes.prepare import Limits, find_clips, main, prepare
from tests.tiny_model import bursts


def sound(path: Path, seconds: float = 0.5, rate: int = 16_000, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = bursts(seconds * rate / 16_000).numpy()
    soundfile.write(path, samples[:, None].repeat(channels, 1), rate)
    return path


def folder(root: Path) -> Path:
    for name, text in (("a", "The cat."), ("b", "A dog")):
        sound(root / "own" / f"{name}.wav")
        (root / "own" / f"{name}.txt").write_text(text + "\n")
    sound(root / "own" / "deep" / "c.flac")
    return root / "own"


def run(sources: list[Path], out: Path, *, dev_share: float = 0.0, limits: Limits | None = None) -> Counter[str]:
    _, lost = prepare(sources, out, limits=limits or Limits(), dev_share=dev_share, source="own", licence="CC0")
    return lost


def test_a_folder_of_recordings_with_their_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = run([folder(tmp_path)], tmp_path / "out")
    clips = read_manifest(tmp_path / "out" / "train.jsonl")
    assert [(clip.path.name, clip.text, clip.duration_ms) for clip in clips] == [
        ("a.wav", "The cat.", 500),
        ("b.wav", "A dog", 500),
    ]
    assert all(len(load_audio(clip.path)) == 8000 for clip in clips)
    assert (clips[0].source, clips[0].licence, clips[0].speaker) == ("own", "CC0", None)
    assert lost == {"no transcript": 1}
    said = capsys.readouterr().err
    assert "left out 1 clips (0.0 s): no transcript" in said
    assert "kept 2 clips, 0.00 h: {'train': 2, 'dev': 0}" in said
    assert not (tmp_path / "out" / "dev.jsonl").exists()


def test_a_tree_like_librispeech(tmp_path: Path) -> None:
    chapter = tmp_path / "84" / "121123"
    sound(chapter / "84-121123-0000.flac")
    sound(chapter / "84-121123-0001.ogg")
    (chapter / "84-121123.trans.txt").write_text("84-121123-0000 GO ON\n84-121123-0001 DO YOU\n84-121123-0002 LOST\n")
    found = list(find_clips(tmp_path))
    assert [(clip.path.name, clip.text, clip.speaker) for clip in found] == [
        ("84-121123-0000.flac", "GO ON", "84"),
        ("84-121123-0001.ogg", "DO YOU", "84"),
        ("84-121123-0002.flac", "LOST", "84"),
    ]
    assert run([tmp_path], tmp_path / "out") == {"not readable: the file is missing": 1}


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_tables(tmp_path: Path, kind: str) -> None:
    sound(tmp_path / "clips" / "a.wav")
    rows = [
        {"path": "clips/a.wav", "sentence": 'Say "hi", Tom', "client_id": "s1"},
        {"path": "clips/a.wav", "sentence": "again", "client_id": ""},
    ]
    table = tmp_path / f"table.{kind}"
    if kind == "jsonl":
        table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        mark = "," if kind == "csv" else "\t"
        quoted = [[f'"{value}"'.replace('"hi"', '""hi""') for value in row.values()] for row in rows]
        table.write_text("\n".join(mark.join(row) for row in [list(rows[0]), *quoted]) + "\n")
    assert [(clip.text, clip.speaker) for clip in find_clips(table)] == [('Say "hi", Tom', "s1"), ("again", None)]
    assert run([table], tmp_path / "out") == {"named twice": 1}


def test_what_is_not_16_khz_mono_is_converted_once(tmp_path: Path) -> None:
    source = folder(tmp_path)
    sound(source / "a.wav", rate=44_100)
    sound(source / "b.wav", rate=16_000, channels=2)
    run([source], tmp_path / "out")
    clips = read_manifest(tmp_path / "out" / "train.jsonl")
    assert [clip.path.parent.name for clip in clips] == ["audio", "audio"]
    assert [len(load_audio(clip.path)) for clip in clips] == pytest.approx([8000, 8000], abs=20)
    before = [clip.path.stat().st_mtime_ns for clip in clips]
    run([source], tmp_path / "out")
    assert [clip.path.stat().st_mtime_ns for clip in read_manifest(tmp_path / "out" / "train.jsonl")] == before


def test_what_is_left_out_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {"ok": "fine", "short": "no", "long": "much", "wordy": "a" * 60, "signs": "--", "broken": "yes"}
    rows = []
    for name, text in texts.items():
        sound(tmp_path / f"{name}.wav", {"short": 0.2, "long": 3.0}.get(name, 1.0))
        rows.append(json.dumps({"audio": f"{name}.wav", "text": text}))
    (tmp_path / "broken.wav").write_text("no audio")
    (tmp_path / "table.jsonl").write_text("\n".join(rows))
    lost = run([tmp_path / "table.jsonl"], tmp_path / "out", limits=Limits(min_ms=300, max_ms=2000))
    assert lost == {
        "shorter than min_ms=300": 1,
        "longer than max_ms=2000": 1,
        "more than 30 letters a second": 1,
        "no letter or digit in the transcript": 1,
        "not readable: UnknownContainer": 1,
    }
    assert "left out 1 clips (3.0 s): longer than max_ms=2000" in capsys.readouterr().err


def test_speakers_are_in_one_part_and_stay_there(tmp_path: Path) -> None:
    def speakers(count: int) -> dict[str, set[str | None]]:
        rows = []
        for i in range(count):
            sound(tmp_path / f"{i}.wav", 0.3)
            rows.append(json.dumps({"audio": f"{i}.wav", "text": "hi", "speaker": f"s{i // 2}"}))
        (tmp_path / "table.jsonl").write_text("\n".join(rows))
        run([tmp_path / "table.jsonl"], tmp_path / "out", dev_share=0.3)
        return {
            part: {clip.speaker for clip in read_manifest(tmp_path / "out" / f"{part}.jsonl")}
            for part in ("train", "dev")
        }

    few, many = speakers(20), speakers(40)
    assert not many["train"] & many["dev"]
    assert len(many["train"] | many["dev"]) == 20
    assert few["dev"] <= many["dev"]
    assert 2 <= len(many["dev"]) <= 10


def test_what_cannot_be_prepared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.csv").write_text("name,text\na,b\n")
    with pytest.raises(ConfigError, match="entry 1: names no recording"):
        list(find_clips(tmp_path / "table.csv"))
    with pytest.raises(ConfigError, match="neither a folder nor"):
        list(find_clips(tmp_path / "none.wav"))
    with pytest.raises(ConfigError, match="dev_share is 1"):
        run([tmp_path], tmp_path / "out", dev_share=1.0)
    with pytest.raises(ConfigError, match="need 0 < min_ms"):
        Limits(min_ms=5, max_ms=4)
    sound(tmp_path / "empty" / "a.wav")
    assert main([str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 2
    assert "error: no clip is left of 1: {'no transcript': 1}" in capsys.readouterr().err
    assert main([str(folder(tmp_path)), "--out", str(tmp_path / "out"), "--source", "mine"]) == 0
    assert read_manifest(tmp_path / "out" / "train.jsonl")[0].source == "mine"
