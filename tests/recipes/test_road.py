"""The whole road of recipes/README.md, every stage once, on a folder of clips and a Whisper of random weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import asr
from asr.model import CrossConfig
from recipes import align, awed, convert, ctc, evaluate, export, gate, grpo, prepare, spell, teacher, tokenizer, tune
from recipes.data import read_manifest
from recipes.runs import METRICS
from recipes.teacher import read_words
from tests.asr.importers.test_untrained_whisper import write_whisper

ROOT = Path(__file__).parents[2]
TUNE = "steps: 2\nsave_every: 1\nlog_every: 1\nbatch_seconds: 12\nlongest_ms: 9000\n"
GRPO = "steps: 2\nsave_every: 1\nrecordings: 1\ngroup: 2\nlongest_ms: 5000\ntail_steps: 4\ngate_hidden: 4\n"

Main = Callable[[Sequence[str]], int]


@pytest.mark.slow
def test_a_folder_of_recordings_becomes_a_model(tmp_path: Path) -> None:
    data, work = tmp_path / "data", tmp_path / "work"
    for name, text in (("tune", TUNE), ("grpo", GRPO)):
        (tmp_path / f"{name}.yaml").write_text(text)
    write_whisper(tmp_path / "whisper")
    manifest, aligned, words = data / "train.jsonl", work / "aligned.jsonl", work / "spelt"

    def run(main: Main, *arguments: object) -> None:
        assert main([str(argument) for argument in arguments]) == 0

    run(prepare.main, ROOT / "samples" / "transcripts.jsonl", "--out", data, "--max-ms", 9000)
    clips = read_manifest(manifest)
    assert 5 <= len(clips) <= 15
    run(align.main, "--manifest", manifest, "--out", aligned)
    run(tokenizer.main, "--text", manifest, "--size", 60, "--out", work / "pieces")
    untrained = work / "untrained"
    run(
        convert.main,
        "--whisper",
        tmp_path / "whisper",
        "--text",
        manifest,
        "--out",
        untrained,
        "--name",
        "toy",
        "--min-count",
        1,
    )
    run(spell.main, "--model", untrained, "--manifest", manifest, "--alignments", aligned, "--out", words)
    assert set(read_words(words)) == {clip.audio for clip in clips}
    features = work / "features"
    run(
        teacher.main,
        "--model",
        untrained,
        "--manifest",
        manifest,
        "--alignments",
        aligned,
        "--out",
        features,
        "--taught-hours",
        0,
    )
    pieces = work / "pieces" / "tokenizer.model"
    headed = work / "headed"
    run(
        ctc.main,
        "--model",
        untrained,
        "--features",
        features,
        "--manifest",
        manifest,
        "--tokenizer",
        pieces,
        "--out",
        headed,
        "--hidden",
        8,
        "--minutes",
        0.05,
    )
    config = ["--config", tmp_path / "tune.yaml"]
    run(tune.main, *config, "--model", headed, "--data", manifest, words, "--out", work / "tuned")
    tuned = work / "tuned" / "checkpoint"
    run(
        gate.main,
        "--model",
        tuned,
        "--words",
        words,
        "--manifest",
        manifest,
        "--out",
        work / "gated",
        "--hidden",
        4,
        "--hours",
        0.001,
        "--epochs",
        1,
    )
    run(
        grpo.main,
        "--config",
        tmp_path / "grpo.yaml",
        "--model",
        tuned,
        "--data",
        manifest,
        words,
        "--out",
        work / "grpo",
        "--plot",
    )
    trained = work / "grpo" / "checkpoint"
    (tmp_path / "card.md").write_text("# Toy\n")
    card = ["--card", tmp_path / "card.md", "--name", "toy"]
    run(export.main, "--base", trained, trained, *card, "--out", work / "final")
    results = work / "results.jsonl"
    run(
        evaluate.main,
        "--model",
        work / "final",
        "--manifest",
        manifest,
        "--alignments",
        aligned,
        "--every",
        3,
        "--out",
        results,
        "--plots",
        work / "plots",
    )
    run(awed.main, results, "--out", work / "plots2")

    final = asr.load(work / "final")
    assert isinstance(final.config, CrossConfig)
    assert final.config.gate_corrects
    assert final.ctc_tokenizer is not None
    assert asr.transcribe(final, clips[0].path).audio_samples > 16_000
    assert json.loads(results.read_text())["clips"] >= 2
    assert (work / "grpo" / METRICS).exists()
    assert (work / "plots" / "frontier.png").exists()
