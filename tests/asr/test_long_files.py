"""What is held does not grow with the length of a file."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from asr.files import transcribe_files
from asr.model import Model
from asr.resample import Samples
from asr.units import SAMPLE_RATE
from tests.asr.test_vad import LoudDetector
from tests.scripted import codes, scripted_model


@pytest.fixture
def scripted(tmp_path: Path) -> Model:
    return scripted_model(tmp_path)


class Endless:
    """In place of a file: a minute of silence with a word in it, many times over."""

    channels = 1
    warnings: tuple[str, ...] = ()

    def __init__(self, minutes: int) -> None:
        self._minutes = minutes

    def __enter__(self) -> "Endless":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def blocks(self) -> Iterator[Samples]:
        minute = codes(*[0] * 700, 50, 51, *[0] * 48)
        for _ in range(self._minutes):
            yield from np.split(minute, 12)


def peak_bytes(model: Model, minutes: int, monkeypatch: pytest.MonkeyPatch, **options: object) -> tuple[int, int]:
    """The most that was allocated at once while so many minutes were transcribed, and how many words they had."""
    monkeypatch.setattr("asr.files.open_audio", lambda path, channel="mix": Endless(minutes))
    tracemalloc.start()
    (result,) = transcribe_files(model, ["a.wav"], delay_ms=80, chunk_ms=1600, batch_size=1, **options)  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.audio_samples == minutes * 60 * SAMPLE_RATE
    return peak, len(result.transcripts[0].words)


@pytest.mark.parametrize("vad", [None, LoudDetector()])
def test_what_is_held_does_not_grow_with_the_length_of_a_file(
    scripted: Model, monkeypatch: pytest.MonkeyPatch, vad: LoudDetector | None
) -> None:
    options = {} if vad is None else {"vad": vad}
    peak_bytes(scripted, 1, monkeypatch, **options)  # what is kept once
    short, _ = peak_bytes(scripted, 1, monkeypatch, **options)
    long, words = peak_bytes(scripted, 6, monkeypatch, **options)
    one_minute = 60 * SAMPLE_RATE * 4
    assert long - short < 0.05 * one_minute + 2_000 * words, "five more minutes cost their words"
