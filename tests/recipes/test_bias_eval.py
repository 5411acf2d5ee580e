"""The evaluation of fusion: which words are rare, who gets which list, what is counted, what is measured."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

import asr
from asr.model import Model
from lm_fusion.fusion import Fusion
from lm_fusion.phrases import DEFAULT_BOOST
from recipes import bias_eval
from recipes.bias_eval import (
    Corpus,
    Setting,
    line,
    main,
    measure,
    quiet_words,
    read_corpus,
    steering_of,
    table_settings,
)
from recipes.bias_lists import clip_keywords, distractors, list_for, rare, word_counts
from recipes.data import Clip
from tests.tiny_model import bursts, tiny_model

OTHERS = tuple(f"{a}{b}ther" for a in "bcdfghjklm" for b in "aeiou")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


def clip(name: str, text: str | None) -> Clip:
    return Clip(
        audio=name, path=Path(name), duration_ms=1000, text=text, speaker=None, source="s", licence="l", subset_tag="t"
    )


CORPUS = Corpus(
    clips=(clip("a", "Zoltan met Ada"), clip("b", "the house"), clip("c", None)),
    keywords={"a": ("zoltan",), "b": (), "c": ()},
    others=OTHERS,
)


def test_rare_words_are_letters_long_and_not_common() -> None:
    counts = word_counts(["The house, the HOUSE’s", "Kubernetes don't"])
    assert counts == Counter({"the": 2, "house": 1, "house's": 1, "kubernetes": 1, "don't": 1})
    assert [word for word in counts if rare(word, {"the", "house"})] == ["kubernetes"]
    assert not rare("zoe", ())
    assert not rare("naïve", ())


def test_keywords_are_those_of_the_normalised_transcript_and_distractors_are_never_spoken() -> None:
    clips = [clip("a", "ZOLTAN's colours: Zoltan, 1234"), clip("b", None)]
    assert clip_keywords(clips, {"colors"}) == {"a": ("zoltan",), "b": ()}
    counts = word_counts(["zoltan colors budapest the vienna"])
    assert distractors(counts, {"colors"}, {"zoltan"}) == ("budapest", "vienna")


def test_a_list_holds_the_clips_own_and_is_the_same_each_time() -> None:
    one = list_for(["zoltan"], OTHERS, size=10, seed="a")
    assert one[0] == "zoltan"
    assert len(set(one)) == 10
    assert one == list_for(["zoltan"], OTHERS, size=10, seed="a") != list_for(["zoltan"], OTHERS, size=10, seed="b")
    assert list_for(["one", "two", "three"], OTHERS, size=2, seed="a") == ("one", "two")
    assert set(list_for([], OTHERS, size=10_000, seed="a")) == set(OTHERS)


def test_the_table_has_none_each_alone_and_both_once() -> None:
    settings = table_settings([0.1], [DEFAULT_BOOST, 3.0], [10, 100])
    assert settings[0] == Setting()
    assert len(set(settings)) == len(settings) == 8
    assert Setting(lm_weight=0.1, boost=DEFAULT_BOOST, size=100) in settings
    assert sum(setting.absent for setting in settings) == 2
    assert not any(setting.lm_weight for setting in table_settings([], [1.0], [10]))


def test_each_clip_has_its_own_list_up_to_a_size(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Fusion.of(model, slots=1)
    setting = Setting(boost=1.0, size=5)

    def texts(setting: Setting, name: str) -> list[str]:
        phrases = steering_of(CORPUS, scorer, setting)(name).phrases
        return [] if phrases is None else [answer.text for answer in phrases.answers]

    assert "zoltan" in texts(setting, "a")
    assert "zoltan" not in texts(setting, "b")
    assert "zoltan" not in texts(replace(setting, absent=True), "a")
    assert texts(Setting(lm_weight=0.0), "a") == []
    monkeypatch.setattr(bias_eval, "OWN_LIST_SIZE", 4)
    assert texts(setting, "a") == texts(setting, "b") == list(list_for(["zoltan"], OTHERS, size=5, seed="all"))
    assert "zoltan" not in texts(replace(setting, absent=True), "b")


def test_words_and_keywords_are_counted_beside_those_of_nothing() -> None:
    base = {"a": "Zoltan met Ada", "b": "a house", "c": ""}
    texts = {"a": "soldier met Ada", "b": "a Zoltan", "c": "x"}
    entry = measure(CORPUS, Setting(boost=1.0, size=5), texts, base)
    assert (entry["clips"], entry["wer"], entry["keywords"]) == (2, 60.0, 1)
    assert (entry["recall"], entry["precision"], entry["identical"]) == (0.0, 0.0, 0.0)
    change = entry["wer_change"]
    assert isinstance(change, list)
    assert change[0] == 40.0
    assert "WER 60.0 %" in line(entry)
    same = measure(CORPUS, Setting(), base, base)
    assert (same["wer"], same["wer_change"], same["recall"], same["identical"]) == (20.0, [0.0] * 3, 100.0, 100.0)


def test_sounds_without_speech_are_counted_in_words(model: Model) -> None:
    words = quiet_words(model, [np.zeros(16_000, dtype=np.float32)] * 2, OTHERS, delay_ms=80, chunk_ms=160)
    assert words.keys() == {"none", "boosted"}
    alone = quiet_words(model, [np.zeros(16_000, dtype=np.float32)], OTHERS, delay_ms=80, chunk_ms=160)
    assert words == {name: 2 * count for name, count in alone.items()}


def test_the_whole_recipe(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    for n, text in enumerate(["the zoltan sat", "the dog", "..."]):
        soundfile.write(tmp_path / f"{n}.wav", bursts(1.2, seed=n).numpy().clip(-1, 1), 16_000)
        entry = {"audio": f"{n}.wav", "duration": 1.2, "text": text, "source": "s", "licence": "l"}
        lines.append(json.dumps(entry))
    (tmp_path / "dev.jsonl").write_text("\n".join(lines))
    (tmp_path / "text.txt").write_text(f"the the the dog\n{' '.join(OTHERS)}\n")
    monkeypatch.setattr(asr, "load", lambda name: model)
    monkeypatch.setattr(bias_eval, "step_seconds", lambda *_, blocks: [[0.1] * blocks, [0.2] * blocks])
    dev, out = str(tmp_path / "dev.jsonl"), tmp_path / "out.jsonl"
    flags = ["--manifest", dev, "--text", str(tmp_path / "text.txt"), "--noise", dev, "--out", str(out)]
    flags += ["--common", "1", "--sizes", "5", "--boosts", "5", "--delay-ms", "80", "--chunk-ms", "160"]
    flags += ["--silence-seconds", "1"]
    assert main([*flags, "--benchmark", "2", "--blocks", "3"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"3 clips, 1 keywords, {len(OTHERS)} distractors"
    assert [row for row in told if row.startswith("lm 0.0")] == told[1:6]
    assert "words on silence and 3 noises" in told[6]
    assert "batch 2, a list of 100 each, phrases: median 200.0 ms a block, 2.000 of none" in told[8]
    written = out.read_text()
    assert main(flags) == 0
    assert out.read_text() == written  # all settings were there
    assert capsys.readouterr().out.splitlines()[:6] == told[:6]


def test_a_corpus_is_read_with_its_texts(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("house house budapest ada\n")
    corpus = read_corpus(CORPUS.clips, [tmp_path / "text.txt"], common=1)
    assert corpus.keywords == {"a": ("zoltan",), "b": (), "c": ()}
    assert corpus.others == ("budapest",)
    assert corpus.all_keywords == ("zoltan",)


def test_steps_are_timed_in_turn(model: Model) -> None:
    scorer = Fusion.of(model, slots=2)
    speech = [bursts(2.0, seed=seed).numpy() for seed in range(2)]
    model = replace(model, config=replace(model.config, limits=replace(model.config.limits, delays=(1, 6))))
    seconds = bias_eval.step_seconds(model, speech, [(None, [None, None]), (scorer, [None, None])], blocks=3)
    assert [len(each) for each in seconds] == [3, 3]
    assert min(min(each) for each in seconds) > 0
