"""Forced alignment of words.

The clip is LibriSpeech dev-clean 1993-147149-0026 (CC BY 4.0, Panayotov et al., openslr.org/12).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

import recipes.align as align_module
from asr.errors import ConfigError
from recipes.align import (
    AlignedWord,
    Unalignable,
    WordAligner,
    align_manifest,
    group_spans,
    main,
    read_alignments,
    spoken_words,
)
from recipes.data import load_audio, read_manifest

SPEECH = Path(__file__).parents[2] / "samples" / "audio" / "1993-147149-0026.opus"
TEXT = "But will he - thank me for it?"

pytest.importorskip("pocketsphinx")


@pytest.fixture(scope="module")
def aligner() -> WordAligner:
    return WordAligner()


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Two clips that can be aligned and three that cannot."""
    speech, silence, broken = (tmp_path / name for name in ("speech.wav", "silence.wav", "broken.wav"))
    soundfile.write(speech, load_audio(SPEECH).numpy(), 16_000)
    soundfile.write(silence, torch.zeros(800).numpy(), 16_000)
    broken.write_text("no audio")
    lines = [
        {"audio": "speech.wav", "text": TEXT},
        {"audio": "silence.wav", "text": "words"},
        {"audio": "broken.wav", "text": "words"},
        {"audio": "unlabelled.wav"},
    ]
    path = tmp_path / "clips.jsonl"
    common = {"duration": 2.255, "source": "s", "licence": "l", "subset_tag": "t"}
    path.write_text("".join(json.dumps(line | common) + "\n" for line in lines))
    return path


def test_words_lie_where_the_speech_is(aligner: WordAligner) -> None:
    samples = load_audio(SPEECH)
    words = aligner.align(samples, TEXT)
    assert [word.text for word in words] == TEXT.split()
    ends = [word.end_ms for word in words]
    assert ends == sorted(ends)
    assert all(a.end_ms <= b.start_ms for a, b in pairwise(words))
    dash = words[3]
    assert dash.start_ms == dash.end_ms == words[2].end_ms  # unspoken: no time of its own
    power = samples[: len(samples) // 160 * 160].view(-1, 160).square().mean(dim=1)  # of 10 ms each
    spoken = torch.zeros_like(power, dtype=torch.bool)
    for word in words:
        spoken[word.start_ms // 10 : word.end_ms // 10] = True
    assert power[spoken].mean() > 30 * power[~spoken].mean()
    # Read off the levels: the voice sets in at 0.55 s and stops at 1.74 s; the closure of the last t follows.
    assert 490 <= words[0].start_ms <= 560
    assert 1740 <= words[-1].end_ms <= 1900


def test_silence_before_moves_every_word_by_its_length(aligner: WordAligner) -> None:
    samples = load_audio(SPEECH)
    noise = torch.randn(8_000, generator=torch.Generator().manual_seed(0)) * 1e-3
    early = aligner.align(torch.cat([noise[:4_000], samples]), TEXT)
    late = aligner.align(torch.cat([noise, samples]), TEXT)
    assert all(abs(b.end_ms - a.end_ms - 250) <= 30 for a, b in zip(early, late, strict=True))


def test_an_unknown_word_is_given_a_pronunciation(aligner: WordAligner) -> None:
    words = aligner.align(load_audio(SPEECH), "But will he thankk me forrit?")
    known = aligner.align(load_audio(SPEECH), "But will he thank me for it?")
    assert words[-1].text == "forrit?"
    assert abs(words[-1].start_ms - known[5].start_ms) <= 60
    assert abs(words[-1].end_ms - known[-1].end_ms) <= 60


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("It’s a well-known fact.", [["it's"], ["a"], ["well", "known"], ["fact"]]),
        ("wait - what", [["wait"], [], ["what"]]),
        ("'tis goin' ...", [["'tis"], ["goin'"], []]),
    ],
)
def test_spoken_words_map_one_to_one(text: str, groups: list[list[str]]) -> None:
    assert spoken_words(text) == groups


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("in 1844", "digits in the transcript"),
        ("a café", "letters outside a-z in the transcript"),
        ("- ...", "no spoken word in the transcript"),
    ],
)
def test_transcripts_that_cannot_be_spoken(aligner: WordAligner, text: str, reason: str) -> None:
    with pytest.raises(Unalignable, match=reason):
        aligner.align(torch.zeros(16_000), text)


