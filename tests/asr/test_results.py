from pathlib import Path

from asr.results import TURN_PAUSE_MS, FileResult
from asr.words import Transcript, Word


def said(*words: tuple[str, int, int]) -> Transcript:
    return Transcript(
        words=tuple(Word(text=t, start_ms=a, end_ms=b, emitted_ms=b, confidence=1.0) for t, a, b in words),
        audio_samples=160_000,
    )


def turns(*transcripts: Transcript) -> list[tuple[int, str]]:
    return [(turn.channel, turn.text) for turn in FileResult(path=Path("a"), transcripts=transcripts).turns()]


def test_turns_are_by_time_and_whole() -> None:
    one = said(("how", 0, 200), ("are", 250, 400), ("you", 450, 600), ("good", 3000, 3200))
    other = said(("well", 500, 700), ("thanks", 800, 1000))
    assert turns(one, other) == [(0, "how are you"), (1, "well thanks"), (0, "good")]


def test_one_channel_that_pauses_keeps_its_turn() -> None:
    assert turns(said(("a", 0, 100), ("b", 100 + TURN_PAUSE_MS, 2000))) == [(0, "a b")]
    assert turns(said(), said(("b", 0, 9))) == [(1, "b")]
    assert turns(said()) == []


def test_no_word_is_lost_and_each_channels_order_is_kept() -> None:
    one = said(*((f"a{k}", 500 * k, 500 * k + 300 + 7 * k) for k in range(40)))
    other = said(*((f"b{k}", 610 * k + 90, 610 * k + 300) for k in range(30)))
    result = FileResult(path=Path("a"), transcripts=(one, other))
    for channel, transcript in enumerate((one, other)):
        words = [word for turn in result.turns() if turn.channel == channel for word in turn.words]
        assert words == list(transcript.words)


def test_a_results_length_is_its_longest_channels() -> None:
    assert FileResult(path=Path("a")).audio_samples == 0
    assert (
        FileResult(path=Path("a"), transcripts=(said(), Transcript(words=(), audio_samples=7))).audio_samples == 160_000
    )
