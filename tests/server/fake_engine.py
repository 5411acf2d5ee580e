"""A recogniser that hears one word a second, with the contract of the real one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest
import torch

import asr
import asr.files
import asr.jobs
from asr.errors import CheckpointError, ConfigError, EarlybirdError
from asr.resample import Samples
from asr.words import DecodeStats, Transcript, Word
from server import runners
from server.batch_worker import in_this_process
from server.capacity import StepCost

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def transcript_of(samples: int) -> Transcript:
    """A word a whole second, spoken in its first half and committed at its end."""
    words = tuple(
        Word(text=f"w{LETTERS[k]}", start_ms=1000 * k, end_ms=1000 * k + 500, emitted_ms=1000 * k + 980, confidence=0.9)
        for k in range(samples // 16_000)
    )
    stats = DecodeStats(audio_samples=samples, steps=samples // 1_280, decoder_calls=len(words))
    return Transcript(words=words, audio_samples=samples, stats=stats, settings={"delay_ms": 480})


@dataclass
class FakeModel:
    name: str

    def describe(self) -> dict[str, object]:
        return {"chunk_ms": [80, 320], "delay_ms": [160, 480]}


@dataclass
class FakeEngine:
    """What was asked of it."""

    loads: list[tuple[str, str]] = field(default_factory=list)
    calls: list[dict[str, int]] = field(default_factory=list)

    def measure(self, model: FakeModel, *, delay_ms: int, chunk_ms: int) -> StepCost:
        return StepCost(chunk_ms=chunk_ms, one_ms=80.0, many_ms=260.0)

    def load(self, name: str, device: str = "cpu") -> FakeModel:
        self.loads.append((name, device))
        if name == "missing":
            raise CheckpointError("no model is called 'missing'; installed: earlybird-en")
        return FakeModel(name)

    def transcribe_streams(
        self, model: FakeModel, jobs: Iterable[tuple[str, Iterable[Samples]]], **settings: int
    ) -> Iterator[tuple[str, Transcript | EarlybirdError]]:
        self.calls.append(settings)
        if settings["chunk_ms"] not in (80, 320):
            raise ConfigError(f"chunk_ms is {settings['chunk_ms']}; {model.name} was made for 80, 320")
        return self._results(jobs)

    def _results(
        self, jobs: Iterable[tuple[str, Iterable[Samples]]]
    ) -> Iterator[tuple[str, Transcript | EarlybirdError]]:
        for key, blocks in jobs:
            try:
                samples = sum(len(block) for block in blocks)
            except EarlybirdError as error:
                yield key, error
            else:
                yield key, transcript_of(samples)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    """The fake in place of the recogniser; the number of threads is put back afterwards."""
    threads = torch.get_num_threads()
    fake = FakeEngine()
    monkeypatch.setattr(asr, "load", fake.load, raising=False)
    monkeypatch.setattr(asr.jobs, "transcribe_streams", fake.transcribe_streams)
    monkeypatch.setattr(asr.files, "transcribe_streams", fake.transcribe_streams)
    # The fake is in this process alone.
    monkeypatch.setattr(runners, "in_processes", lambda *args, workers, **named: in_this_process(*args, **named))
    monkeypatch.setattr("server.capacity.measure", fake.measure)
    yield fake
    torch.set_num_threads(threads)