def test_audio_that_cannot_hold_the_words(aligner: WordAligner) -> None:
    with pytest.raises(Unalignable, match="shorter than 100 ms"):
        aligner.align(torch.zeros(1_599), "yes")
    with pytest.raises(Unalignable, match="no path of the transcript through the audio"):
        aligner.align(load_audio(SPEECH)[:4_000], "but will he thank me for it and many more words beside")


def test_a_path_lost_by_the_narrow_search_is_found_by_the_wide(
    aligner: WordAligner, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = aligner.align(load_audio(SPEECH), TEXT)
    real: Callable[..., list[tuple[int, int]] | None] = align_module._force
    monkeypatch.setattr(align_module, "_force", lambda d, w, p: None if d is aligner._narrow else real(d, w, p))
    found = aligner.align(load_audio(SPEECH), TEXT)
    assert [word.text for word in found] == [word.text for word in expected]
    assert all(abs(a.end_ms - b.end_ms) <= 20 for a, b in zip(found, expected, strict=True))


def test_what_fails_is_counted_and_nothing_is_done_twice(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out" / "aligned.jsonl"
    assert main(["--manifest", str(manifest), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "4 clips, 3 not aligned" in said.out
    assert "     1  no transcript" in said.out
    assert "     1  shorter than 100 ms" in said.out
    assert "4/4 clips, 3 failed" in said.err
    first = out.read_bytes()
    assert main(["--manifest", str(manifest), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "0 of 4 clips to align" in said.err
    assert "4 clips, 3 not aligned" in said.out  # the report still knows
    assert out.read_bytes() == first


def test_a_killed_run_goes_on_where_it_stopped(manifest: Path, tmp_path: Path) -> None:
    out = tmp_path / "aligned.jsonl"
    clips = read_manifest(manifest)[:1]
    align_manifest(clips, out, processes=1)
    whole = out.read_text()
    out.write_text('{"audio": "speech.w')  # cut in the middle of its line
    align_manifest(clips, out, processes=1)
    assert out.read_text() == whole


def test_two_processes_write_what_one_does(manifest: Path, tmp_path: Path) -> None:
    clips = read_manifest(manifest)
    for processes in (1, 2):
        align_manifest(clips, tmp_path / f"{processes}.jsonl", processes=processes)
    assert (tmp_path / "1.jsonl").read_text() == (tmp_path / "2.jsonl").read_text()


def test_alignments_are_read_back(manifest: Path, tmp_path: Path, aligner: WordAligner) -> None:
    out = tmp_path / "aligned.jsonl"
    align_manifest(read_manifest(manifest), out, processes=1)
    clips = read_alignments(out)
    assert list(clips) == ["speech.wav"]
    assert clips["speech.wav"].text == TEXT
    assert isinstance(clips["speech.wav"].words[0], AlignedWord)
    assert clips["speech.wav"].to_json() + "\n" == out.read_text()
    out.write_text('{"audio": "a", "text": "b", "words": [{"text": "b"}]}\n')
    with pytest.raises(ConfigError, match=r"aligned\.jsonl, line 1: not an aligned clip"):
        read_alignments(out)


def test_settings_that_cannot_work(manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "aligned.jsonl")
    assert main(["--manifest", str(manifest), "--out", out, "--processes", "0"]) == 2
    assert "--processes is 0; it must be 1 or more" in capsys.readouterr().err
    assert main(["--manifest", str(manifest), "--out", out, "--skip-subset", "t"]) == 0
    assert "0 clips, 0 not aligned" in capsys.readouterr().out


class ScriptedDecoder:
    """A decoder whose search ends in a given segmentation of (word, first frame, last frame)."""

    def __init__(self, dictionary: dict[str, str], segments: list[tuple[str, int, int]] | None) -> None:
        self.dictionary = dictionary
        self.segments = segments
        self.asked = ""
        self.calls: list[str] = []

    def lookup_word(self, word: str) -> str | None:
        return self.dictionary.get(word)

    def add_word(self, word: str, phones: str, update: bool) -> None:
        assert update  # else the search would not know the word
        self.dictionary[word] = phones

    def set_align_text(self, text: str) -> None:
        self.asked = text

    def start_utt(self) -> None:
        self.calls.append("start")

    def process_raw(self, pcm: bytes, full_utt: bool) -> None:
        assert full_utt  # else the cepstral mean would be the clip before's
        self.calls.append("process")

    def end_utt(self) -> None:
        self.calls.append("end")

    def hyp(self) -> object | None:
        return None if self.segments is None else self

    def seg(self) -> list[SimpleNamespace]:
        assert self.segments is not None
        return [SimpleNamespace(word=w, start_frame=a, end_frame=b) for w, a, b in self.segments]


def test_segments_become_milliseconds_without_fillers_and_variants() -> None:
    segments = [("<sil>", 0, 9), ("the(2)", 10, 14), ("++NOISE++", 15, 20), ("[NOISE]", 21, 22), ("cat", 23, 40)]
    decoder = ScriptedDecoder({"the": "DH AH", "cat": "K AE T"}, [*segments, ("<sil>", 41, 50)])
    assert align_module._force(decoder, ["the", "cat"], b"") == [(100, 150), (230, 410)]
    assert decoder.asked == "the cat"
    assert decoder.calls == ["start", "process", "end"]


def test_a_path_cut_short_is_no_alignment() -> None:
    dictionary = {"the": "DH AH", "cat": "K AE T"}
    cut = ScriptedDecoder(dictionary, [("<sil>", 0, 9), ("the", 10, 14)])
    assert align_module._force(cut, ["the", "cat"], b"") is None
    assert align_module._force(ScriptedDecoder(dictionary, None), ["the", "cat"], b"") is None


def test_words_the_dictionary_lacks_are_added_once_each() -> None:
    decoder = ScriptedDecoder({"cat": "K AE T"}, [("cats", 0, 4), ("cats", 5, 9)])
    assert align_module._force(decoder, ["cats", "cats"], b"") == [(0, 50), (50, 100)]
    assert decoder.dictionary == {"cat": "K AE T", "cats": "K AE T S"}
    with pytest.raises(Unalignable, match='no pronunciation for "\'"'):
        align_module._force(decoder, ["'"], b"")


def test_a_hyphenated_word_spans_its_parts() -> None:
    words = ["a", "well-known", "-", "fact"]
    spans = [(0, 100), (100, 300), (320, 700), (800, 1200)]
    aligned = group_spans(words, spoken_words(" ".join(words)), spans, duration_ms=2000)
    assert [(word.start_ms, word.end_ms) for word in aligned] == [(0, 100), (100, 700), (700, 700), (800, 1200)]


def test_times_stay_within_the_clip() -> None:
    # The last frame may reach past the last sample.
    (word,) = group_spans(["a"], [["a"]], [(1990, 2010)], duration_ms=1995)
    assert (word.start_ms, word.end_ms) == (1990, 1995)
    (word,) = group_spans(["a"], [["a"]], [(2000, 2010)], duration_ms=1995)
    assert word.start_ms < word.end_ms == 1995


@st.composite
def grouped_spans(draw: st.DrawFn) -> tuple[list[list[str]], list[tuple[int, int]]]:
    groups = [["x"] * draw(st.integers(0, 3)) for _ in range(draw(st.integers(1, 6)))]
    spans, end = [], 0
    for _ in range(sum(map(len, groups))):
        start = end + draw(st.integers(0, 300))
        end = start + draw(st.integers(10, 400))
        spans.append((start, end))
    return groups, spans


@given(case=grouped_spans())
def test_every_word_has_its_own_time_in_order(case: tuple[list[list[str]], list[tuple[int, int]]]) -> None:
    groups, spans = case
    words = [f"w{i}" for i in range(len(groups))]
    aligned = group_spans(words, groups, spans, duration_ms=10_000)
    assert [word.text for word in aligned] == words
    last = 0
    for group, word in zip(groups, aligned, strict=True):
        assert last <= word.start_ms
        assert (word.start_ms < word.end_ms) if group else (word.start_ms == word.end_ms == last)
        last = word.end_ms
    assert last == (spans[-1][1] if spans else 0)


def test_without_the_aligner_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)  # what an absent package looks like to import
    with pytest.raises(ConfigError, match=r"pip install 'earlybird-asr\[train\]'"):
        WordAligner()
