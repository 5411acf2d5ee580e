"""The volatile tail: what it shows, and that it stays out of the transcript."""

from __future__ import annotations

from pathlib import Path

import pytest

from asr.model import Model
from asr.text import TextDelta
from asr.transcriber import HeardWord
from asr.words import Word
from streaming.events import Event, Flushed, Tail, Words
from streaming.session import Session
from streaming.tail import TailState, commit, settle, tail_text
from tests.scripted import codes, scripted_model
from tests.tiny_model import bursts, tiny_ctc_model, tiny_model


def heard(*words: tuple[str, int, int]) -> list[HeardWord]:
    return [HeardWord(text=text, start_ms=start, end_ms=end) for text, start, end in words]


def word(text: str, start_ms: int, end_ms: int) -> Word:
    return Word(text=text, start_ms=start_ms, end_ms=end_ms, emitted_ms=end_ms + 480, confidence=1.0)


SAID = heard(("the", 80, 240), ("cat", 240, 480), ("sat", 560, 800))


@pytest.mark.parametrize(
    ("end_ms", "last", "shown"),
    [
        (0, "", "the cat sat"),
        (239, "", "the cat sat"),
        (240, "the", "cat sat"),
        (479, "the", "cat sat"),
        (479, "cat", "sat"),  # its end is not known to a step
        (240, "cat", "cat sat"),  # the same word again, later
        (800, "sat", ""),
    ],
)
def test_words_behind_the_committed_text_are_shown(end_ms: int, last: str, shown: str) -> None:
    assert tail_text(SAID, TailState(end_ms=end_ms, last=last)) == shown


def test_committed_words_move_it_on() -> None:
    state = commit(TextDelta(text="The cat,", words=(word("The", 80, 230), word("Cat,", 250, 470))), TailState())
    assert state == TailState(end_ms=470, last="cat")
    amended = commit(TextDelta(text="s", amended=(1, word("cats,", 250, 510))), state)
    assert amended == TailState(end_ms=510, last="cats")
    assert commit(TextDelta(), amended) == amended


def test_what_a_flush_did_not_write_is_settled() -> None:
    assert settle(800, TailState(end_ms=470)).end_ms == 800
    assert settle(300, TailState(end_ms=470)).end_ms == 470


# -- in a session --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_ctc_model(tmp_path_factory.mktemp("ctc"))


def events_of(model: Model, seconds: float = 5.0, *, piece: int = 2560) -> tuple[Session, list[Event]]:
    live, found, audio = Session(model, delay_ms=480, chunk_ms=160), list[Event](), bursts(seconds, 3).numpy()
    for at in range(0, len(audio), piece):
        live.feed_audio(audio[at : at + piece])
        found += live.events()
    return live, found


def test_a_model_with_a_head_shows_a_tail_that_changes(model: Model) -> None:
    live, found = events_of(model)
    tails = [event.text for event in found if isinstance(event, Tail)]
    assert len({text for text in tails if text}) >= 3
    assert all(before != after for before, after in zip(["", *tails], tails, strict=False))
    live.close()


def test_the_tail_never_enters_the_transcript(model: Model, tmp_path: Path) -> None:
    plain, with_head = events_of(tiny_model(tmp_path)), events_of(model)
    texts = []
    for live, found in (plain, with_head):
        live.close()
        found += live.events()
        texts.append("".join(event.text for event in found if isinstance(event, Words)))
        assert texts[-1] == live.transcript().text
    assert texts[0] == texts[1] != ""
    assert not any(isinstance(event, Tail) for event in plain[1])


def test_what_is_shown_ends_after_the_words_committed_before(model: Model) -> None:
    live, found = events_of(model)
    committed = shown_behind_words = 0
    for event in found:
        if isinstance(event, Words) and event.words:
            committed = event.words[-1].end_ms
        if isinstance(event, Tail) and event.text:
            shown_behind_words += committed > 0
    assert shown_behind_words >= 1
    assert live._tail.end_ms == committed
    assert all(w.end_ms > committed for w in live._stream.preview()[-1:] if live._shown)
    live.close()


def test_a_flush_clears_it_and_it_stays_clear(model: Model) -> None:
    live, _ = events_of(model, 2.0)
    while not live._shown:
        live.feed_audio(bursts(0.16, 5).numpy())
    live.events()
    live.flush()
    found = live.events()
    assert [event.text for event in found if isinstance(event, Tail)] == [""]
    assert isinstance(found[-1], Flushed)
    live.flush()
    assert not any(isinstance(event, Tail) for event in live.events())
    reached = live._tail.end_ms
    assert reached >= live._stream.processed // 16
    assert tail_text(live._stream.preview(), live._tail) == ""
    live.close()


def test_what_was_heard_and_not_written_goes_with_the_flush_for_good(tmp_path: Path) -> None:
    live = Session(scripted_model(tmp_path), delay_ms=80, chunk_ms=80)
    live._stream.preview = lambda _relabel: heard(("ghost", 0, 800))  # type: ignore[method-assign]
    live.feed_audio(codes(*[0] * 12))
    assert [event.text for event in live.events() if isinstance(event, Tail)] == ["ghost"]
    live.flush()
    assert [event for event in live.events() if isinstance(event, Tail | Flushed)] == [
        Tail(text=""),
        Flushed(audio_ms=960),
    ]
    live.feed_audio(codes(*[0] * 4))
    assert not any(isinstance(event, Tail) for event in live.events())
    live._stream.preview = lambda _relabel: heard(("ghost", 0, 800), ("new", 900, 1200))  # type: ignore[method-assign]
    live.feed_audio(codes(0))
    assert [event.text for event in live.events() if isinstance(event, Tail)] == ["new"]
    live.close()
    assert [event.text for event in live.events() if isinstance(event, Tail)] == [""]


def test_tails_that_nobody_fetched_do_not_pile_up(model: Model) -> None:
    live, audio = Session(model, delay_ms=480, chunk_ms=160), bursts(5.0, 3).numpy()
    for at in range(0, len(audio), 2560):
        live.feed_audio(audio[at : at + 2560])
    found = live.events()
    assert sum(isinstance(event, Tail) for event in found) == 1
    live.close()
