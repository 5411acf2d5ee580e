"""Evaluation with a recogniser whose speech is known."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asr.errors import ConfigError, EarlybirdError
from asr.model import Model
from asr.transcriber import transcribe
from recipes import evaluate
from recipes.align import AlignedClip, AlignedWord
from recipes.data import load_audio, read_manifest
from recipes.evaluate import chosen_clips, line, main, report, transcripts
from recipes.mixing import rms_db
from tests.scripted import codes, say, scripted_model
from tests.tiny_model import tiny_model

SAID = {
    "a.wav": ("the cat sat", "the cat"),  # one word lost
    "b.wav": ("a dog", "a big dog"),  # one too many
    "c.wav": ("on the mat", "on the mat"),
    "d.wav": ("", "he"),  # nothing was spoken
}
"""Name to transcript and what is written."""
TAGS = {"a.wav": "read", "b.wav": "read", "c.wav": "free", "d.wav": "free"}
LATE_MS = 310
QUIET_STEPS = 12
"""Behind the last word: longer than any delay here, or the flush would write it sooner."""


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return scripted_model(tmp_path)


@pytest.fixture
def manifest(model: Model, tmp_path: Path) -> Path:
    """The clips, and alignments by which every written word is `LATE_MS` late, beside them."""
    entries = []
    with (tmp_path / "aligned.jsonl").open("w") as alignments:
        for name, (reference, written) in SAID.items():
            sound = np.concatenate([say(model, written), codes(*[0] * QUIET_STEPS)])
            soundfile.write(tmp_path / name, sound, 16_000, subtype="FLOAT")
            duration = len(sound) / 16_000
            entry = {"audio": name, "duration": duration, "text": reference, "source": "s", "licence": "l"}
            entries.append(entry | {"subset_tag": TAGS[name]})
            ends = {word.text: word.emitted_ms - LATE_MS for word in transcribe(model, sound, delay_ms=80).words}
            words = tuple(
                AlignedWord(text=word, start_ms=0, end_ms=max(1, ends.get(word, 1))) for word in reference.split()
            )
            if words:
                alignments.write(AlignedClip(audio=name, text=reference, words=words).to_json() + "\n")
    (tmp_path / "clips.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return tmp_path / "clips.jsonl"


def run(model: Model, manifest: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[dict[str, Any]]:
    """The lines of the result file after a run of the command."""
    monkeypatch.setattr(evaluate.asr, "load", lambda _: model)
    out = manifest.parent / "out.jsonl"
    arguments = ["--manifest", str(manifest), "--alignments", str(manifest.parent / "aligned.jsonl")]
    assert main([*arguments, "--model", "scripted", "--out", str(out), *options]) == 0
    return [json.loads(row) for row in out.read_text().splitlines()]


def test_known_answers(model: Model, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = run(model, manifest, monkeypatch, "--delay-ms", "80", "--chunk-ms", "320")
    assert (entry["model"], entry["delay_ms"], entry["chunk_ms"], entry["clips"]) == ("scripted", 80, 320, 4)
    assert entry["wer"] == 25.0  # two errors in eight words
    read, free = entry["subsets"]["read"], entry["subsets"]["free"]
    assert (read["words"], read["deletions"], read["insertions"], read["substitutions"]) == (5, 1, 1, 0)
    assert (read["wer"], free["wer"], free["words"]) == (40.0, 0.0, 3)
    assert entry["empty_reference_insertions"] == 1
    assert entry["interval"][0] <= 25.0 <= entry["interval"][1]
    assert entry["delay"]["matched"] == 7
    assert (entry["delay"]["reference_words"], entry["delay"]["deletions"]) == (8, 1)
    names = ("p50_ms", "p90_ms", "p95_ms", "utterance_p50_ms", "utterance_p90_ms", "utterance_p95_ms")
    assert [entry["delay"][name] for name in names] == [LATE_MS] * 6
    assert (entry["delay"]["matched_share"], entry["delay"]["deletion_rate"]) == (0.875, 0.125)
    assert entry["marks"] == {"f1": None, "wanted": 0, "capitals": None, "words": 0}  # nothing is punctuated
    assert entry["histogram"] == [[LATE_MS // 20 * 20, 7]]
    assert (read["delay"]["matched"], free["delay"]["matched"]) == (4, 3)
    seconds = sum(len(say(model, written)) / 16_000 + 0.08 * QUIET_STEPS for _, written in SAID.values())
    assert entry["audio_seconds"] == pytest.approx(seconds, abs=0.06)


def test_plots_are_drawn_of_what_was_kept(model: Model, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plots = manifest.parent / "plots"
    run(model, manifest, monkeypatch, "--delay-ms", "80", "160", "--plots", str(plots))
    (curve,) = json.loads((plots / "frontier.json").read_text()).values()
    assert [point["delay_ms"] for point in curve] == [80, 160]
    with pytest.raises(ConfigError, match="state --out as well"):
        main(["--manifest", "m", "--alignments", "a", "--plots", str(plots)])


def test_what_is_not_aligned_is_aligned_first(model: Model, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], Path]] = []

    def align(clips: Any, out: Path, *, processes: int) -> Counter[str]:
        asked.append(([clip.audio for clip in clips], out))
        return Counter({"no transcript": 1})

    monkeypatch.setattr(evaluate, "align_manifest", align)
    run(model, manifest, monkeypatch, "--align", "--subset", "read", "--delay-ms", "80")
    assert asked == [(["a.wav", "b.wav"], manifest.parent / "aligned.jsonl")]


def test_the_same_weights_over_whole_clips(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cross = tiny_model(tmp_path)
    pieces = cross.vocabulary.encode(" the cat")
    monkeypatch.setattr(evaluate, "decode_offline", lambda _recogniser, features, _counts: [pieces] * len(features))
    assert len(evaluate.offline_errors(cross, read_manifest(manifest)).clips) == 2  # the third is too long for it
    monkeypatch.setattr(evaluate, "full_context_features", lambda _recogniser, samples, lens: (samples, lens))
    monkeypatch.setattr(cross.recogniser, "max_frames", 1500)
    found = evaluate.offline_errors(cross, read_manifest(manifest))
    # "the cat sat", "a dog", "on the mat" against "the cat": 1, 2 and 2 errors of 8 words; nothing was said in d.
    assert (found.total.errors, found.total.reference_length, found.empty_references.insertions) == (5, 8, 2)
    scripted = scripted_model(tmp_path)
    monkeypatch.setattr(evaluate, "offline_errors", lambda _model, _clips: found)
    (entry,) = run(scripted, manifest, monkeypatch, "--offline", "--delay-ms", "80")
    assert entry["offline"] == {"wer": 62.5, "clips": 3}


def test_only_a_full_context_model_can_hear_whole_clips(model: Model, manifest: Path) -> None:
    with pytest.raises(ConfigError, match="scripted is no cross-family model"):
        evaluate.offline_errors(model, read_manifest(manifest))


def test_a_longer_delay_is_seen(model: Model, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = run(model, manifest, monkeypatch, "--delay-ms", "80", "480", "--chunk-ms", "80")
    assert long["delay"]["p50_ms"] - short["delay"]["p50_ms"] == 400
    assert long["wer"] == short["wer"] == 25.0


def test_a_run_that_was_stopped_goes_on(model: Model, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(model, manifest, monkeypatch, "--delay-ms", "80", "--chunk-ms", "320")
    seen: list[tuple[int, int]] = []
    done = evaluate.report

    def counted(*args: Any, **options: Any) -> dict[str, object]:
        seen.append((options["delay_ms"], options["chunk_ms"]))
        return done(*args, **options)

    monkeypatch.setattr(evaluate, "report", counted)
    both = run(model, manifest, monkeypatch, "--delay-ms", "80", "160", "--chunk-ms", "320")
    assert seen == [(160, 320)]
    assert both[:1] == first
    assert [entry["delay_ms"] for entry in both] == [80, 160]


def test_some_of_the_clips(manifest: Path) -> None:
    def names(every: int, *subsets: str) -> list[str]:
        return sorted(clip.audio for clip in chosen_clips(manifest, every=every, subsets=subsets))

    assert names(1) == sorted(SAID)
    assert names(1, "free") == ["c.wav", "d.wav"]
    assert names(2) == ["a.wav", "c.wav"]


def test_the_text_is_that_of_each_clip_alone(model: Model, manifest: Path) -> None:
    clips = read_manifest(manifest)
    together = transcripts(model, clips, delay_ms=160, chunk_ms=80, batch_size=3)
    for clip in clips:
        alone = transcribe(model, load_audio(clip.path), delay_ms=160, chunk_ms=80)
        assert together[clip.audio].text == alone.text == SAID[clip.audio][1]


def test_a_broken_file_ends_it(model: Model, manifest: Path) -> None:
    (manifest.parent / "b.wav").write_text("no audio")
    with pytest.raises(EarlybirdError):
        transcripts(model, read_manifest(manifest), delay_ms=80, chunk_ms=80, batch_size=2)


def test_nothing_heard_has_no_delay(model: Model, manifest: Path) -> None:
    soundfile.write(manifest.parent / "c.wav", codes(*[0] * 20), 16_000, subtype="FLOAT")
    clips = [clip for clip in read_manifest(manifest) if clip.audio == "c.wav"]
    entry = report(model, clips, {}, delay_ms=80, chunk_ms=80, batch=1)
    assert entry["wer"] == 100.0
    delay = entry["delay"]
    assert isinstance(delay, dict)
    assert (delay["p50_ms"], delay["utterance_p50_ms"], delay["matched"]) == (None, None, 0)


def test_a_line_for_people() -> None:
    entry: dict[str, object] = {
        "model": "m",
        "delay_ms": 480,
        "chunk_ms": 320,
        "wer": 6.5,
        "interval": [6.1, 7.0],
        "delay": {"p50_ms": 470, "p90_ms": 800},
        "subsets": {"read": {"wer": 5.0}, "free": {"wer": 8.0}},
        "real_time_factor": 0.12,
    }
    assert line(entry) == (
        "m delay 480 chunk 320: WER 6.5 % [6.1, 7.0], median delay 470 ms, p90 800 ms | read 5.0  free 8.0 | RTF 0.12"
    )


@pytest.fixture
def hiss(manifest: Path) -> Path:
    """A manifest of one recording of noise."""
    rng = np.random.default_rng(1)
    soundfile.write(manifest.parent / "hiss.wav", rng.uniform(-0.2, 0.2, 5000), 16_000, subtype="FLOAT")
    entry = {"audio": "hiss.wav", "duration": 5000 / 16_000, "text": None, "source": "s", "licence": "l"}
    (manifest.parent / "noise.jsonl").write_text(json.dumps(entry) + "\n")
    return manifest.parent / "noise.jsonl"


def test_clips_are_disturbed_by_their_names_and_so_loudly_as_told(manifest: Path, hiss: Path) -> None:
    noises = read_manifest(hiss)
    clips = read_manifest(manifest)[:3]
    for snr_db in (20.0, 0.0):
        hear = evaluate.disturbed(noises, snr_db)
        added = [hear(clip) - evaluate.clean(clip) for clip in clips]
        for clip, noise in zip(clips, added, strict=True):
            assert rms_db(evaluate.clean(clip)) - rms_db(noise) == pytest.approx(snr_db, abs=0.3)
            assert np.array_equal(hear(clip), hear(clip))
        assert not np.allclose(added[0][:100], added[1][:100])
    with pytest.raises(ConfigError, match="no recording of noise"):
        evaluate.disturbed([], 10)


def test_noise_is_a_setting_of_its_own(
    model: Model, manifest: Path, hiss: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--delay-ms", "80", "--chunk-ms", "320"]
    plain = run(model, manifest, monkeypatch, *flags)
    noisy = ["--noise", str(hiss), "--snr-db", "60", "-20"]
    both = run(model, manifest, monkeypatch, *flags, *noisy)
    assert both[:1] == plain
    assert [entry["snr_db"] for entry in both] == [None, 60, -20]
    assert both[1]["wer"] == plain[0]["wer"] < both[2]["wer"]
    assert "60.0 dB over noise" in line(both[1])
    assert run(model, manifest, monkeypatch, *flags, *noisy) == both
    with pytest.raises(ConfigError, match="--snr-db and --noise go together"):
        run(model, manifest, monkeypatch, *flags, "--snr-db", "3")


def test_a_gain_is_a_setting_of_its_own(model: Model, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = read_manifest(manifest)[0]
    hear = evaluate.fainter(evaluate.clean, -20.0)
    np.testing.assert_allclose(hear(clip), evaluate.clean(clip) / 10, rtol=1e-6)
    both = run(model, manifest, monkeypatch, "--delay-ms", "80", "--chunk-ms", "320", "--gain-db", "0", "-60")
    assert [entry["gain_db"] for entry in both] == [0.0, -60.0]
    assert both[0]["wer"] == 25.0
    assert both[0]["wer"] < both[1]["wer"]  # this recogniser is spoken to in levels
    assert "gain -60.0 dB" in line(both[1])
