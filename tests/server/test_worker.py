import queue
from collections.abc import Iterator
from typing import Any

import pytest

from asr.errors import ConfigError, Overloaded
from asr.model import Model
from server.messages import PhraseText, Start
from server.worker import Report, Worker, as_phrases, chunks_up_to
from streaming.batcher import Audio, Finish, Said
from streaming.events import Closed, Words
from tests.scripted import codes, say, scripted_model
from tests.tiny_model import tiny_ctc_model

START = Start(encoding="pcm_f32le", sample_rate=16_000)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


class Bench:
    """A worker and what it reports."""

    def __init__(self, model: Model, **options: Any) -> None:
        self.reports: queue.Queue[Report] = queue.Queue()
        chunks = chunks_up_to(model, 320)
        self.worker = Worker(
            model, **{"slots": 2, "chunks": chunks, "clock": lambda: 0.0, "report": self.reports.put, **options}
        )
        self.worker.start()

    def open(self, key: str, start: Start = START) -> list[dict[str, object]]:
        return self.worker.open(key, start, delay_ms=80, chunk_ms=80).result(30)

    def until_closed(self, key: str) -> list[Said]:
        said: list[Said] = []
        while not said or not isinstance(said[-1].event, Closed):
            said += self.reports.get(timeout=30).said.get(key, [])
        return said


@pytest.fixture
def bench(model: Model) -> Iterator[Bench]:
    made = Bench(model)
    yield made
    made.worker.stop()
    assert not made.worker.alive


def test_audio_becomes_words_in_a_thread_of_its_own(bench: Bench, model: Model) -> None:
    assert bench.open("a") == []
    data = say(model, "the a").astype("<f4").tobytes()
    bench.worker.call(lambda batcher: batcher.put("a", Audio(bytes=data, at_ms=0)))
    bench.worker.call(lambda batcher: batcher.put("a", Finish(reason="end")))
    said = bench.until_closed("a")
    assert "".join(one.event.text for one in said if isinstance(one.event, Words)) == "the a"
    assert bench.worker.warm.is_set()


def test_sessions_that_cannot_be_opened_take_no_slot(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="sample rate is 7"):
        bench.open("bad", Start(encoding="pcm_f32le", sample_rate=7))
    with pytest.raises(ConfigError, match="there is no n-gram model"):
        bench.open("bad", Start(encoding="pcm_f32le", sample_rate=16_000, lm_weight=1.0))
    bench.open("a")
    bench.open("b")
    with pytest.raises(Overloaded, match="all 2 sessions of this server are in use"):
        bench.open("c")
    bench.worker.call(lambda batcher: batcher.drop("a"))
    bench.open("c")


def test_each_phrase_is_answered(bench: Bench) -> None:
    phrases = (PhraseText(text="the"), PhraseText(text="  "), PhraseText(text="don't", boost=2.0))
    bench.worker.prepare(phrases, None)
    answers = bench.open("a", Start(encoding="pcm_f32le", sample_rate=16_000, phrases=phrases))
    assert [(answer["text"], answer["accepted"]) for answer in answers] == [
        ("the", True),
        ("  ", False),
        ("don't", True),
    ]
    assert [phrase.boost for phrase in as_phrases(phrases)] == [None, None, 2.0]


def test_opus_is_decoded_before_it_is_heard(bench: Bench) -> None:
    bench.open("a", Start(encoding="ogg-opus", sample_rate=48_000))
    bench.worker.call(lambda batcher: batcher.put("a", Audio(bytes=b"no Ogg at all", at_ms=0)))
    said = bench.until_closed("a")
    assert [str(one.error) for one in said if one.error] == [
        "byte 0 of the stream should begin an Ogg page with 'OggS'; it is b'no O'"
    ]


def test_a_fault_outside_any_step_is_the_last_report(bench: Bench) -> None:
    def fails(batcher: object) -> None:
        raise RuntimeError("a bug")

    bench.worker.call(fails)
    while (report := bench.reports.get(timeout=30)).failure is None:
        pass
    assert str(report.failure) == "a bug"


def test_the_first_step_is_made_before_anybody_speaks(tmp_path_factory: pytest.TempPathFactory) -> None:
    bench = Bench(tiny_ctc_model(tmp_path_factory.mktemp("ctc")))
    assert bench.worker.warm.wait(60)
    assert bench.worker._engine.free == 2
    bench.worker.stop()


def test_chunks_of_a_server(model: Model) -> None:
    assert [chunk.chunk_steps for chunk in chunks_up_to(model, 320)] == [1, 2, 4]
    assert [chunk.chunk_steps for chunk in chunks_up_to(model, 1_600)] == [1, 2, 4, 20]


def test_a_report_counts_the_rows_of_its_step(bench: Bench) -> None:
    bench.open("a")
    bench.open("b")
    data = codes(0).astype("<f4").tobytes()
    bench.worker.call(
        lambda batcher: [batcher.put(key, Audio(bytes=data, at_ms=0)) for key in ("a", "b")] and None  # type: ignore[func-returns-value]
    )
    rows, taken = 0, {}
    while rows < 2:
        report = bench.reports.get(timeout=30)
        rows, taken = rows + report.rows, {**taken, **report.taken}
    assert taken == {"a": (len(data), 1), "b": (len(data), 1)}
