import json
import os
from pathlib import Path

import pytest

from asr.errors import ConfigError
from server.journal import (
    JOURNAL_NAME,
    SAMPLE_BYTES,
    SAMPLES,
    Entry,
    Identity,
    Journal,
    identity_of,
    settings_digest,
)

DONE = Entry(
    file="in/a.wav",
    out="a",
    status="done",
    seconds=2.0,
    audio_seconds=30.0,
    warnings=("cut",),
    identity=Identity(size=9, time=123, hash="ab"),
    formats=("txt", "json"),
    settings="s",
)
FAILED = Entry(file="in/b.wav", out="b", status="failed", seconds=0.0, audio_seconds=0.0, error="EmptyAudio: x")


def test_what_is_written_down_is_there_next_time(tmp_path: Path) -> None:
    with Journal(tmp_path / "out") as journal:
        journal.begin({"files": 2})
        journal.add(DONE)
        journal.add(FAILED)
    with Journal(tmp_path / "out") as journal:
        assert journal.entries == {"a": DONE, "b": FAILED}
    lines = [json.loads(line) for line in (tmp_path / "out" / JOURNAL_NAME).read_text().splitlines()]
    assert lines[0] == {"run": {"files": 2}}
    assert {key: lines[1][key] for key in ("file", "status", "seconds", "audio_seconds", "speed", "error")} == {
        "file": "in/a.wav", "status": "done", "seconds": 2.0, "audio_seconds": 30.0, "speed": 15.0, "error": None
    }  # fmt: skip
    assert lines[2]["speed"] is None


def test_the_newest_line_counts(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.add(DONE)
        journal.add(Entry(file="in/a.wav", out="a", status="failed", seconds=0.0, audio_seconds=0.0, error="x"))
    with Journal(tmp_path) as journal:
        assert journal.entries["a"].status == "failed"


def test_a_journal_cut_at_any_byte_is_read_up_to_there(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.add(DONE)
        first = (tmp_path / JOURNAL_NAME).stat().st_size
        journal.add(FAILED)
    data = (tmp_path / JOURNAL_NAME).read_bytes()
    for end in range(len(data) + 1):
        (tmp_path / JOURNAL_NAME).write_bytes(data[:end])
        with Journal(tmp_path) as journal:
            whole = {"a": DONE} if end >= first - 1 else {}
            assert journal.entries == (whole | {"b": FAILED} if end >= len(data) - 1 else whole)
            journal.add(FAILED)
        with Journal(tmp_path) as journal:
            assert journal.entries == whole | {"b": FAILED}, "what is added behind a cut line is whole"


def test_lines_of_others_are_left_out(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_NAME).write_bytes(b'[1]\n"x"\n{"file": 1}\n\xff\xfe\n\n')
    with Journal(tmp_path) as journal:
        assert journal.entries == {}


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(ConfigError, match="another run is writing to"):
        Journal(tmp_path)
    with Journal(tmp_path) as journal:
        journal.add(DONE)


def test_names_of_any_bytes(tmp_path: Path) -> None:
    odd = Entry(file="x", out=os.fsdecode(b"\xff"), status="failed", seconds=0.0, audio_seconds=0.0, error="y\n")
    with Journal(tmp_path) as journal:
        journal.add(odd)
    assert (tmp_path / JOURNAL_NAME).read_bytes().count(b"\n") == 1


def test_identity_is_by_content_time_and_size(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"one")
    os.utime(path, ns=(1, 1))
    before = identity_of(path)
    assert before is not None
    assert (before.size, before.time) == (3, 1)
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    after = identity_of(path)
    assert after is not None
    assert (after.size, after.time) == (before.size, before.time)
    assert after.hash != before.hash
    assert identity_of(tmp_path) is identity_of(tmp_path / "gone") is None
    (tmp_path / "empty").touch()
    assert identity_of(tmp_path / "empty") is not None


@pytest.mark.parametrize("size", [1, SAMPLE_BYTES, SAMPLE_BYTES + 1, SAMPLES * SAMPLE_BYTES])
def test_every_byte_of_a_file_that_is_not_long_counts(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a"
    content = bytearray(size)
    path.write_bytes(content)
    before = identity_of(path)
    for place in {0, size // 2, size - 1, min(size - 1, SAMPLE_BYTES)}:
        changed = content.copy()
        changed[place] = 1
        path.write_bytes(changed)
        after = identity_of(path)
        assert before is not None
        assert after is not None
        assert after.hash != before.hash


def test_of_a_long_file_the_ends_count_and_little_is_read(tmp_path: Path) -> None:
    path, size = tmp_path / "a", 3 * SAMPLES * SAMPLE_BYTES
    hashes = set()
    for place in (1, SAMPLE_BYTES - 1, size - 1, size - SAMPLE_BYTES):
        with path.open("wb") as file:
            file.truncate(size)
            file.seek(place)
            file.write(b"x")
        identity = identity_of(path)
        assert identity is not None
        hashes.add(identity.hash)
    assert len(hashes) == 4


def test_settings_have_a_short_name() -> None:
    assert settings_digest({"a": 1, "b": None}) == settings_digest({"b": None, "a": 1})
    assert settings_digest({"a": 1}) != settings_digest({"a": 2})
