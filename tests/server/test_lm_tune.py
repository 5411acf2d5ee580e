"""Tuning weights: chosen on one half of the clips, judged on the other, and "no gain" where there is none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile

from asr.errors import ConfigError
from asr.metrics import WordErrors
from asr.model import Model
from asr.words import DecodeStats, Transcript, Word
from lm_fusion.fusion import Fusion, Steering
from lm_fusion.phrases import Phrase
from server import engine, lm_tune
from server.cli import main
from server.lm_tune import SpokenClip, Trial, Tuning, read_spoken_clips, tune, verdict
from tests.tiny_model import bursts, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


def manifest(folder: Path, lines: list[object]) -> Path:
    path = folder / "dev.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_clips_without_words_are_left_out(tmp_path: Path) -> None:
    texts = ["one", "[laughter]", None, "two", *["three"] * 18]
    path = manifest(tmp_path, [{"audio": f"{n}.wav", "text": text} for n, text in enumerate(texts)])
    assert [clip.text for clip in read_spoken_clips(path)] == ["one", "two", *["three"] * 18]
    assert read_spoken_clips(path)[1] == SpokenClip(path=tmp_path / "3.wav", text="two")
    with pytest.raises(ConfigError, match="has 10 clips with words; 20 or more are needed"):
        read_spoken_clips(path, every=2)


@pytest.mark.parametrize("line", [["a"], {"text": "a"}, 3])
def test_lines_that_are_no_clips_are_named(tmp_path: Path, line: object) -> None:
    path = manifest(tmp_path, [{"audio": "a", "text": "a"}, line])
    with pytest.raises(ConfigError, match=r"dev.jsonl, line 2: need a JSON object"):
        read_spoken_clips(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_spoken_clips(tmp_path / "none.jsonl")


def transcript(text: str) -> Transcript:
    words = tuple(Word(text=t, start_ms=0, end_ms=1, emitted_ms=1, confidence=1.0) for t in text.split())
    return Transcript(words=words, audio_samples=16, stats=DecodeStats())


def tuned(model: Model, monkeypatch: pytest.MonkeyPatch, wrong: Any, count: int = 40) -> tuple[Tuning, list[str]]:
    """Tuning where clip n is recognised wrongly at a boost if wrong(n, boost)."""

    def decode(model: Model, jobs: Iterable[Any], *, steering: Any, **_: Any) -> Iterator[tuple[str, Transcript]]:
        steered: Steering = steering("")
        assert steered.phrases is not None
        graph = steered.phrases.graph
        boost = 0.0 if graph.empty else round(3 * float(graph.credit[2]), 2)  # a letter has a third of it
        for key, _ in jobs:
            yield key, transcript("b" if wrong(int(key), boost) else "a")

    monkeypatch.setattr(lm_tune, "transcribe_streams", decode)
    lines: list[str] = []
    scorer = Fusion.of(model, slots=1)
    found = tune(
        model,
        [SpokenClip(path=Path("none"), text="a")] * count,
        scorer,
        lm_weights=[],
        phrases=[Phrase(text="dog")],
        boosts=[0.5, 1.0, 2.0],
        delay_ms=80,
        chunk_ms=160,
        batch_size=1,
        log=lines.append,
    )
    return found, lines


def test_a_gain_is_found(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    found, lines = tuned(model, monkeypatch, lambda n, boost: n < 20 if boost == 1.0 else n < 32)
    assert lines == [
        "lm-weight 0, boost 0: WER 80.00 %",
        "lm-weight 0, boost 0.5: WER 80.00 %",
        "lm-weight 0, boost 1: WER 50.00 %",
        "lm-weight 0, boost 2: WER 80.00 %",
    ]
    assert found.best.boost == 1.0
    assert found.gain.difference == pytest.approx(-0.3)
    assert verdict(found).startswith("use lm-weight 0, boost 1: word errors -30.00 % of words [-")
    assert verdict(found).endswith("on the 20 clips that did not choose it")


def test_what_helps_only_the_half_that_chose_it_is_no_gain(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = tuned(model, monkeypatch, lambda n, boost: n % 2 == 1 if boost == 2.0 else True)
    assert (found.best.boost, found.gain.difference) == (2.0, 0.0)
    assert verdict(found).startswith("no gain: the best is lm-weight 0, boost 2, word errors +0.00 %")


def test_of_equals_the_smallest_weight_is_taken(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = tuned(model, monkeypatch, lambda n, boost: boost == 0.0)
    assert found.best.boost == 0.5


def test_there_must_be_something_to_try(model: Model) -> None:
    clips = [SpokenClip(path=Path("none"), text="a")] * 2
    with pytest.raises(ConfigError, match="nothing to try"):
        tune(
            model,
            clips,
            Fusion.of(model, slots=1),
            lm_weights=[0.0],
            phrases=[],
            boosts=[],
            delay_ms=80,
            chunk_ms=160,
            batch_size=1,
            log=print,
        )


def test_real_clips_are_decoded(model: Model, tmp_path: Path) -> None:
    for n in range(2):
        soundfile.write(tmp_path / f"{n}.wav", bursts(0.5, seed=n).numpy().clip(-1, 1), 16_000)
    lines: list[str] = []
    found = tune(
        model,
        [SpokenClip(path=tmp_path / f"{n}.wav", text="the dog") for n in range(2)],
        Fusion.of(model, slots=2),
        lm_weights=[0.0],
        phrases=[Phrase(text="the dog")],
        boosts=[5.0],
        delay_ms=80,
        chunk_ms=160,
        batch_size=2,
        log=lines.append,
    )
    assert len(lines) == 2
    assert [len(trial.errors) for trial in (found.base, *found.trials)] == [2, 2]
    assert replace(found.base, errors=()) == Trial(lm_weight=0.0, boost=0.0, errors=())
    assert all(isinstance(errors, WordErrors) for errors in found.best.errors)


def test_the_command_tells_each_trial_and_the_verdict(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(2):
        soundfile.write(tmp_path / f"{n}.wav", bursts(0.4, seed=n).numpy().clip(-1, 1), 16_000)
    path = manifest(tmp_path, [{"audio": f"{n % 2}.wav", "text": "the dog"} for n in range(20)])
    (tmp_path / "list.txt").write_text("the dog\n")
    monkeypatch.setattr(engine, "load_model", lambda name, **_: model)
    flags = ["--phrases", str(tmp_path / "list.txt"), "--delay-ms", "80", "--chunk-ms", "160"]
    assert main(["lm", "tune", str(path), *flags, "--boosts", "0,2"]) == 0
    told = capsys.readouterr()
    assert told.err.splitlines()[1].startswith("lm-weight 0, boost 2: WER ")
    assert re.fullmatch(
        r"(no gain: the best is|use) lm-weight 0, boost 2[:,] word errors .* the 10 clips .*\n", told.out
    )
    assert main(["lm", "tune", str(path), *flags, "--boosts", "much"]) == 2
    assert "--boosts is 'much'; it must be numbers between commas" in capsys.readouterr().err
    assert main(["lm", "tune", str(path)]) == 2
    assert "there is nothing to try" in capsys.readouterr().err
