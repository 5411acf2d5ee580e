"""Laws of the batcher, without a socket, a thread or a clock."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asr.errors import AudioFormatError, ConfigError, Overloaded
from asr.model import Model
from asr.slots import StreamEngine
from asr.words import Word
from streaming.batcher import Audio, Batcher, Finish, FlushRequest, Said, Setting
from streaming.events import Closed, Flushed, Heartbeat, Words
from streaming.session import Session
from tests.scripted import codes, say, scripted_model
from tests.tiny_model import bursts, tiny_model


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


def pcm(audio: np.ndarray) -> bytes:
    return audio.astype("<f4").tobytes()


class Bench:
    """A batcher whose clock is a number."""

    def __init__(self, model: Model, slots: int = 4) -> None:
        self.model, self.engine = model, StreamEngine(model, slots=slots)
        self.batcher, self.now = Batcher(), 0
        self.said: dict[str, list[Said]] = {}
        self.batches: list[list[str]] = []

    def add(self, *keys: str, chunk_ms: int = 80, delay_ms: int = 80) -> None:
        for key in keys:
            session = Session(
                self.model,
                engine=self.engine,
                delay_ms=delay_ms,
                chunk_ms=chunk_ms,
                encoding="pcm_f32le",
                keep_words=False,
            )
            self.batcher.add(key, session, chunk_ms=chunk_ms, decode=bytes)
            self.said[key] = []

    def audio(self, key: str, samples: np.ndarray) -> None:
        self.batcher.put(key, Audio(bytes=pcm(samples), at_ms=self.now))

    def once(self) -> list[str]:
        keys = self.batcher.choose(self.now)
        self.batches.append(keys)
        self.batcher.step(keys, self.now)
        for key, said in self.batcher.collect(self.now, took_ms=8, stepped=keys).items():
            self.said[key] += said
        return keys

    def run(self) -> None:
        while self.once():
            pass

    def text(self, key: str) -> str:
        return "".join(said.event.text for said in self.said[key] if isinstance(said.event, Words))

    def kinds(self, key: str) -> list[str]:
        kept = [said for said in self.said[key] if not isinstance(said.event, Heartbeat)]
        return [type(said.event or said.error).__name__ for said in kept]

    def ended(self, key: str) -> Said:
        last = self.said[key][-1]
        assert isinstance(last.event, Closed)
        return last


def test_whoever_has_a_block_is_in_the_step(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("a", "b", "c")
    bench.audio("a", codes(0, 0))
    bench.audio("c", codes(0))
    bench.run()
    assert bench.batches == [["a", "c"], ["a"], []]


def test_an_end_gives_the_last_words_then_the_reason_and_the_delays(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("a")
    bench.audio("a", say(scripted, "the don't a"))
    bench.batcher.put("a", Finish(reason="end"))
    bench.run()
    assert bench.text("a") == "the don't a"
    assert "Flushed" not in bench.kinds("a")
    end = bench.ended("a")
    assert end.reason == "end"
    assert end.audio is not None
    assert end.audio.count == 3
    assert (len(bench.batcher), bench.engine.free) == (0, 4)


def test_an_end_without_audio(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("a")
    bench.batcher.put("a", Finish(reason="idle"))
    bench.run()
    assert (bench.ended("a").reason, bench.ended("a").audio, bench.engine.free) == ("idle", None, 4)


def test_what_stands_behind_a_flush_waits_for_it(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("a")
    for number in range(3):
        bench.audio("a", say(scripted, "the"))
        bench.batcher.put("a", FlushRequest(id=number))
        bench.batcher.put("a", FlushRequest(id=f"again {number}"))
    bench.run()
    assert [said.flush_id for said in bench.said["a"] if isinstance(said.event, Flushed)] == [
        0, "again 0", 1, "again 1", 2, "again 2",
    ]  # fmt: skip
    assert bench.kinds("a") == ["Words", "Segment", "Flushed", "Flushed"] * 3
    assert bench.text("a") == "the the the"


def test_a_storm_of_flushes_is_answered_one_by_one_and_stops_nobody(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("storm", "calm")
    bench.audio("calm", say(scripted, "the don't a"))
    for number in range(200):
        bench.audio("storm", codes(0))
        bench.batcher.put("storm", FlushRequest(id=number))
    bench.batcher.put("calm", Finish(reason="end"))
    calm = 0
    while bench.once():
        calm += not bench.said["calm"] or bench.said["calm"][-1].reason is None
    assert [said.flush_id for said in bench.said["storm"] if isinstance(said.event, Flushed)] == list(range(200))
    assert bench.text("calm") == "the don't a"
    assert calm < 60


def test_a_flush_asked_for_before_the_end_is_answered(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("a")
    bench.audio("a", say(scripted, "the"))
    bench.batcher.put("a", FlushRequest(id=1))
    bench.batcher.put("a", Finish(reason="end"))
    bench.batcher.put("a", FlushRequest(id=2))  # behind the end: nobody is there any more
    bench.run()
    assert bench.kinds("a") == ["Words", "Segment", "Flushed", "Closed"]


def test_inboxes_are_emptied_only_as_they_are_decoded(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("a")
    for _ in range(50):
        bench.audio("a", codes(0))
    bench.once()
    assert bench.batcher.taken()["a"] == (4 * 1280, 1)
    bench.run()
    assert bench.batcher.taken()["a"] == (49 * 4 * 1280, 49)
    assert bench.batcher.taken() == {}


def test_nobody_is_decoded_whose_words_nobody_takes(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("a", "b")
    for key in ("a", "b"):
        bench.audio(key, say(scripted, "the a"))
        bench.batcher.put(key, Finish(reason="end"))
    bench.batcher.hold("a", True)
    bench.run()
    assert (bench.text("a"), bench.text("b")) == ("", "the a")
    bench.batcher.hold("a", False)
    bench.run()
    assert bench.text("a") == "the a"


def test_while_somebody_speaks_those_who_send_faster_take_turns(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("live", "x", "y", "z")
    for key in ("x", "y", "z"):
        bench.audio(key, codes(*[0] * 400))
    bench.now = 5_000
    assert bench.batcher.choose(bench.now) == ["x", "y", "z"], "nobody else is there: all at once"
    for _ in range(100):
        bench.once()
    bench.batches.clear()
    for _ in range(30):
        bench.now += 80
        bench.audio("live", codes(0))
        bench.once()
    assert all("live" in keys and len(keys) == 2 for keys in bench.batches)
    assert {key: sum(key in keys for keys in bench.batches) for key in "xyz"} == {"x": 10, "y": 10, "z": 10}


def test_bad_audio_ends_one_session_after_its_words(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("a", "b")
    for key in ("a", "b"):
        bench.audio(key, say(scripted, "the a"))
    bench.audio("a", np.array([np.nan], np.float32))
    bench.audio("a", codes(0))
    bench.batcher.put("b", Finish(reason="end"))
    bench.run()
    assert bench.text("a") == bench.text("b") == "the a"
    assert bench.ended("a").reason == "error"
    (error,) = [said.error for said in bench.said["a"] if said.error]
    assert isinstance(error, AudioFormatError)
    assert "samples must be finite" in str(error)
    assert bench.engine.free == 4


def changed(session: Session, delay_ms: int) -> dict[str, object]:
    session.change_delay(delay_ms)
    return {"delay_ms": delay_ms}


def test_a_setting_that_is_refused_leaves_the_session_as_it_was(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("a")
    for delay_ms in (240, 480):
        bench.batcher.put("a", Setting(apply=lambda session, delay_ms=delay_ms: changed(session, delay_ms)))
    bench.audio("a", np.concatenate([say(scripted, "the"), codes(*[0] * 8)]))
    bench.run()
    (error,) = [said.error for said in bench.said["a"] if said.error]
    assert isinstance(error, ConfigError)
    assert [(said.changed, said.audio_ms) for said in bench.said["a"] if said.changed] == [({"delay_ms": 480}, 0)]
    (word,) = [word for said in bench.said["a"] if isinstance(said.event, Words) for word in said.event.words]
    assert word.delay_ms > 400


def test_wall_delays_count_from_the_arrival_and_not_from_the_turn(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("a")
    bench.now = 10_000
    bench.audio("a", np.concatenate([say(scripted, "the", lead=0), codes(0, 0)]))
    bench.now = 10_500  # half a second in the queue
    bench.run()
    (said,) = [said for said in bench.said["a"] if isinstance(said.event, Words)]
    assert isinstance(said.event, Words)
    (word,), (wall,) = said.event.words, said.wall_ms
    assert wall == 500 + 240 - word.end_ms


def test_a_session_that_breaks_a_step_leaves_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path)
    alone = Bench(model)
    alone.add("b", "c")
    bench = Bench(model)
    bench.add("a", "b", "c")
    step = bench.engine.step

    def breaks(blocks: dict[int, np.ndarray]) -> object:
        if 0 in blocks and np.abs(blocks[0]).max() > 5:
            raise RuntimeError("CUDA error")
        return step(blocks)

    monkeypatch.setattr(bench.engine, "step", breaks)
    for one in (alone, bench):
        for seed, key in enumerate(one.said):
            samples = bursts(4, seed + (one is alone)).numpy()
            if key == "a":
                samples[20_000] = 9.0
            one.audio(key, samples)
            one.batcher.put(key, Finish(reason="end"))
        one.run()
    assert bench.ended("a").reason == "error"
    assert [str(said.error) for said in bench.said["a"] if said.error] == ["CUDA error"]
    for key in ("b", "c"):
        assert words_of(bench.said[key]) == words_of(alone.said[key])
        assert words_of(bench.said[key])
    assert bench.engine.free == 4


def words_of(said: list[Said]) -> list[Word]:
    events = [one.event for one in said if isinstance(one.event, Words)]
    return [replace(word, confidence=0.0) for event in events for word in event.words]


def test_slots_run_out_and_come_back(scripted: Model) -> None:
    bench = Bench(scripted, slots=2)
    bench.add("a", "b")
    with pytest.raises(Overloaded, match="all 2 slots are taken"):
        bench.add("c")
    bench.batcher.drop("a")
    bench.batcher.drop("a")
    bench.add("c")
    assert set(bench.batcher.keys) == {"b", "c"}


def test_the_real_time_factor_is_that_of_the_steps_it_took_part_in(scripted: Model) -> None:
    bench = Bench(scripted)
    bench.add("a", "b")
    bench.audio("a", codes(*[0] * 60))
    bench.run()
    assert bench.batcher.real_time_factor("a") == pytest.approx(8 / 80, rel=0.01)
    assert bench.batcher.real_time_factor("b") == 0.0
    assert bench.batcher.real_time_factor("gone") == 0.0


@pytest.mark.parametrize("seed", range(8))
def test_a_text_is_the_same_under_any_load(scripted: Model, seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(scripted, slots=3)
    texts = {"a": "the don't a", "b": "a a the", "c": "don't"}
    bench.add(*texts)
    left = {key: pcm(say(scripted, text)) for key, text in texts.items()}
    while any(left.values()):
        key = rng.choice([key for key, rest in left.items() if rest])
        size = rng.randint(1, 30_000)
        bench.batcher.put(key, Audio(bytes=left[key][:size], at_ms=bench.now))
        left[key] = left[key][size:]
        if rng.random() < 0.5:
            bench.now += rng.randint(0, 300)
            bench.once()
        bench.batcher.hold("b", rng.random() < 0.5)
    bench.batcher.hold("b", False)
    for key in texts:
        bench.batcher.put(key, Finish(reason="end"))
    bench.run()
    assert {key: bench.text(key) for key in texts} == texts
