"""Alignment by the CTC head: borders by hand, scripted steps, torchaudio's path, and real speech beside PocketSphinx.

The clips are those of samples/ (samples/README.md has their licences).
"""

from __future__ import annotations

import json
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import asr
from asr.errors import ConfigError
from asr.model import Model
from asr.units import STEP_MS, STEP_SAMPLES
from recipes.align import AlignerChoice, Unalignable, WordAligner, main, read_alignments
from recipes.align_ctc import CtcAligner, word_spans
from recipes.data import load_audio
from tests.tiny_model import tiny_ctc_model, tiny_model

SAMPLES = Path(__file__).parents[2] / "samples" / "transcripts.jsonl"
SPEECH = SAMPLES.parent / "audio" / "1034-121119-0000.opus"
TEXT = "Chapter ninety nine the law we have seen how quietly"
MISHEARD = "audio/1993-147149-0026.opus"
"""The head hears other words there."""


# -- borders ---------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=4), min_size=1, max_size=6)
)
def test_words_have_time_of_their_own_in_order(words: list[list[tuple[int, int]]]) -> None:
    first, last, at = [], [], 0
    for word in words:
        for gap, length in word:
            first.append(at + gap)
            last.append(at + gap + length)
            at = last[-1] + 1
    spans = word_spans(first, last, [len(word) for word in words])
    assert all(start < end for start, end in spans)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    ends = iter(last)
    for (_, end), word in zip(spans, words, strict=True):
        step = [next(ends) for _ in word][-1]
        assert -20 <= end - (step + 1) * STEP_MS <= 25


# -- scripted steps --------------------------------------------------------------------------------------------------


