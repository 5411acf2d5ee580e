import pytest

from asr.errors import ConfigError
from asr.text import TextDelta
from asr.words import Word
from streaming.endpoint import EndpointConfig, Endpointer, ends_sentence
from streaming.events import Segment


def word(text: str, start_ms: int, end_ms: int) -> Word:
    return Word(text=text, start_ms=start_ms, end_ms=end_ms, emitted_ms=end_ms, confidence=0.9)


def added(*words: Word, amended: tuple[int, Word] | None = None) -> TextDelta:
    return TextDelta(text="x", words=words, amended=amended)


class Watch:
    def __init__(self, delay_ms: int = 0, lateness_ms: int = 0, config: EndpointConfig | None = None) -> None:
        self.endpointer = Endpointer(delay_ms=delay_ms, lateness_ms=lateness_ms, config=config)

    def at(
        self, processed_ms: int, *words: Word, quiet_ms: int = 0, open: bool = False, flushed: bool = False
    ) -> list[Segment]:
        return self.endpointer.step(
            added(*words), processed_ms=processed_ms, quiet_ms=quiet_ms, word_open=open, flushed=flushed
        )


def test_a_pause_ends_a_segment() -> None:
    watch = Watch()
    assert watch.at(1000, word("good", 100, 300), word("day", 320, 600)) == []
    assert watch.at(1399) == []
    assert watch.at(1400) == [Segment(text="good day", first=0, count=2, start_ms=100, end_ms=600, reason="pause")]
    assert watch.at(9000) == []
    assert watch.at(9800, word("you", 9000, 9500)) == []
    assert watch.at(10_300)[0].first == 2


def test_less_is_enough_behind_a_sentence() -> None:
    watch = Watch()
    watch.at(700, word("day.", 320, 600))
    assert watch.at(1099) == []
    assert [segment.reason for segment in watch.at(1100)] == ["sentence"]


@pytest.mark.parametrize(
    ("text", "ends"),
    [("day.", True), ('day."', True), ("why?)", True), ("no!", True), ("day,", False), ("day", False), ("3.14", False)],
)
def test_ends_of_sentences(text: str, ends: bool) -> None:
    assert ends_sentence(text) == ends


def test_words_that_come_late_are_waited_for() -> None:
    watch = Watch(lateness_ms=900)
    watch.at(1500, word("day", 320, 600))
    assert watch.at(600 + 800 + 899) == []
    assert len(watch.at(600 + 800 + 900)) == 1


def test_in_a_quiet_pause_the_usual_delay_is_enough() -> None:
    watch = Watch(delay_ms=480, lateness_ms=2000)
    watch.at(1500, word("day", 320, 600))
    assert watch.at(600 + 800 + 479, quiet_ms=1200) == []
    assert watch.at(600 + 800 + 480, quiet_ms=799) == []
    assert watch.at(600 + 800 + 480, quiet_ms=800)[0].reason == "pause"
    watch.at(5000, word("day.", 4000, 4500))
    assert watch.at(4500 + 500 + 480, quiet_ms=500)[0].reason == "sentence"


def test_a_word_under_way_is_no_pause() -> None:
    watch = Watch()
    watch.at(700, word("day", 320, 600))
    assert watch.at(5000, open=True) == []
    assert len(watch.at(5000)) == 1


def test_a_flush_ends_what_there_is_and_nothing_twice() -> None:
    watch = Watch()
    assert watch.at(700, word("day", 320, 600), flushed=True)[0].reason == "flush"
    assert watch.at(700, flushed=True) == []


def test_late_punctuation_reaches_the_segment_under_way_and_leaves_a_finished_one() -> None:
    watch = Watch()
    watch.at(700, word("good", 100, 300), word("day", 320, 600))
    change = added(amended=(1, word("day.", 320, 600)))
    assert watch.endpointer.step(change, processed_ms=800, quiet_ms=0, word_open=False, flushed=False) == []
    assert watch.at(1100)[0].text == "good day."
    late = added(word("you", 1200, 1300), amended=(1, word("day.)", 320, 600)))
    watch.endpointer.step(late, processed_ms=1400, quiet_ms=0, word_open=False, flushed=False)
    assert watch.at(2200) == [Segment(text="you", first=2, count=1, start_ms=1200, end_ms=1300, reason="pause")]


def test_speech_without_a_pause_is_cut_between_words() -> None:
    watch = Watch(config=EndpointConfig(longest_ms=10_000))
    segments = []
    for at in range(0, 60_000, 250):
        segments += watch.at(at + 200, word("a", at, at + 200))
        assert len(watch.endpointer._words) <= 41
    assert len(segments) == 5
    assert {segment.reason for segment in segments} == {"length"}
    assert all(segment.end_ms - segment.start_ms <= 10_000 for segment in segments)
    assert [segment.first for segment in segments] == [0, 40, 80, 120, 160]
    many = Watch(config=EndpointConfig(most_words=3))
    assert [s.count for s in many.at(100, *(word("a", at, at + 1) for at in range(10)))] == [3, 3, 3]


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="pause_ms=0"):
        EndpointConfig(pause_ms=0)
