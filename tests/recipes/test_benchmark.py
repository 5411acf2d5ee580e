"""The benchmark's arithmetic and what it runs; no time is asserted but a made-up clock's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.checkpoint import save
from asr.errors import ConfigError
from asr.model import Model
from asr.slots import StreamEngine
from asr.transcriber import transcribe
from asr.units import SAMPLE_RATE
from recipes.benchmark import Setting, build_parser, decode_together, entries, main, measure, read_audio, table
from tests.tiny_model import bursts, tiny_additive_model, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


def setting(chunk_ms: int = 160, streams: int = 1) -> Setting:
    return Setting(delay_ms=160, chunk_ms=chunk_ms, streams=streams)


def test_figures_follow_from_seconds() -> None:
    # 10 s of audio: 1 stream takes 1, 2 or 9 s (median 2: RTF 0.2); 4 streams take 4 s (RTF 0.1, half of the first).
    first, second = entries(
        [setting(), setting(streams=4)], [[9.0, 1.0, 2.0], [4.0, 4.0, 4.0]], [100, 90], [7, 28], audio_seconds=10.0
    )
    assert (first["real_time_factor"], first["ratio"], first["streams_in_real_time"]) == (0.2, 1.0, 5.0)
    assert (first["median_seconds"], first["least_seconds"], first["most_seconds"]) == (2.0, 1.0, 9.0)
    assert (second["real_time_factor"], second["ratio"], second["audio_seconds"]) == (0.1, 0.5, 40.0)
    assert (second["state_bytes_per_stream"], second["words"]) == (90, 28)


def test_the_table_s_columns_are_the_entries_figures() -> None:
    found = entries([setting(), setting(streams=8)], [[2.0], [8.0]], [3 * 2**20, 2**19], [1, 8], audio_seconds=10.0)
    rows = [line.split() for line in table(found).splitlines()]
    assert rows[1] == ["160", "160", "1", "0.2000", "1.00", "3.00"]
    assert rows[2] == ["160", "160", "8", "0.1000", "0.50", "0.50"]


def test_the_median_is_not_moved_by_one_slow_run() -> None:
    (calm,) = entries([setting()], [[1.0, 1.0, 1.0]], [1], [1], audio_seconds=1.0)
    (shaken,) = entries([setting()], [[1.0, 1.0, 60.0]], [1], [1], audio_seconds=1.0)
    assert calm["real_time_factor"] == shaken["real_time_factor"] == 1.0
    assert shaken["most_seconds"] == 60.0


def test_the_command_has_these_flags() -> None:
    args = vars(build_parser().parse_args(["--audio", "a.wav"]))
    assert args == {
        "model": "earlybird-en",
        "audio": [Path("a.wav")],
        "seconds": None,
        "delay_ms": [480],
        "chunk_ms": [320],
        "streams": [1, 8, 16],
        "threads": 1,
        "repeats": 3,
        "device": "cpu",
        "out": None,
    }


def test_settings_take_turns_after_a_warm_up(model: Model) -> None:
    ticks: Iterator[float] = iter([0, 1, 10, 13, 20, 22, 30, 33, 40, 43, 50, 59])  # pairs: 1, 3, 2, 3, 3, 9 seconds
    found = measure(model, bursts(1).numpy(), [setting(), setting(320)], clock=lambda: next(ticks))
    assert [(entry["median_seconds"], entry["most_seconds"]) for entry in found] == [(2, 3), (3, 9)]
    assert next(ticks, None) is None
    assert [entry["chunk_ms"] for entry in found] == [160, 320]


def test_the_state_of_a_stream_is_its_share_of_the_engine_s(model: Model) -> None:
    found = measure(model, bursts(0.5).numpy(), [setting(), setting(streams=3)], repeats=1)
    chunk = model.settings(delay_ms=160, chunk_ms=160).chunk
    for entry, slots in zip(found, (1, 3), strict=True):
        assert entry["state_bytes_per_stream"] == StreamEngine(model, slots=slots, chunks=[chunk]).state_bytes // slots


def test_one_stream_says_what_the_file_path_says(model: Model) -> None:
    samples = bursts(4).numpy()
    _, words = decode_together(model, samples, setting())
    assert words == len(transcribe(model, samples, delay_ms=160, chunk_ms=160).words) > 0


def test_streams_in_a_batch_hear_the_audio_from_other_places(model: Model) -> None:
    samples = bursts(4).numpy()
    engine, words = decode_together(model, samples, setting(streams=2))
    alone = [
        transcribe(model, np.roll(samples, -shift), delay_ms=160, chunk_ms=160) for shift in (0, len(samples) // 2)
    ]
    assert words == sum(len(transcript.words) for transcript in alone)
    assert alone[0].text != alone[1].text
    assert engine.free == 2


def test_nothing_to_measure_is_refused(model: Model) -> None:
    for samples, settings, repeats in (
        (np.zeros(0, dtype=np.float32), [setting()], 1),
        (bursts(1).numpy(), [], 1),
        (bursts(1).numpy(), [setting()], 0),
    ):
        with pytest.raises(ConfigError, match="need audio, settings and repeats"):
            measure(model, samples, settings, repeats=repeats)


def test_files_are_heard_in_a_row_up_to_a_length(tmp_path: Path) -> None:
    for name, value in (("a.wav", 0.25), ("b.wav", 0.5)):
        soundfile.write(tmp_path / name, np.full(1600, value), SAMPLE_RATE, subtype="FLOAT")
    paths = [tmp_path / "a.wav", tmp_path / "b.wav"]
    assert read_audio(paths, seconds=None).tolist() == [0.25] * 1600 + [0.5] * 1600
    assert read_audio(paths, seconds=0.15).tolist() == [0.25] * 1600 + [0.5] * 800


def test_the_command_prints_a_table_and_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny_additive_model(tmp_path), tmp_path / "model", "a card")
    soundfile.write(tmp_path / "a.wav", bursts(0.5).numpy(), SAMPLE_RATE)
    arguments = ["--model", str(tmp_path / "model"), "--audio", str(tmp_path / "a.wav"), "--delay-ms", "160"]
    arguments += ["--chunk-ms", "80", "160", "--streams", "1", "2", "--repeats", "1"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 4 + 4
    assert lines[0].split() == ["delay", "chunk", "streams", "RTF", "ratio", "MiB/stream"]
    found = [json.loads(line) for line in lines[5:]]
    assert [(entry["chunk_ms"], entry["streams"]) for entry in found] == [(80, 1), (80, 2), (160, 1), (160, 2)]
    assert {entry["threads"] for entry in found} == {1}
    assert table(found).splitlines() == lines[:5]


def test_the_command_writes_its_lines_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny_additive_model(tmp_path), tmp_path / "model", "a card")
    soundfile.write(tmp_path / "a.wav", bursts(0.5).numpy(), SAMPLE_RATE)
    arguments = ["--model", str(tmp_path / "model"), "--audio", str(tmp_path / "a.wav"), "--delay-ms", "160"]
    arguments += ["--chunk-ms", "320", "--streams", "1", "--repeats", "1", "--seconds", "0.2"]
    assert main([*arguments, "--out", str(tmp_path / "b.jsonl")]) == 0
    (entry,) = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert (entry["audio_seconds"], entry["chunk_ms"], entry["ratio"]) == (0.2, 320, 1.0)
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main([*arguments, "--streams", "0"]) == 2
    assert "error: an engine needs at least 1 slot" in capsys.readouterr().err


def test_the_command_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(tmp_path / "none"), "--audio", "a.wav"]) == 2
    assert "error: no model is called" in capsys.readouterr().err
