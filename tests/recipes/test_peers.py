"""The comparison with faster-whisper, with a faster-whisper whose answers are known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from asr.errors import ConfigError
from asr.resample import Samples
from recipes import peers
from recipes.align import AlignedClip, AlignedWord
from recipes.local_agreement import Hypothesis, TimedWord
from recipes.peers import FasterWhisper, build_parser, main, remembered, row, table

SPOKEN = "the cat sat on the mat"
"""A word every half second."""


class Whisper:
    """Hears a word for every half second of audio that is whole; the last one heard in a stream is always wrong."""

    asked: list[dict[str, Any]] = []  # noqa: RUF012 - one list for all, emptied by the fixture

    def __init__(self, folder: str, **options: Any) -> None:
        if options["compute_type"] == "int3":
            raise ValueError("unsupported")
        Whisper.asked.append({"folder": Path(folder).name, **options})

    def transcribe(self, samples: Samples, **options: Any) -> tuple[Any, None]:
        Whisper.asked.append({"ms": len(samples) // 16, **options})
        count = len(samples) // 8000
        heard = SPOKEN.split()[:count]
        if options.get("word_timestamps") and count < len(SPOKEN.split()):
            heard[-1:] = ["mumble"]
        words = [
            SimpleNamespace(word=f" {word}", start=0.5 * i, end=0.5 * (i + 1), probability=0.5)
            for i, word in enumerate(heard)
        ]
        speech = SimpleNamespace(text=" " + " ".join(heard), words=words, end=0.5 * count, no_speech_prob=0.9)
        noise = SimpleNamespace(text="", words=words[:1], end=0.5 * count, no_speech_prob=0.91)
        return iter([speech, noise]), None


@pytest.fixture
def whisper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a model; a second of processor time passes with each look at the clock."""
    faster, library = ModuleType("faster_whisper"), ModuleType("ctranslate2")
    monkeypatch.setattr(faster, "WhisperModel", Whisper, raising=False)
    monkeypatch.setattr(library, "set_random_seed", lambda _: None, raising=False)
    monkeypatch.setitem(sys.modules, "faster_whisper", faster)
    monkeypatch.setitem(sys.modules, "ctranslate2", library)
    now = iter(np.arange(0, 1000, 0.25))
    monkeypatch.setattr(peers, "time", SimpleNamespace(process_time=lambda: float(next(now))))
    Whisper.asked.clear()
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"")
    return folder


@pytest.fixture
def data(whisper: Path, tmp_path: Path) -> list[str]:
    """Arguments: one clip of 3 s, its words aligned where they are spoken."""
    soundfile.write(tmp_path / "a.wav", np.zeros(48_000), 16_000)
    entry = {"audio": "a.wav", "duration": 3.0, "text": SPOKEN, "source": "made", "licence": "CC0"}
    (tmp_path / "clips.jsonl").write_text(json.dumps(entry))
    words = tuple(
        AlignedWord(text=word, start_ms=500 * i, end_ms=500 * (i + 1)) for i, word in enumerate(SPOKEN.split())
    )
    (tmp_path / "aligned.jsonl").write_text(AlignedClip(audio="a.wav", text=SPOKEN, words=words).to_json())
    files = ["--manifest", str(tmp_path / "clips.jsonl"), "--alignments", str(tmp_path / "aligned.jsonl")]
    return ["--ctranslate2", str(whisper), "--out", str(tmp_path / "out.jsonl"), *files]


def lines(data: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(data[3]).read_text().splitlines()]


def test_known_answers(data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*data, "--beam", "2", "--chunk-ms", "1000"]) == 0
    found = lines(data)
    assert [(entry["chunk_ms"], entry["clock"]) for entry in found] == [
        (None, "audio"), (None, "wall"), (1000, "audio"), (1000, "wall")
    ]  # fmt: skip
    for entry in found:
        assert (entry["model"], entry["beam"], entry["compute_type"], entry["clips"]) == ("tiny", 2, "int8", 1)
        assert (entry["wer"], entry["interval"], entry["cer"], entry["cer_interval"]) == (0.0, [0.0, 0.0], 0.0, [0, 0])
        assert entry["delay"]["matched"] == 6
    whole, whole_wall, audio, wall = found
    # Whole: all words at 3 s. Streamed: at 1 s "the mumble", at 2 s "the" is committed, at 3 s all the rest.
    assert (whole["delay"]["p50_ms"], whole_wall["delay"]["p50_ms"]) == (1250, 1500)
    assert audio["delay"]["p50_ms"] == 1250  # 1500 for "the", then 2000, 1500, 1000, 500, 0
    # A look takes 0.25 s and each begins with its chunk, so that every word is there so much later.
    assert wall["delay"]["p50_ms"] == 1500
    assert [entry["real_time_factor"] for entry in found] == [0.083, 0.083, 0.25, 0.25]
    assert capsys.readouterr().out.strip() == table(found)


