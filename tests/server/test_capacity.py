import pytest

from asr.model import Model
from server.capacity import BATCH, TIMED_BLOCKS, WARM_BLOCKS, StepCost, measure
from tests.scripted import scripted_model


@pytest.mark.parametrize(
    ("one_ms", "many_ms", "sessions"),
    [
        (80.0, 260.0, 3),  # 224 ms fit: 80, 140, 200
        (20.0, 20.0, 512),  # more cost nothing: bounded all the same
        (20.0, 50.0, 21),
        (224.0, 900.0, 1),
        (500.0, 2_000.0, 1),
    ],
)
def test_sessions_are_those_that_fit_into_a_chunk_with_headroom(one_ms: float, many_ms: float, sessions: int) -> None:
    cost = StepCost(chunk_ms=320, one_ms=one_ms, many_ms=many_ms)
    assert cost.sessions == sessions
    assert cost.keeps_up == (one_ms < 320)
    if 1 < sessions < 512:
        assert one_ms + (sessions - 1) * cost.each_ms <= 0.7 * 320 < one_ms + sessions * cost.each_ms


def test_it_says_what_it_found() -> None:
    assert str(StepCost(chunk_ms=320, one_ms=80.0, many_ms=260.0)) == (
        "a step of 320 ms takes 80 ms with 1 session and 260 ms with 4: 20 ms for every 80 ms of one session"
    )


def test_steps_are_timed_with_one_session_and_with_several(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Model = scripted_model(tmp_path_factory.mktemp("scripted"))
    rows: list[int] = []
    monkeypatch.setattr(
        "server.capacity.StreamEngine.step", lambda engine, blocks: rows.append(len(blocks)), raising=True
    )
    # A clock on which a step takes as many tenths of a second as there were rows in it.
    now = [0.0]

    def clock() -> float:
        now[0] += (rows[-1] if rows else 0) / 20
        return now[0]

    cost = measure(model, delay_ms=80, chunk_ms=320, clock=clock)
    blocks = WARM_BLOCKS + TIMED_BLOCKS
    assert rows == [1] * blocks + [BATCH] * blocks
    assert cost.many_ms == pytest.approx(BATCH * cost.one_ms)
