"""What pysubs2 wrote is read by parsers that are not pysubs2."""

import io
import json
from pathlib import Path

import pytest
import srt
import webvtt
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.results import FileResult
from asr.words import Transcript, Word
from server.writers import render_ctm, render_json, render_text
from server.writers_subtitles import cues_of, render_srt, render_vtt
from tests.streaming.test_subtitles import broken_rules, spoken

ODD = ["{b}", "<i>", "&amp;", "-->", "d\\N\\h{\\i1}e", "1", "00:00:01,000", "NOTE", "it's", "日本"]


def result_of(*lanes: list[Word], seconds: int = 60) -> FileResult:
    transcripts = tuple(Transcript(words=tuple(words), audio_samples=seconds * 16_000) for words in lanes)
    return FileResult(path=Path("a.wav"), transcripts=transcripts)


def read_srt(text: str) -> list[tuple[int, int, str]]:
    return [
        (round(s.start.total_seconds() * 1000), round(s.end.total_seconds() * 1000), s.content) for s in srt.parse(text)
    ]


def read_vtt(text: str) -> list[tuple[int, int, str]]:
    captions = webvtt.from_buffer(io.StringIO(text)).captions
    return (
        [(round(c.start_in_seconds * 1000), round(c.end_in_seconds * 1000), "\n".join(c.lines)) for c in captions]
        if captions and isinstance(captions[0].start_in_seconds, float)
        else [(_ms(c.start), _ms(c.end), "\n".join(c.lines)) for c in captions]
    )


def _ms(stamp: str) -> int:
    hours, minutes, seconds = stamp.split(":")
    return (int(hours) * 60 + int(minutes)) * 60_000 + round(float(seconds) * 1000)


def unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


@settings(max_examples=30, deadline=None)
@given(words=st.lists(st.sampled_from([*ODD, "the", "cat", "sat.", "and,"]), min_size=1, max_size=40))
def test_two_other_parsers_read_what_was_laid_out(words: list[str]) -> None:
    result = result_of(spoken(" ".join(words)))
    cues = cues_of(result, label="")
    assert broken_rules(cues) == []
    laid_out = [(cue.start_ms, cue.end_ms, "\n".join(cue.lines)) for cue in cues]
    plain = [(start, end, text.replace("\u200b", "")) for start, end, text in read_srt(render_srt(result, "a.wav"))]
    assert plain == laid_out
    from_vtt = read_vtt(render_vtt(result, "a.wav"))
    assert [(start, end, unescaped(text).replace("\u200b", "")) for start, end, text in from_vtt] == laid_out


def test_known_subtitles() -> None:
    result = result_of(spoken("Hello there, <friend>.", start_ms=3_599_900, ms_a_word=500), seconds=4000)
    assert render_srt(result, "a.wav") == "1\n00:59:59,900 --> 01:00:02,200\nHello there, <friend>.\n"
    vtt = "WEBVTT\n\n1\n00:59:59.900 --> 01:00:02.200\nHello there, &lt;friend&gt;.\n"
    assert render_vtt(result, "a.wav") == vtt


def test_silence_gives_valid_and_empty_subtitles() -> None:
    silent = result_of([])
    assert render_srt(silent, "a.wav") == ""
    assert list(srt.parse(render_srt(silent, "a.wav"))) == []
    assert render_vtt(silent, "a.wav") == "WEBVTT\n"
    assert len(webvtt.from_buffer(io.StringIO(render_vtt(silent, "a.wav")))) == 0
    assert render_ctm(silent, "a.wav") == render_text(silent, "a.wav") == ""


@pytest.fixture
def call() -> FileResult:
    return result_of(spoken("how are you"), spoken("well thanks", start_ms=1_000))


def test_channels_are_named_in_every_format(call: FileResult) -> None:
    assert render_text(call, "a.wav") == "channel 0: how are you\nchannel 1: well thanks\n"
    assert [text for _, _, text in read_srt(render_srt(call, "a.wav"))] == [
        "Channel 0: how are you",
        "Channel 1: well thanks",
    ]
    captions = webvtt.from_buffer(io.StringIO(render_vtt(call, "a.wav"))).captions
    assert [(caption.voice, caption.text) for caption in captions] == [
        ("Channel 0", "how are you"),
        ("Channel 1", "well thanks"),
    ]
    result = json.loads(render_json(call, "a.wav"))
    assert [(word["text"], word["channel"]) for word in result["words"]] == [
        ("how", 0), ("are", 0), ("you", 0), ("well", 1), ("thanks", 1)
    ]  # fmt: skip
    assert [(one["channel"], one["text"]) for one in result["channels"]] == [(0, "how are you"), (1, "well thanks")]
    assert result["text"] == "channel 0: how are you\nchannel 1: well thanks"
    assert (result["duration"], result["warnings"]) == (60.0, [])
    assert [line.split()[1] for line in render_ctm(call, "a.wav").splitlines()] == ["1", "1", "1", "2", "2"]


def test_ctm_has_six_fields_whatever_the_name(call: FileResult) -> None:
    lines = render_ctm(result_of(spoken("the cat", start_ms=1_040)), "in/two  words\n.wav").splitlines()
    assert lines == ["two__words_ 1 1.040 0.300 the 1.0000", "two__words_ 1 1.340 0.300 cat 1.0000"]