class Scripted(CtcAligner):
    """An aligner whose head hears given labels in given steps, and blanks elsewhere."""

    def __init__(self, model: Model, heard: dict[int, int], steps: int) -> None:
        super().__init__(model)
        self.heard, self.steps = heard, steps

    def log_probs(self, samples: Tensor) -> Tensor:
        logits = torch.zeros(self.steps, self._tokenizer.blank + 1)
        logits[:, self._tokenizer.blank] = 5.0
        for step, label in self.heard.items():
            logits[step, label] = 10.0
        return logits.log_softmax(-1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_ctc_model(tmp_path_factory.mktemp("tiny"))


def said(model: Model, *words: str, gap: int = 4) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Labels of words, one in every second step, `gap` steps of silence before each word; steps of each word."""
    assert model.ctc_tokenizer is not None
    heard: dict[int, int] = {}
    where, step = [], 0
    for pieces in model.ctc_tokenizer.encode(list(words)):
        step += gap
        begin = step
        for piece in pieces:
            heard[step] = piece
            step += 2
        where.append((begin, step - 2))
    return heard, where


def test_words_lie_where_their_labels_are(tiny: Model) -> None:
    heard, where = said(tiny, "the", "cat", "dog", "mat")
    aligner = Scripted(tiny, heard, steps=80)
    words = aligner.align(torch.zeros(80 * STEP_SAMPLES), "The cat-dog, – mat!")
    assert [word.text for word in words] == ["The", "cat-dog,", "–", "mat!"]
    spans = [(first * STEP_MS - 65, (last + 1) * STEP_MS + 25) for first, last in where]
    assert (words[0].start_ms, words[0].end_ms) == spans[0]
    assert (words[1].start_ms, words[1].end_ms) == (spans[1][0], spans[2][1])
    assert words[2].start_ms == words[2].end_ms == spans[2][1]
    assert (words[3].start_ms, words[3].end_ms) == spans[3]


def test_times_stay_within_the_clip(tiny: Model) -> None:
    heard, where = said(tiny, "cat", gap=0)
    samples = torch.zeros((where[0][1] + 1) * STEP_SAMPLES - 100)
    (word,) = Scripted(tiny, heard, steps=where[0][1] + 1).align(samples, "cat")
    assert word.start_ms == 0
    assert word.end_ms == samples.shape[0] // 16


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dog dog dog", "the audio does not sound like the transcript"),
        ("the cat " * 30, "no path of the transcript through the audio"),
        ("in 1844", "digits in the transcript"),
        ("- ...", "no spoken word"),
    ],
)
def test_what_cannot_be_aligned_has_a_reason(tiny: Model, text: str, reason: str) -> None:
    heard, _ = said(tiny, "the", "cat", "sat")
    with pytest.raises(Unalignable, match=reason):
        Scripted(tiny, heard, steps=60).align(torch.zeros(60 * STEP_SAMPLES), text)


def test_a_clip_ends_where_the_encoder_s_positions_do(tiny: Model) -> None:
    aligner = CtcAligner(tiny)
    frames = aligner._recogniser.encoder_positions.shape[0]
    longest = frames // 4 - 8
    assert aligner.log_probs(torch.zeros(longest * STEP_SAMPLES)).shape[0] == longest
    with pytest.raises(Unalignable, match=f"longer than {longest * 80} ms"):
        aligner.log_probs(torch.zeros(longest * STEP_SAMPLES + 1))


def test_a_model_without_the_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tiny has no CTC head to align with"):
        CtcAligner(tiny_model(tmp_path))


# -- real speech -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def aligner() -> CtcAligner:
    return CtcAligner(asr.load("earlybird-en"))


def test_the_path_is_torchaudio_s(aligner: CtcAligner) -> None:
    functional = pytest.importorskip("torchaudio.functional")
    samples = load_audio(SPEECH)
    log_probs, tokenizer = aligner.log_probs(samples), aligner._tokenizer
    pieces = tokenizer.encode(TEXT.lower().split())
    targets = torch.tensor([[label for word in pieces for label in word]])
    path, _ = functional.forced_align(log_probs[None], targets, blank=tokenizer.blank)
    runs, step = [], 0
    for label, run in groupby(path[0].tolist()):
        size = len(list(run))
        if label != tokenizer.blank:
            runs.append((step, step + size - 1))
        step += size
    first, last = zip(*runs, strict=True)
    theirs = word_spans(first, last, [len(word) for word in pieces])
    ours = [(word.start_ms, word.end_ms) for word in aligner.align(samples, TEXT)]
    assert ours == theirs


def test_ends_are_near_pocketsphinx_s(aligner: CtcAligner) -> None:
    """Over the short sample clips: two aligners that share nothing agree on when words ended."""
    pytest.importorskip("pocketsphinx")
    other = WordAligner()
    apart: list[int] = []
    for entry in map(json.loads, SAMPLES.read_text().splitlines()):
        samples = load_audio(SAMPLES.parent / entry["audio"])
        if samples.shape[0] < 8 * 16_000 and entry["audio"] != MISHEARD:
            pair = aligner.align(samples, entry["text"]), other.align(samples, entry["text"])
            apart += [mine.end_ms - theirs.end_ms for mine, theirs in zip(*pair, strict=True)]
    assert len(apart) > 50
    assert abs(median(apart)) <= 20
    assert median(map(abs, apart)) <= 50


def test_another_transcript_and_half_of_the_right_one_are_refused(aligner: CtcAligner) -> None:
    for wrong in ("some people never knew", " ".join(TEXT.split()[:5])):
        with pytest.raises(Unalignable, match="does not sound like"):
            aligner.align(load_audio(SPEECH), wrong)


def test_the_command_aligns_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], aligner: CtcAligner
) -> None:
    common = {"audio": str(SPEECH), "duration": 2.3, "source": "s", "licence": "l"}
    entries = [common | {"text": TEXT}, common | {"audio": f"{SPEECH.parent}/../audio/{SPEECH.name}", "text": "12"}]
    (tmp_path / "clips.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    out = tmp_path / "aligned.jsonl"
    arguments = ["--manifest", str(tmp_path / "clips.jsonl"), "--out", str(out), "--with", "ctc"]
    assert main(arguments) == 0
    assert "     1  digits in the transcript" in capsys.readouterr().out
    (clip,) = read_alignments(out).values()
    assert clip.words == aligner.align(load_audio(SPEECH), TEXT)


def test_pocketsphinx_is_the_default() -> None:
    pytest.importorskip("pocketsphinx")
    assert isinstance(AlignerChoice().open(), WordAligner)
