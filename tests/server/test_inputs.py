from pathlib import Path, PurePath

import numpy as np
import pytest
import soundfile

from asr.errors import ConfigError
from server.inputs import Input, Selection, expected_seconds, find_inputs, read_list


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def names(inputs: list[Input]) -> list[str]:
    return [entry.name.as_posix() for entry in inputs]


def test_patterns_choose_among_what_a_folder_holds(tmp_path: Path) -> None:
    touch(tmp_path, "a.wav", "b.mp3", "c.dat", "old/d.wav", "new/e.wav", "new/tmp/f.wav")

    def found(**patterns: tuple[str, ...]) -> list[str]:
        return names(find_inputs([tmp_path], log=print, select=Selection(**patterns)))

    assert found() == ["a.wav", "b.mp3", "new/e.wav", "new/tmp/f.wav", "old/d.wav"]
    assert found(include=("*.dat", "b.*")) == ["b.mp3", "c.dat"]
    assert found(include=("new/*.wav",), exclude=("tmp",)) == ["new/e.wav"]
    assert found(exclude=("old", "*.mp3")) == ["a.wav", "new/e.wav", "new/tmp/f.wav"]
    assert names(find_inputs([tmp_path / "a.wav"], log=print, select=Selection(exclude=("*",)))) == ["a.wav"]
    with pytest.raises(ConfigError, match="no audio file in"):
        found(include=("*.flac",))


def test_a_folder_named_like_a_file_is_searched_or_fails_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "full.wav/inner.wav", "empty.wav/notes.txt")
    assert names(find_inputs([tmp_path], log=print)) == ["empty.wav", "full.wav/inner.wav"]


def test_a_link_that_leads_nowhere_is_taken(tmp_path: Path) -> None:
    (tmp_path / "x.wav").symlink_to("gone.wav")
    assert names(find_inputs([tmp_path], log=print)) == ["x.wav"]


def test_listed_files_keep_their_place_below_what_holds_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "in/x/a.wav", "in/y/a.wav", "in/y/deep/b.wav")
    monkeypatch.chdir(tmp_path)
    listed = [Path("in/x/a.wav"), tmp_path / "in/y"]
    assert names(find_inputs([], log=print, listed=listed)) == ["x/a.wav", "y/a.wav", "y/deep/b.wav"]
    assert names(find_inputs([], log=print, listed=[Path("in/x/a.wav")])) == ["a.wav"]
    both = find_inputs([Path("in/x")], log=print, listed=listed)
    assert names(both) == ["a.wav", "y/a.wav", "y/deep/b.wav"], "the first place of a file counts"


def test_lists_are_by_line_or_by_nul(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"a.wav\r\nb c.wav\n\n-x.wav\n")
    assert read_list(tmp_path / "list") == [Path("a.wav"), Path("b c.wav"), Path("-x.wav")]
    (tmp_path / "list").write_bytes(b"a\nb.wav\0\xff.wav\0")
    assert read_list(tmp_path / "list") == [Path("a\nb.wav"), Path("\udcff.wav")]
    (tmp_path / "list").write_bytes(b"\n")
    with pytest.raises(ConfigError, match="names no file"):
        read_list(tmp_path / "list")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_list(tmp_path / "gone")


def test_lengths_are_known_or_guessed_and_never_fail(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", np.zeros(24_000), 8_000)
    (tmp_path / "b.mp4").write_bytes(bytes(32_000))
    touch(tmp_path, "bad.wav")
    lengths = [expected_seconds(tmp_path / name) for name in ("a.flac", "b.mp4", "bad.wav", "gone.wav", "gone.mp4")]
    assert lengths == [3.0, 2.0, 0.0, 0.0, 0.0]


def test_the_place_of_a_bare_file_is_its_name(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.wav")
    assert find_inputs([tmp_path / "in/a.wav"], log=print) == [
        Input(path=tmp_path / "in/a.wav", name=PurePath("a.wav"))
    ]
