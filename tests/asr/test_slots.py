from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from asr.drafting import Drafting
from asr.errors import AudioFormatError, ConfigError, InvalidSamples, Overloaded
from asr.model import Model
from asr.recogniser import WAIT
from asr.slots import StreamEngine
from asr.units import STEP_SAMPLES
from tests.scripted import codes, scripted_model
from tests.tiny_model import CHUNKS, bursts, tiny_additive_model, tiny_ctc_model, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def scripted(tmp_path: Path) -> Model:
    return scripted_model(tmp_path)


def test_slots_are_taken_and_given_back(scripted: Model) -> None:
    engine = StreamEngine(scripted, slots=2)
    settings = scripted.settings(delay_ms=80, chunk_ms=80)
    first, second = engine.acquire(settings), engine.acquire(settings)
    assert {first, second} == {0, 1}
    assert engine.free == 0
    with pytest.raises(Overloaded, match="all 2 slots are taken"):
        engine.acquire(settings)
    engine.release(first)
    assert engine.free == 1
    assert engine.acquire(settings) == first


def test_rows_with_other_settings_share_a_batch_and_others_idle(scripted: Model) -> None:
    engine = StreamEngine(scripted, slots=3)
    fast = engine.acquire(scripted.settings(delay_ms=80, chunk_ms=80))
    slow = engine.acquire(scripted.settings(delay_ms=160, chunk_ms=320))
    idle = engine.acquire(scripted.settings(delay_ms=80, chunk_ms=160))
    results = engine.step({fast: codes(7), slow: codes(9, 8, 7, 6)})
    assert set(results) == {fast, slow}
    assert [step.token for step in results[fast].steps] == [WAIT]
    assert [step.token for step in results[slow].steps] == [WAIT, WAIT, 8, 7]
    assert [step.token for step in engine.step({fast: codes(0)})[fast].steps] == [6]
    assert [step.token for step in engine.step({idle: codes(5, 0)})[idle].steps] == [WAIT, 4]


