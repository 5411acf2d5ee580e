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
from recipes.subtitle_check import broken_rules, main, read_srt, read_vtt
from server.writers import render_ctm, render_json, render_text
from server.writers_subtitles import cues_of, render_srt, render_vtt
from tests.streaming.test_subtitles import spoken

ODD = ["{b}", "<i>", "&amp;", "-->", "d\\N\\h{\\i1}e", "1", "00:00:01,000", "NOTE", "it's", "日本"]


def result_of(*lanes: list[Word], seconds: int = 60) -> FileResult:
    transcripts = tuple(Transcript(words=tuple(words), audio_samples=seconds * 16_000) for words in lanes)
    return FileResult(path=Path("a.wav"), transcripts=transcripts)


@settings(max_examples=30, deadline=None)
@given(words=st.lists(st.sampled_from([*ODD, "the", "cat", "sat.", "and,"]), min_size=1, max_size=40))
def test_two_other_parsers_read_what_was_laid_out(words: list[str]) -> None:
    result = result_of(spoken(" ".join(words)))
    cues = cues_of(result, label="")
    assert broken_rules(cues) == []
    assert read_srt(render_srt(result, "a.wav")) == cues
    assert read_vtt(render_vtt(result, "a.wav")) == cues


BAD = """WEBVTT

00:00:01.000 --> 00:00:01.900
too short

00:00:03.000 --> 00:00:05.500
a line that is too long for a screen, by far

00:00:04.000 --> 00:00:05.500
on the screen with another, and too fast
to be read
"""


def test_a_folder_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = result_of(spoken("Hello there, <friend>. " * 10))
    (tmp_path / "in").mkdir()
    good = tmp_path / "in" / "good.srt"
    good.write_text(render_srt(result, "a.wav"))
    good.with_suffix(".vtt").write_text(render_vtt(result, "a.wav"))
    assert main([str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["files"], told["rules_broken"], told["parsers_differ"]) == (1, [], [])
    assert told["captions"] > 1
    bad = tmp_path / "bad.srt"
    bad.write_text(BAD.removeprefix("WEBVTT\n\n").replace(".", ","))
    bad.with_suffix(".vtt").write_text(BAD.replace("too short", "too brief"))
    assert main([str(tmp_path)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [rule.split(": ")[1] for rule in told["rules_broken"]] == ["overlap", "time", "lines", "too fast"]
    assert told["parsers_differ"] == [str(bad)]
    bad.with_suffix(".vtt").write_text("no header")
    assert main([str(tmp_path)]) == 2
    assert main([str(tmp_path / "none")]) == 2
    assert "there is no .srt file" in capsys.readouterr().err


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
    assert [cue.lines for cue in read_srt(render_srt(call, "a.wav"))] == [
        ("Channel 0: how are you",),
        ("Channel 1: well thanks",),
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
