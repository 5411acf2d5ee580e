"""The whole road of recipes/README.md, every stage once, on a folder of clips and a Whisper of random weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import asr
from asr.model import CrossConfig
from recipes import align, convert, ctc, evaluate, export, gate, grpo, mtp, prepare, spell, teacher, tokenizer, tune
from recipes.data import read_manifest
from recipes.runs import METRICS
from recipes.teacher import read_words
from tests.asr.importers.test_untrained_whisper import write_whisper

SAMPLES = Path(__file__).parents[2] / "samples" / "transcripts.jsonl"
SETTINGS = {
    "tune": "steps: 2\nsave_every: 1\nlog_every: 1\nbatch_seconds: 12\nlongest_ms: 9000\n",
    "grpo": "steps: 2\nsave_every: 1\nrecordings: 1\ngroup: 2\nlongest_ms: 5000\ntail_steps: 4\ngate_hidden: 4\n",
    "mtp": "heads: 2\npieces: 60\nbatch_rows: 16\nhead_epochs: 1\nheld_out: 0.3\n",
}


@pytest.mark.slow
def test_a_folder_of_recordings_becomes_a_model(tmp_path: Path) -> None:
    w = tmp_path  # no space in its name, or the commands below would fall apart
    for name, text in SETTINGS.items():
        (w / f"{name}.yaml").write_text(text)
    (w / "card.md").write_text("# Toy\n")
    write_whisper(w / "whisper")
    manifest = w / "data" / "train.jsonl"

    def run(main: Callable[[Sequence[str]], int], command: str) -> None:
        assert main(command.split()) == 0

    run(prepare.main, f"{SAMPLES} --out {w}/data --max-ms 9000")
    clips = read_manifest(manifest)
    assert 5 <= len(clips) <= 15
    run(align.main, f"--manifest {manifest} --out {w}/aligned.jsonl")
    run(tokenizer.main, f"--text {manifest} --size 60 --out {w}/pieces")
    run(convert.main, f"--whisper {w}/whisper --text {manifest} --out {w}/untrained --name toy --min-count 1")
    spoken = f"--manifest {manifest} --alignments {w}/aligned.jsonl"
    run(spell.main, f"--model {w}/untrained {spoken} --out {w}/taught")
    assert set(read_words(w / "taught")) == {clip.audio for clip in clips}
    run(teacher.main, f"--model {w}/untrained {spoken} --out {w}/taught --taught-hours 0")
    heard = f"--features {w}/taught --manifest {manifest} --tokenizer {w}/pieces/tokenizer.model"
    run(ctc.main, f"--model {w}/untrained {heard} --out {w}/headed --hidden 8 --minutes 0.05")
    data = f"--data {manifest} {w}/taught"
    run(tune.main, f"--config {w}/tune.yaml --model {w}/headed {data} --out {w}/tuned")
    tuned = f"--model {w}/tuned/checkpoint"
    small = "--hidden 4 --hours 0.001 --epochs 1"
    run(gate.main, f"{tuned} --words {w}/taught --manifest {manifest} --out {w}/gated {small}")
    run(grpo.main, f"{tuned} --config {w}/grpo.yaml {data} --out {w}/grpo --plot")
    base = f"{w}/grpo/checkpoint"
    run(export.main, f"--base {base} {base} --card {w}/card.md --name toy --out {w}/mean")
    run(mtp.main, f"--model {w}/mean --taught {w}/taught --config {w}/mtp.yaml --out {w}/final")
    scored = f"--manifest {manifest} --alignments {w}/aligned.jsonl --every 3 --out {w}/results.jsonl"
    run(evaluate.main, f"--model {w}/final {scored} --plots {w}/plots")

    final = asr.load(w / "final")
    assert isinstance(final.config, CrossConfig)
    assert final.config.gate_corrects
    assert final.config.mtp_heads == 2
    assert final.ctc_tokenizer is not None
    assert asr.transcribe(final, clips[0].path).audio_samples > 16_000
    assert json.loads((w / "results.jsonl").read_text())["clips"] >= 2
    assert (w / "grpo" / METRICS).exists()
    assert (w / "plots" / "frontier.png").exists()