class Diary:
    """A scorer that changes nothing and notes what each row's newest piece was; its state is that piece."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.asked: list[tuple[int, int]] = []

    def init_states(self, rows: int) -> Tensor:
        return torch.full((rows, 1), -1)

    def scores(self, states: Tensor, rows: Tensor) -> Tensor:
        self.asked += zip(rows.tolist(), states[:, 0].tolist(), strict=True)
        return torch.zeros(len(rows), self.vocabulary)

    def advance(self, states: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
        return tokens[:, None]


def test_a_scorer_keeps_each_slots_state_and_a_new_stream_starts_afresh(scripted: Model) -> None:
    scorer = Diary(scripted.vocabulary.size)
    engine = StreamEngine(scripted, slots=2, scorer=scorer)
    settings = scripted.settings(delay_ms=80, chunk_ms=160)
    rows = [engine.acquire(settings), engine.acquire(settings)]
    said = []
    for first, second in (((7, 5), (9, 8)), ((4, 0), (3, 0))):
        results = engine.step({rows[0]: codes(*first), rows[1]: codes(*second)})
        said.append([[step.token for step in results[row].steps] for row in rows])
    assert said == [[[WAIT, 6], [WAIT, 8]], [[4, 3], [7, 2]]]
    # A row is asked with what it wrote last, across the border between blocks; a wait asks nothing.
    assert [piece for row, piece in scorer.asked if row == rows[0]] == [-1, 6, 4]
    assert [piece for row, piece in scorer.asked if row == rows[1]] == [-1, 8, 7]
    engine.release(rows[0])
    assert engine.acquire(settings) == rows[0]
    scorer.asked.clear()
    engine.step({rows[0]: codes(7, 0)})
    assert scorer.asked == [(rows[0], -1)]


def test_a_row_in_use_says_what_it_says_alone(model: Model) -> None:
    settings = model.settings(delay_ms=160, chunk_ms=160)
    audio = bursts(3).numpy()
    blocks = [audio[start : start + 2560] for start in range(0, len(audio) - 2560, 2560)]
    alone = StreamEngine(model, slots=1)
    alone.acquire(settings)
    expected = [[s.token for s in alone.step({0: block})[0].steps] for block in blocks]
    crowd = StreamEngine(model, slots=3)
    rows = [crowd.acquire(settings) for _ in range(3)]
    got = []
    for number, block in enumerate(blocks):
        batch = {rows[1]: block}
        if number % 2:
            batch[rows[0]] = blocks[-number]
        if number % 3:
            batch[rows[2]] = np.full(2560, 0.9, dtype=np.float32)
        got.append([s.token for s in crowd.step(batch)[rows[1]].steps])
    assert got == expected
    assert any(token != WAIT for tokens in got for token in tokens)


@pytest.mark.parametrize("make", [tiny_model, tiny_additive_model])
def test_a_slot_used_again_is_fresh_and_the_state_does_not_grow(make: type, tmp_path: Path) -> None:
    model = make(tmp_path)
    settings = model.settings(delay_ms=80, chunk_ms=320)
    engine = StreamEngine(model, slots=1, chunks=[settings.chunk])
    size = engine.state_bytes
    audio = bursts(4).numpy()
    runs = []
    for _ in range(2):
        row = engine.acquire(settings)
        results = [engine.step({row: audio[at : at + 5120]})[row] for at in range(0, len(audio) - 5120, 5120)]
        runs.append([[(s.token, s.frame) for s in result.steps] for result in results])
        assert results[-1].re_anchors >= 0
        engine.release(row)
    assert runs[0] == runs[1]
    assert engine.state_bytes == size


def test_a_re_anchoring_can_be_asked_for(scripted: Model) -> None:
    engine = StreamEngine(scripted, slots=2)
    settings = scripted.settings(delay_ms=80, chunk_ms=80)
    rows = [engine.acquire(settings), engine.acquire(settings)]
    engine.ask_re_anchor(rows[1])
    results = engine.step({row: codes(0) for row in rows})
    assert [results[row].re_anchors for row in rows] == [0, 1]


@pytest.mark.parametrize(
    "block",
    [
        np.zeros(0, dtype=np.float32),
        np.zeros(STEP_SAMPLES + 1, dtype=np.float32),
        np.zeros(3 * STEP_SAMPLES, dtype=np.float32),
        np.zeros((1, STEP_SAMPLES), dtype=np.float32),
    ],
)
def test_a_block_that_is_no_block(scripted: Model, block: np.ndarray) -> None:
    engine = StreamEngine(scripted, slots=1)
    row = engine.acquire(scripted.settings(delay_ms=80, chunk_ms=160))
    with pytest.raises(AudioFormatError, match="multiple of 1280, 1280 to 2560"):
        engine.step({row: block})


def test_bad_samples_move_no_row(scripted: Model) -> None:
    engine = StreamEngine(scripted, slots=2)
    settings = scripted.settings(delay_ms=80, chunk_ms=80)
    good, bad = engine.acquire(settings), engine.acquire(settings)
    with pytest.raises(InvalidSamples, match=f"row {bad}"):
        engine.step({good: codes(7), bad: codes(7) * np.float32("nan")})
    assert engine.step({good: codes(9)})[good].steps[0].token == WAIT
    assert engine.step({good: codes(0)})[good].steps[0].token == 8


def test_rows_that_nobody_has(scripted: Model) -> None:
    engine = StreamEngine(scripted, slots=1)
    for row in (-1, 0, 1):
        for call in (lambda r: engine.step({r: codes(0)}), engine.release, engine.ask_re_anchor):
            with pytest.raises(ConfigError, match=f"row {row} belongs to no stream"):
                call(row)
    assert engine.step({}) == {}


def test_engines_that_cannot_be(scripted: Model) -> None:
    with pytest.raises(ConfigError, match="at least 1 slot"):
        StreamEngine(scripted, slots=0)
    with pytest.raises(ConfigError, match="chunk setting"):
        StreamEngine(scripted, slots=1, chunks=[])
    engine = StreamEngine(scripted, slots=1, chunks=CHUNKS[:2])
    with pytest.raises(ConfigError, match="laid out for"):
        engine.acquire(scripted.settings(delay_ms=80, chunk_ms=320))


@pytest.mark.parametrize("make", [tiny_ctc_model, tiny_additive_model])
def test_what_drafts_left_behind_is_no_part_of_the_state(make: Callable[[Path], Model], tmp_path: Path) -> None:
    model = make(tmp_path)
    engine = StreamEngine(model, slots=2, drafting=Drafting())
    settings = model.settings(delay_ms=80, chunk_ms=320)
    row, other = engine.acquire(settings), engine.acquire(settings)
    audio, sizes, proposed = bursts(8).numpy(), {engine.state_bytes}, 0
    for number, start in enumerate(range(0, len(audio) - 5120, 5120)):
        block = audio[start : start + 5120]
        results = engine.step({row: block} if number % 3 else {row: block, other: block[:1280]})
        proposed += len(results[row].drafts)
        sizes.add(engine.state_bytes)
    assert proposed > 0
    assert len(sizes) == 1
