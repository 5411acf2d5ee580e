from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asr import jobs as jobs_module
from asr.errors import ConfigError, EarlybirdError, InvalidSamples, TruncatedAudio
from asr.jobs import Job, transcribe_streams
from asr.model import Model
from asr.resample import Samples
from asr.text import TextDelta
from asr.transcriber import Stream, advance, transcribe
from asr.words import Transcript
from tests.scripted import codes, say, scripted_model
from tests.tiny_model import bursts, tiny_model

OPTIONS = {"delay_ms": 80, "chunk_ms": 160}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def scripted(tmp_path: Path) -> Model:
    return scripted_model(tmp_path)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(0, 30_000), max_size=6), batch_size=st.integers(1, 4), piece=st.integers(900, 9000))
def test_a_files_text_is_the_same_in_any_batch(tiny: Model, lengths: list[int], batch_size: int, piece: int) -> None:
    clips = {str(n): bursts(2, n).numpy()[:length] for n, length in enumerate(lengths)}
    jobs = [(key, np.split(clip, range(piece, len(clip), piece))) for key, clip in clips.items()]
    results = dict(transcribe_streams(tiny, jobs, batch_size=batch_size, **OPTIONS))
    assert results.keys() == clips.keys()
    for key, result in results.items():
        alone = transcribe(tiny, clips[key], **OPTIONS)
        assert isinstance(result, Transcript)
        assert (result.text, result.audio_samples, result.settings) == (alone.text, len(clips[key]), alone.settings)
        assert [w.start_ms for w in result.words] == [w.start_ms for w in alone.words]


def test_jobs_are_opened_when_a_slot_is_free_and_closed_at_once(
    scripted: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    batches: list[int] = []

    def counted(streams: Iterable[Stream]) -> list[tuple[Stream, TextDelta]]:
        streams = list(streams)
        batches.append(len(streams))
        return advance(streams)

    monkeypatch.setattr(jobs_module, "advance", counted)

    def job(name: str, pieces: int) -> Iterator[Samples]:
        events.append(f"open {name}")
        try:
            for _ in range(pieces):
                yield codes(0, 0)
        finally:
            events.append(f"close {name}")

    def jobs() -> Iterator[Job]:
        for name, pieces in (("a", 80), ("b", 1), ("c", 1), ("d", 1)):
            events.append(f"ask {name}")
            yield name, job(name, pieces)

    order = [key for key, _ in transcribe_streams(scripted, jobs(), batch_size=2, **OPTIONS)]
    assert order == ["b", "c", "d", "a"]
    assert batches == sorted(batches, reverse=True)  # no slot idles while jobs wait
    assert events[:5] == ["ask a", "ask b", "open a", "open b", "close b"]
    for earlier, later in (("b", "c"), ("c", "d")):
        assert events.index(f"close {earlier}") < events.index(f"ask {later}")


def test_a_jobs_error_is_its_own(scripted: Model) -> None:
    def broken(error: EarlybirdError) -> Iterator[Samples]:
        yield say(scripted, "don't")
        raise error

    def never() -> Iterator[Samples]:
        raise TruncatedAudio("cut")
        yield

    nan = [say(scripted, "the"), np.full(5, np.nan, dtype=np.float32)]
    good = [say(scripted, "the don't a")]
    jobs: list[Job] = [("1", good), ("2", broken(TruncatedAudio("here"))), ("3", nan), ("4", never()), ("5", good)]
    results = dict(transcribe_streams(scripted, jobs, batch_size=2, **OPTIONS))
    assert [type(results[str(n)]) for n in (1, 2, 3, 4, 5)] == [
        Transcript,
        TruncatedAudio,
        InvalidSamples,
        TruncatedAudio,
        Transcript,
    ]
    assert results["1"].text == results["5"].text == "the don't a"
    assert str(results["2"]) == "here"


def test_what_a_job_held_is_given_back_with_its_error(scripted: Model) -> None:
    class Source:
        closed = 0

        def __iter__(self) -> Iterator[Samples]:
            return iter([np.full(5, np.nan, dtype=np.float32)])

        def close(self) -> None:
            self.closed += 1

    def nan() -> Iterator[Samples]:
        while True:
            yield np.full(5, np.nan, dtype=np.float32)

    source, generator = Source(), nan()
    list(transcribe_streams(scripted, [("a", source), ("b", generator)], batch_size=1, **OPTIONS))
    assert source.closed == 1
    with pytest.raises(StopIteration):
        next(generator)


def test_other_errors_are_not_hidden_and_files_are_closed(scripted: Model) -> None:
    closed = []

    def held() -> Iterator[Samples]:
        try:
            while True:
                yield codes(0, 0)
        finally:
            closed.append(True)

    def bug() -> Iterator[Samples]:
        yield codes(0, 0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(transcribe_streams(scripted, [("held", held()), ("bug", bug())], batch_size=2, **OPTIONS))
    assert closed == [True]


def test_stopping_early_closes_what_is_open(scripted: Model) -> None:
    closed = []

    def held(name: str, pieces: int) -> Iterator[Samples]:
        try:
            for _ in range(pieces):
                yield codes(0, 0)
        finally:
            closed.append(name)

    results = transcribe_streams(scripted, [("a", held("a", 1)), ("b", held("b", 500))], batch_size=2, **OPTIONS)
    assert next(results)[0] == "a"
    results.close()  # type: ignore[attr-defined]
    assert closed == ["a", "b"]


def test_no_jobs_and_empty_jobs(scripted: Model) -> None:
    assert list(transcribe_streams(scripted, [], batch_size=3, **OPTIONS)) == []
    ((_, result),) = transcribe_streams(scripted, [("empty", [])], batch_size=3, **OPTIONS)
    assert isinstance(result, Transcript)
    assert (result.text, result.audio_samples) == ("", 0)


def test_wrong_settings_are_refused_before_any_job_is_asked_for(scripted: Model) -> None:
    def jobs() -> Iterator[Job]:
        raise AssertionError
        yield

    with pytest.raises(ConfigError, match="delay_ms=240"):
        transcribe_streams(scripted, jobs(), delay_ms=240, chunk_ms=80, batch_size=1)
    with pytest.raises(ConfigError, match="batch_size is 0"):
        transcribe_streams(scripted, jobs(), batch_size=0, **OPTIONS)