def test_a_look_that_both_clocks_need_is_computed_once(data: list[str]) -> None:
    main([*data, "--beam", "1", "--chunk-ms", "1000"])
    loads = [asked["folder"] for asked in Whisper.asked if "folder" in asked]
    assert loads == ["tiny", "tiny"]
    looks = [asked["ms"] for asked in Whisper.asked if asked.get("word_timestamps")]
    assert looks == [3000, 3000, 1000, 2000, 3000]  # the first of each setting is to warm up
    assert all(asked["initial_prompt"] is None for asked in Whisper.asked if asked.get("word_timestamps"))


def test_settings_that_are_there_are_skipped(data: list[str]) -> None:
    main([*data, "--beam", "1", "--chunk-ms"])
    first = lines(data)
    main([*data, "--beam", "1", "3", "--chunk-ms"])
    assert lines(data)[:2] == first
    assert [entry["beam"] for entry in lines(data)] == [1, 1, 3, 3]


def test_memory_answers_with_the_seconds_it_took_then() -> None:
    asked: list[tuple[int, str]] = []

    def look(samples: Samples, prompt: str) -> tuple[Hypothesis, float]:
        asked.append((len(samples), prompt))
        return Hypothesis(words=(), segment_ends_ms=(len(asked),)), float(len(asked))

    known = remembered(look)
    zeros, ones = np.zeros(4, dtype=np.float32), np.ones(4, dtype=np.float32)
    assert [known(zeros, "a")[1], known(ones, "a")[1], known(zeros, "b")[1], known(zeros.copy(), "a")[1]] == [
        1,
        2,
        3,
        1,
    ]
    assert len(asked) == 3


def test_what_is_likely_no_speech_is_left_out(whisper: Path) -> None:
    found, seconds = FasterWhisper(whisper, beam=1, compute_type="int8").look(np.zeros(48_000, dtype=np.float32), "so")
    assert [word.text.strip() for word in found.words] == SPOKEN.split()  # not the noise's word
    assert found.words[1] == TimedWord(text=" cat", start_ms=500, end_ms=1000, confidence=0.5)
    assert (found.segment_ends_ms, seconds) == ((3000, 3000), 0.25)
    assert Whisper.asked[-1]["initial_prompt"] == "so"
    assert Whisper.asked[0]["cpu_threads"] == 1


def test_without_faster_whisper_the_error_says_how_to_get_it(
    data: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    assert main(data) == 2
    assert "pip install 'earlybird-asr[compare]'" in capsys.readouterr().err


def test_what_cannot_be_loaded_is_named(whisper: Path, data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded as int3"):
        FasterWhisper(whisper, beam=1, compute_type="int3")
    with pytest.raises(ConfigError, match=r"no model\.bin"):  # never asks a model hub for "base"
        FasterWhisper(Path("base"), beam=1, compute_type="int8")
    assert main([*data, "--subset", "none"]) == 2
    assert "no clip" in capsys.readouterr().err


def test_a_row_for_people() -> None:
    entry = {
        "model": "tiny",
        "beam": 5,
        "chunk_ms": 500,
        "clock": "wall",
        "wer": 7.5,
        "interval": [6.94, 8.2],
        "cer": 3.0,
        "cer_interval": None,
        "delay": {"p50_ms": 1750, "p90_ms": None},
        "real_time_factor": 0.5,
    }
    assert row(entry).split() == ["tiny", "5", "agreement", "500", "ms", "wall", "7.50", "6.9-8.2", "3.00", "nan-nan",
                                  "1750", "-", "0.500"]  # fmt: skip
    assert len(table([entry]).splitlines()) == 2


def test_the_flags() -> None:
    args = vars(build_parser().parse_args(["--ctranslate2", "f", "--manifest", "m", "--alignments", "a"]))
    assert set(args) == {
        "ctranslate2", "compute_type", "beam", "chunk_ms", "manifest", "alignments", "every", "subset", "out"
    }  # fmt: skip
    assert (args["beam"], args["chunk_ms"], args["compute_type"]) == ([1, 5], [500, 1000], "int8")
