import json
import os
import stat
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import ConfigError
from asr.results import FileResult
from asr.words import Transcript
from server.writers import (
    RENDERERS,
    output_stems,
    parse_formats,
    render_json,
    render_json_line,
    render_text,
    result_name,
    write_atomically,
)
from tests.server.fake_engine import transcript_of


def result_of(*transcripts: Transcript, warnings: tuple[str, ...] = ()) -> FileResult:
    return FileResult(path=Path("a.wav"), transcripts=transcripts, warnings=warnings)


NOTHING_SAID = result_of(Transcript(words=(), audio_samples=16_000))


def test_text() -> None:
    assert render_text(result_of(transcript_of(32_000)), "a.wav") == "wa wb\n"
    assert render_text(NOTHING_SAID, "a.wav") == ""


def test_json_has_the_documented_keys_and_seconds() -> None:
    result = json.loads(render_json(result_of(transcript_of(16_000), warnings=("clipped",)), "日本.wav"))
    assert list(result) == ["file", "duration", "text", "words", "stats", "settings", "warnings"]
    assert result["words"] == [
        {"text": "wa", "start": 0.0, "end": 0.5, "emitted": 0.98, "delay": 0.48, "confidence": 0.9}
    ]
    assert (result["file"], result["duration"], result["warnings"]) == ("日本.wav", 1.0, ["clipped"])
    assert result["settings"] == {"delay_ms": 480}


@pytest.mark.parametrize("render", [render_json, render_json_line])
def test_silence_is_a_valid_result(render: object) -> None:
    result = json.loads(render(NOTHING_SAID, "a.wav"))  # type: ignore[operator]
    assert (result["text"], result["words"], result["warnings"]) == ("", [], [])


def test_a_json_line_is_one_line_whatever_the_name() -> None:
    line = render_json_line(result_of(transcript_of(16_000)), "a\nb\u2028.wav")
    assert line.count("\n") == 1
    assert json.loads(line)["file"] == "a\nb\u2028.wav"


def test_formats() -> None:
    assert parse_formats("json, txt,json") == ("json", "txt")
    for formats in ("", "txt,", "srtx"):
        with pytest.raises(ConfigError, match=r"it must be one or more of txt,json,srt,vtt,ctm"):
            parse_formats(formats)


def test_a_name_that_is_no_utf_8_is_stated_by_its_bytes() -> None:
    assert result_name(os.fsdecode(b"\xff.wav")) == r"\xff.wav"
    assert result_name(Path("é.wav")) == "é.wav"


def stems(*names: str) -> list[str]:
    return [str(stem) for stem in output_stems(PurePath(name) for name in names).values()]


def test_only_colliding_stems_keep_their_suffix() -> None:
    assert stems("a.mp3", "a.wav", "sub/a.wav", "b.wav") == ["a.mp3", "a.wav", "sub/a", "b"]
    assert stems("a.mp3", "a.wav", "a.mp3.wav") == ["a.mp3", "a.wav", "a.mp3.wav"]
    assert stems("a", "a.wav", ".wav") == ["a", "a.wav", ".wav"]


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"several inputs would be written to b\.wav\.\*"):
        stems("a.wav", "b.wav", "b.wav")


def test_a_name_too_long_for_a_suffix_is_cut_and_marked(tmp_path: Path) -> None:
    names = ["x" * 251 + ".wav", "x" * 250 + "y.wav", "é" * 125 + ".wav", "z" * 250]
    placed = stems(*names)
    assert placed[3] == "z" * 250
    assert len(set(placed)) == 4
    for stem in placed:
        assert len(os.fsencode(f"{stem}.json")) <= 255
        write_atomically(tmp_path / f"{stem}.json", "text")
    assert placed[2] == "é" * 125
    assert placed[0].startswith("x" * 241 + "~")


part = st.text("ab.", min_size=1, max_size=6).filter(lambda text: text.strip("."))


@given(names=st.lists(st.lists(part, min_size=1, max_size=2).map(lambda parts: PurePath(*parts)), unique=True))
def test_no_two_inputs_share_an_output(names: list[PurePath]) -> None:
    placed = output_stems(names)
    assert list(placed) == names
    outputs = [f"{stem}.{suffix}" for stem in placed.values() for suffix in RENDERERS]
    assert len(set(outputs)) == len(outputs)


def test_writing_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "x" / "y" / "a.txt"
    write_atomically(path, "one\n")
    write_atomically(path, "日本\n")
    assert path.read_bytes() == "日本\n".encode()
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \udcff")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_the_longest_name_the_file_system_allows(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("x" * 251 + ".txt"), "text")
    with pytest.raises(OSError, match="too long"):
        write_atomically(tmp_path / ("x" * 252 + ".txt"), "text")
    assert len(list(tmp_path.iterdir())) == 1
