import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.words import Word
from recipes.subtitle_check import broken_rules
from streaming.subtitles import (
    LEAST_MS,
    MS_A_CHARACTER,
    Cue,
    cue_lines,
    lay_out,
)


def spoken(text: str, *, ms_a_word: int = 300, start_ms: int = 0, pauses: dict[str, int] | None = None) -> list[Word]:
    """Words one after the other; a pause in ms behind those that `pauses` names."""
    words, at = [], start_ms
    for one in text.split():
        words.append(Word(text=one, start_ms=at, end_ms=at + ms_a_word, emitted_ms=at, confidence=1.0))
        at += ms_a_word + (pauses or {}).get(one, 0)
    return words


def texts(cues: list[Cue]) -> list[str]:
    return [" / ".join(cue.lines) for cue in cues]


letters = st.text("abcdefghij日本.,?'", min_size=1, max_size=60)
word_list = st.lists(st.tuples(letters, st.integers(20, 900), st.integers(0, 3000)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(words=word_list, spare=st.integers(0, 5000), channels=st.integers(1, 2))
def test_no_rule_is_ever_broken_and_no_character_lost(
    words: list[tuple[str, int, int]], spare: int, channels: int
) -> None:
    lanes: list[list[Word]] = [[] for _ in range(channels)]
    clocks = [0] * channels
    for number, (text, length, pause) in enumerate(words):
        at = clocks[number % channels]
        lanes[number % channels].append(Word(text=text, start_ms=at, end_ms=at + length, emitted_ms=at, confidence=1.0))
        clocks[number % channels] = at + length + pause
    duration = max(clocks) + spare
    turns = [(f"Channel {n}" if channels > 1 else None, lane) for n, lane in enumerate(lanes) if lane]
    cues = lay_out(turns, duration_ms=duration)
    assert broken_rules(cues) == []
    for name, lane in turns:
        shown = "".join("".join(cue.lines).removeprefix(f"{name}:") for cue in cues if cue.speaker == name)
        assert shown.replace(" ", "") == "".join(word.text for word in lane)
    reading = sum(max(LEAST_MS, MS_A_CHARACTER * sum(map(len, cue.lines))) for cue in cues)
    assert all(cue.end_ms <= max(duration, reading) for cue in cues), "within the audio, where it is long enough"


def test_one_short_sentence_is_one_caption_that_lingers() -> None:
    (cue,) = lay_out([(None, spoken("Hello there.", start_ms=2000))], duration_ms=10_000)
    assert cue == Cue(start_ms=2000, end_ms=3400, lines=("Hello there.",))


def test_captions_break_where_sentences_end() -> None:
    text = "The birch canoe slid on the smooth planks. Glue the sheet to the dark blue background."
    cues = lay_out([(None, spoken(text, ms_a_word=400))], duration_ms=60_000)
    assert texts(cues) == [
        "The birch canoe slid on the smooth planks.",
        "Glue the sheet to the / dark blue background.",
    ]


def test_without_signs_captions_break_at_pauses() -> None:
    text = "it is easy to tell the depth of a well these days a chicken leg is a rare dish"
    cues = lay_out([(None, spoken(text, ms_a_word=350, pauses={"well": 600}))], duration_ms=60_000)
    assert texts(cues) == ["it is easy to tell the depth of a well", "these days a chicken leg is a rare dish"]


def test_a_long_pause_is_never_within_a_caption() -> None:
    cues = lay_out([(None, spoken("so then yes", pauses={"then": 4000}))], duration_ms=20_000)
    assert [(text, cue.start_ms) for text, cue in zip(texts(cues), cues, strict=True)] == [
        ("so then", 0),
        ("yes", 4600),
    ]
    assert cues[0].end_ms == 1400, "it does not stay through the pause"


def test_what_is_spoken_too_fast_stays_until_it_can_be_read() -> None:
    words = spoken("incomprehensibilities notwithstanding internationalisation", ms_a_word=100)
    (cue,) = lay_out([(None, words)], duration_ms=20_000)
    assert cue.end_ms - cue.start_ms == 50 * sum(map(len, cue.lines))


def test_at_the_end_of_the_audio_a_caption_begins_earlier() -> None:
    (cue,) = lay_out([(None, spoken("Goodbye then.", start_ms=5_600, ms_a_word=100))], duration_ms=5_900)
    assert (cue.start_ms, cue.end_ms) == (4_900, 5_900)


def test_audio_too_short_to_read_its_words_is_overrun() -> None:
    (cue,) = lay_out([(None, spoken("Yes.", ms_a_word=200))], duration_ms=300)
    assert (cue.start_ms, cue.end_ms) == (0, 1000)


def test_a_word_wider_than_a_line_is_cut() -> None:
    assert texts(lay_out([(None, spoken("a" * 100))], duration_ms=9_000)) == ["a" * 42, f"{'a' * 42} / {'a' * 16}"]
    wide = texts(lay_out([(None, spoken("語" * 30))], duration_ms=9_000))
    assert wide == [f"{'語' * 21} / {'語' * 9}"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x " * 20 + "x", ("x " * 20 + "x",)),
        (
            "Glue the sheet to the dark blue, and then wait here",
            ("Glue the sheet to the dark blue,", "and then wait here"),
        ),
        ("one two three four five six seven eight nine ten", ("one two three four five", "six seven eight nine ten")),
        ("a " * 43, None),
    ],
)
def test_lines_are_even_or_after_a_comma(text: str, lines: tuple[str, ...] | None) -> None:
    words = text.split()
    assert cue_lines(words, [False] * len(words)) == (None if lines is None else tuple(line.strip() for line in lines))


def test_speakers_are_named_and_never_shown_at_once() -> None:
    turns = [("Channel 0", spoken("How are you?")), ("Channel 1", spoken("Fine.", start_ms=500))]
    cues = lay_out(turns, duration_ms=9_000)
    assert texts(cues) == ["Channel 0: How are you?", "Channel 1: Fine."]
    assert broken_rules(cues) == []
    assert texts(lay_out(turns, duration_ms=9_000, label="")) == ["How are you?", "Fine."]


def test_nothing_said_gives_no_caption() -> None:
    assert lay_out([], duration_ms=1_000) == lay_out([(None, [])], duration_ms=1_000) == []
