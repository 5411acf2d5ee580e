"""The drafts' benchmark: what it counts, that a wider decoder writes the same, and that a changed word is told."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from asr.drafting import Drafting
from asr.errors import ConfigError
from asr.model import Model
from asr.words import Transcript, Word
from recipes import draft_benchmark
from recipes.draft_benchmark import check, decode, differences, drafters_of, measure, table, wider
from recipes.mtp import with_mtp_heads
from tests.tiny_model import bursts, tiny_additive_model, tiny_ctc_model, tiny_model

SETTING = {"delay_ms": 160, "chunk_ms": 320}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return tiny_ctc_model(tmp_path)


def test_only_drafters_that_the_model_can_have_are_measured(tmp_path: Path, model: Model) -> None:
    assert drafters_of(tiny_model(tmp_path)) == ["none", "wait", "auto"]
    assert drafters_of(model) == ["none", "wait", "ctc", "auto"]
    assert drafters_of(with_mtp_heads(model, heads=1, pieces=9)) == ["none", "wait", "ctc", "mtp", "auto"]


def test_a_wider_decoder_writes_the_same_text(tmp_path: Path, model: Model) -> None:
    large = wider(model, 6)
    counts = [sum(p.numel() for p in one.recogniser.decoder.parameters()) for one in (model, large)]
    assert counts[1] / counts[0] == pytest.approx(6, rel=0.05)
    audio = bursts(4).numpy()
    plain, grown = (decode(one, audio, Drafting(drafter="none"), **SETTING) for one in (model, large))
    assert plain.words
    assert differences(plain.words, grown.words) == 0
    with pytest.raises(ConfigError, match="factor of 1 or more"):
        wider(model, 0.5)
    with pytest.raises(ConfigError, match="cross-family"):
        wider(tiny_additive_model(tmp_path), 2)


def test_seconds_are_those_of_the_clock_and_the_decoder_is_left_as_it_was(model: Model) -> None:
    ticks = itertools.count()
    found = decode(model, bursts(2).numpy(), Drafting(), **SETTING, clock=lambda: float(next(ticks)))
    # The clock ticks twice a watched call: two for rows, two for logits, two for each time that a draft is asked for.
    assert 2 * found.stats.decoder_calls <= found.decoder_seconds < found.seconds
    assert "rows" not in vars(model.recogniser.decoder)


def test_entries_are_ratios_to_a_call_in_every_step_of_the_same_model_and_chunk(model: Model) -> None:
    found = measure([model], bursts(4).numpy(), delay_ms=160, chunks_ms=[320, 1600], repeats=1)
    assert [(entry["chunk_ms"], entry["draft"]) for entry in found] == list(
        itertools.product((320, 1600), ("every step", "none", "wait", "ctc", "auto"))
    )
    for every, none, wait, *_ in (found[:5], found[5:]):
        assert every["fewer_calls"] == every["faster"] == every["decoder_faster"] == 1.0
        # Every step has a call, and pieces that go in the same step have another.
        assert int(str(every["decoder_calls"])) >= int(str(every["steps"])) > int(str(none["decoder_calls"]))
        assert none["decoder_calls"] == wait["decoder_calls"]
    assert "row" not in vars(model.recogniser)
    assert len(table(found).splitlines()) == 11
    with pytest.raises(ConfigError, match="audio and repeats"):
        measure([model], bursts(4).numpy()[:0], delay_ms=160, chunks_ms=[320], repeats=1)


def test_products_in_bfloat16_are_rounded_with_drafts_and_without(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = [("a", bursts(2).numpy())]
    settings = {"delays_ms": [160], "chunks_ms": [320], "batch_sizes": [1]}
    [found] = check(model, clips, ["wait"], **settings, bf16=True)
    assert found["clips_that_differ"] == found["clips_that_rounding_changes"] == []
    rounded = []
    real = draft_benchmark.run

    def watched(*args: object, **kwargs: object) -> dict[str, Transcript]:
        rounded.append(torch.nn.functional.linear(torch.ones(1), torch.tensor([[1.001]])).item() == 1)
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(draft_benchmark, "run", watched)
    list(check(model, clips, ["wait", "ctc"], **settings, bf16=True))
    assert rounded == [True, False, True, True]


def word(text: str, end_ms: int = 100) -> Word:
    return Word(text=text, start_ms=0, end_ms=end_ms, emitted_ms=200, confidence=0.5)


def test_words_differ_in_text_and_time_but_not_in_confidence() -> None:
    mine = [word("a"), word("b")]
    assert differences(mine, [word("a"), replace(word("b"), confidence=0.4)]) == 0
    assert differences(mine, [word("a"), word("b", 120)]) == 1
    assert differences(mine, [word("a")]) == 1
    assert differences([], mine) == 2


def test_every_drafter_is_compared_with_none(model: Model) -> None:
    clips = [(f"clip {seed}", bursts(2 + seed, seed).numpy()) for seed in range(3)]
    found = list(check(model, clips, ["ctc"], delays_ms=[80, 160], chunks_ms=[320], batch_sizes=[1, 3]))
    assert [(e["delay_ms"], e["batch_size"]) for e in found] == [(80, 1), (80, 3), (160, 1), (160, 3)]
    assert all(entry["clips_that_differ"] == [] for entry in found)
    assert all(entry["decoder_calls"] <= entry["calls_of_none"] for entry in found)  # type: ignore[operator]


def test_in_turns_every_clip_meets_every_drafter_once(model: Model) -> None:
    clips = [(f"clip {seed}", bursts(1.5, seed).numpy()) for seed in range(5)]
    settings = {"delays_ms": [80, 160], "chunks_ms": [320], "batch_sizes": [1, 3]}
    found = list(check(model, clips, ["wait", "ctc"], **settings, turns=True))
    assert [(e["delay_ms"], e["batch_size"], e["clips"]) for e in found if e["draft"] == "ctc"] == [
        *((80, 1, 2), (80, 3, 1)),
        *((160, 1, 1), (160, 3, 1)),
    ]
    assert len(found) == 8
    assert all(entry["clips_that_differ"] == [] for entry in found)


def test_a_changed_word_is_told_and_fails(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    transcribe = draft_benchmark.transcribe_streams

    def wrong(*args: object, drafting: Drafting, **settings: object) -> Iterator[tuple[str, object]]:
        for key, one in transcribe(*args, drafting=drafting, **settings):  # type: ignore[arg-type]
            spoilt = drafting.drafter == "ctc" and key == "clip 1"
            yield key, replace(one, words=(*one.words, word("more"))) if spoilt else one  # type: ignore[type-var]

    monkeypatch.setattr(draft_benchmark, "transcribe_streams", wrong)
    monkeypatch.setattr(draft_benchmark, "read_manifest", lambda _: iter([Clip(f"clip {n}") for n in range(2)]))
    monkeypatch.setattr(draft_benchmark, "load_audio", lambda _: bursts(1.5))
    monkeypatch.setattr(draft_benchmark.asr, "load", lambda *_, **__: model)
    flags = ["check", "--manifest", "m.jsonl", "--delay-ms", "160", "--draft", "wait", "ctc"]
    assert draft_benchmark.main(flags) == 1
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["clips_that_differ"] for entry in entries] == [[], ["clip 1"]]
    assert draft_benchmark.main([*flags, "--chunk-ms", "7"]) == 2
    assert "chunk_ms" in capsys.readouterr().err


def test_losses_are_told_by_threshold(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(draft_benchmark, "read_manifest", lambda _: iter([Clip("clip")]))
    monkeypatch.setattr(draft_benchmark, "load_audio", lambda _: bursts(2))
    monkeypatch.setattr(draft_benchmark.asr, "load", lambda *_, **__: model)
    flags = ["loss", "--manifest", "m.jsonl", "--delay-ms", "160", "--probability", "1.0", "--entropy", "100"]
    assert draft_benchmark.main(flags) == 0
    exact, strict, taken = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert exact["wer"] == strict["wer"]
    assert (exact["draft_mode"], strict["draft_mode"], taken["draft_mode"]) == ("exact", "relaxed", "ctc-shortcut")
    assert exact["decoder_calls"] == strict["decoder_calls"] > taken["decoder_calls"]
    assert taken["draft_most_entropy"] == 100


class Clip:
    text = "the cat"

    def __init__(self, audio: str) -> None:
        self.audio = self.path = audio
