import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import ProtocolError
from server import outbox as module
from server.outbox import FULL_BYTES, Outbox


def drain(box: Outbox) -> list[dict[str, object]]:
    found = []
    while (text := box.take()) is not None:
        found.append(json.loads(text))
    return found


def seqs(box: Outbox) -> list[object]:
    return [message["seq"] for message in drain(box)]


def test_committed_messages_come_once_in_order_with_numbers() -> None:
    box = Outbox()
    box.commit("words", {"text": "a"})
    box.commit("words", {"text": "b"})
    assert drain(box) == [{"type": "words", "seq": 1, "text": "a"}, {"type": "words", "seq": 2, "text": "b"}]
    assert drain(box) == []


def test_of_volatile_ones_the_newest_is_there_behind_what_is_committed() -> None:
    box = Outbox()
    box.replace("tail", {"text": "a"})
    box.replace("heartbeat", {"lag_ms": 1})
    box.replace("tail", {"text": "b"})
    box.commit("words", {"text": "w"})
    assert [(message["type"], message.get("text")) for message in drain(box)] == [
        ("words", "w"),
        ("tail", "b"),
        ("heartbeat", None),
    ]


def test_a_client_that_reads_nothing_fills_it_with_committed_messages_alone() -> None:
    box = Outbox()
    for number in range(10_000):
        box.replace("tail", {"text": f"t{number}"})
    assert box.unsent_bytes == 0
    while not box.full:
        box.commit("words", {"text": "w" * 1000})
    assert FULL_BYTES < box.unsent_bytes < FULL_BYTES + 2_000
    drain(box)
    assert (box.unsent_bytes, box.full) == (0, False)


@given(
    told=st.integers(0, 30),
    has=st.data(),
)
def test_whatever_was_sent_a_client_that_comes_back_gets_all_it_has_not(told: int, has: st.DataObject) -> None:
    box = Outbox()
    for number in range(told):
        box.commit("words", {"text": str(number)})
    sent = has.draw(st.integers(0, told))
    for _ in range(sent):
        box.take()
    acknowledged = has.draw(st.integers(0, sent))
    box.acknowledge(acknowledged)
    seen = has.draw(st.integers(acknowledged, told))
    box.rewind(seen)
    assert seqs(box) == list(range(seen + 1, told + 1))
    assert box.unsent_bytes == 0


def test_the_tail_comes_again_as_well() -> None:
    box = Outbox()
    box.replace("tail", {"text": "old"})
    box.replace("tail", {"text": "new"})
    drain(box)
    box.rewind(0)
    assert drain(box) == [{"type": "tail", "text": "new"}]


def test_what_is_acknowledged_is_gone() -> None:
    box = Outbox()
    for _ in range(3):
        box.commit("words", {})
    drain(box)
    box.acknowledge(2)
    box.acknowledge(1)  # an old one, late
    with pytest.raises(ProtocolError, match="behind seq 1 were asked for; those up to 2 were acknowledged") as caught:
        box.rewind(1)
    assert caught.value.code == "resume_lost"
    box.rewind(2)
    assert seqs(box) == [3]


@pytest.mark.parametrize("call", ["acknowledge", "rewind"])
def test_numbers_that_were_never_given(call: str) -> None:
    box = Outbox()
    box.commit("words", {})
    with pytest.raises(ProtocolError, match="seq is 2; the newest message of this session has 1"):
        getattr(box, call)(2)


def test_nothing_unsent_is_taken_for_acknowledged() -> None:
    box = Outbox()
    box.commit("words", {})
    box.acknowledge(1)
    assert seqs(box) == [1]


def test_without_acknowledgements_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 5)
    box = Outbox()
    for _ in range(20):
        box.commit("words", {})
    assert seqs(box) == list(range(1, 21))
    box.rewind(15)
    assert seqs(box) == [16, 17, 18, 19, 20]
    with pytest.raises(ProtocolError, match="too old"):
        box.rewind(14)
