"""Manifests, audio and filters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import AudioFormatError, ConfigError, EmptyAudio, InvalidSamples, UnknownContainer
from recipes.data import Clip, filter_by_duration, group_by_subset, load_audio, normalize_english, read_manifest

LINE: dict[str, Any] = {
    "audio": "a/b.opus",
    "duration": 1.2345,
    "text": "It’s here.",
    "speaker": "s1",
    "source": "made",
    "licence": "CC0",
    "subset_tag": "accented",
    "age": 7,
}


def manifest(folder: Path, *lines: Any) -> Path:
    path = folder / "clips.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def clip(name: str, duration_ms: int, tag: str | None = None) -> Clip:
    return Clip(
        audio=name,
        path=Path(name),
        duration_ms=duration_ms,
        text="x",
        speaker=None,
        source="made",
        licence="CC0",
        subset_tag=tag,
    )


def test_a_line_becomes_a_clip(tmp_path: Path) -> None:
    bare = {"audio": "c.opus", "duration": 2, "source": "made", "licence": "CC0"}
    first, second = read_manifest(manifest(tmp_path, LINE, "", bare))
    assert first.path == tmp_path / "a" / "b.opus"
    assert (first.duration_ms, first.text, first.speaker) == (1234, "It’s here.", "s1")
    assert (first.subset_tag, dict(first.extra)) == ("accented", {"age": 7})
    assert (second.duration_ms, second.text, second.speaker, second.subset_tag) == (2000, None, None, None)


def test_a_clip_cannot_be_changed(tmp_path: Path) -> None:
    (first,) = read_manifest(manifest(tmp_path, LINE))
    with pytest.raises(AttributeError):
        first.text = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        first.extra["age"] = 8  # type: ignore[index]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: need a JSON object, got list"),
        ({"audio": "c", "duration": 1}, "line 2: lacks source, licence"),
        (LINE | {"audio": "c", "duration": 0}, "line 2: duration is 0; need seconds above 0"),
        (LINE | {"audio": "c", "duration": "1"}, "line 2: duration is '1'"),
        (LINE, "line 2: 'a/b.opus' is listed twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_manifest(manifest(tmp_path, LINE, line))


def test_filter_keeps_both_bounds_and_names_the_setting() -> None:
    clips = [clip("a", 499), clip("b", 500), clip("c", 2000), clip("d", 2001), clip("e", 9000)]
    said: list[str] = []
    kept = filter_by_duration(clips, min_ms=500, max_ms=2000, report=said.append)
    assert [c.audio for c in kept] == ["b", "c"]
    assert said == [
        "dropped 1 of 5 clips (0.5 s): shorter than min_ms=500",
        "dropped 2 of 5 clips (11.0 s): longer than max_ms=2000",
    ]


def test_filter_is_silent_when_nothing_goes_and_speaks_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(filter_by_duration([clip("a", 500)], min_ms=1, max_ms=1000)) == 1
    assert capsys.readouterr().err == ""
    filter_by_duration([clip("a", 500)], min_ms=1, max_ms=100)
    assert "max_ms=100" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"min_ms \(5\) must not exceed max_ms \(4\)"):
        filter_by_duration([], min_ms=5, max_ms=4)


def test_groups_are_sorted_and_untagged_clips_go_under_their_source() -> None:
    groups = group_by_subset([clip("a", 1, "z"), clip("b", 1), clip("c", 1, "z")])
    assert {tag: [c.audio for c in clips] for tag, clips in groups.items()} == {"made": ["b"], "z": ["a", "c"]}
    assert list(groups) == ["made", "z"]


def test_audio_is_float32_in_the_files_own_scale(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.array([0, 16384, -32768], dtype=np.int16), 16_000)
    samples = load_audio(path)
    assert samples.dtype == torch.float32
    assert samples.tolist() == [0.0, 0.5, -1.0]


@pytest.mark.parametrize(
    ("samples", "rate", "error", "message"),
    [
        (np.zeros(10, np.float32), 8_000, AudioFormatError, "8000 Hz, 1 channels; data sets need 16000 Hz mono"),
        (np.zeros((10, 2), np.float32), 16_000, AudioFormatError, "16000 Hz, 2 channels"),
        (np.zeros(0, np.float32), 16_000, EmptyAudio, "no sample"),
        (np.array([0, np.nan], np.float32), 16_000, InvalidSamples, "NaN or infinity among 2 samples"),
    ],
)
def test_audio_that_does_not_fit_is_refused(
    tmp_path: Path, samples: np.ndarray[Any, Any], rate: int, error: type[Exception], message: str
) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, samples, rate, subtype="FLOAT")
    with pytest.raises(error, match=message):
        load_audio(path)


def test_a_file_that_is_no_audio_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.opus"
    path.write_text("text")
    with pytest.raises(UnknownContainer, match=r"a\.opus: libsndfile cannot read it"):
        load_audio(path)


def test_folders_of_the_manifest_do_not_depend_on_where_it_is_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = manifest(tmp_path, LINE)
    monkeypatch.chdir(tmp_path)
    (relative,) = read_manifest(path.name)
    (absolute,) = read_manifest(path)
    assert relative.path.resolve() == absolute.path.resolve()
    assert relative.audio == absolute.audio == "a/b.opus"


@given(
    durations=st.lists(st.integers(1, 60_000), max_size=8),
    bounds=st.tuples(st.integers(0, 60_000), st.integers(0, 60_000)),
)
def test_what_is_kept_and_what_is_counted_make_up_the_whole(durations: list[int], bounds: tuple[int, int]) -> None:
    clips = [clip(str(i), duration) for i, duration in enumerate(durations)]
    said: list[str] = []
    kept = filter_by_duration(clips, min_ms=min(bounds), max_ms=max(bounds), report=said.append)
    dropped = sum(int(line.split()[1]) for line in said)
    assert len(kept) + dropped == len(clips)
    assert all(min(bounds) <= c.duration_ms <= max(bounds) for c in kept)
    assert [c for c in clips if c in kept] == list(kept)


def test_scoring_text_is_the_rule_of_the_metrics() -> None:
    assert normalize_english("Colour: TWENTY-TWO!") == "color 22"
