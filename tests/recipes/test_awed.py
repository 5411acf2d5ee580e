"""The delay metric proved on streams whose words are emitted at known steps, and the plots' numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from asr.errors import ConfigError
from asr.metrics import Commitment, WordDelays, commitments, delay_stats, word_delays
from asr.model import Model
from asr.transcriber import transcribe
from recipes import awed
from recipes.awed import draw, frontier, histogram, main, read_results
from tests.scripted import codes, say, scripted_model

LEAD, GAP = 4, 2


@dataclass(frozen=True)
class Spoken:
    text: str
    end_ms: int


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return scripted_model(tmp_path_factory.mktemp("scripted"))


def spoken(model: Model, text: str) -> list[Spoken]:
    """The words of `say(model, text)`: each ends with the step of its last piece."""
    step, words = LEAD, []
    for word in text.split():
        step += len(model.vocabulary.encode(" " + word))
        words.append(Spoken(word, step * 80))
        step += GAP
    return words


def delays(
    model: Model, written: str, reference: Sequence[Spoken], *, tau: int, chunk: int, tail: int = 30
) -> WordDelays:
    """Of a stream that writes `written`, each piece τ steps after its own step."""
    sound = np.concatenate([say(model, written, lead=LEAD, gap=GAP), codes(*[0] * tail)])
    return word_delays(reference, transcribe(model, sound, delay_ms=80 * tau, chunk_ms=80 * chunk).words)


# -- the clock -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1, 2, 6])
@pytest.mark.parametrize("chunk", [1, 2, 4, 20])
def test_a_word_is_emitted_when_the_chunk_of_its_last_piece_s_step_has_arrived(
    model: Model, tau: int, chunk: int
) -> None:
    text = "the don't on a he"  # of one and of several pieces
    reference = spoken(model, text)
    # A piece of step e - 1 (the last one before e) is written at step e - 1 + τ, which hears up to (e + τ) steps.
    emitted = [-(-(word.end_ms // 80 + tau) // chunk) * chunk * 80 for word in reference]
    expected = tuple(at - word.end_ms for at, word in zip(emitted, reference, strict=True))
    assert delays(model, text, reference, tau=tau, chunk=chunk).delays_ms == expected
    assert all(80 * tau <= delay < 80 * (tau + chunk) for delay in expected)


def test_what_a_flush_brings_was_emitted_when_the_audio_ended(model: Model) -> None:
    reference = spoken(model, "the on")
    found = delays(model, "the on", reference, tau=6, chunk=1, tail=0)
    assert found.delays_ms == (reference[1].end_ms - reference[0].end_ms, 0)


def test_a_word_before_its_end_is_early_by_so_much(model: Model) -> None:
    reference = [Spoken(word.text, word.end_ms + 400) for word in spoken(model, "the on a")]
    assert delays(model, "the on a", reference, tau=1, chunk=1).delays_ms == (-320,) * 3


# -- what was not said, or said otherwise ----------------------------------------------------------------------------


def test_insertions_change_no_delay(model: Model) -> None:
    heard = spoken(model, "the big on a on")
    reference = [heard[0], heard[2], heard[4]]
    found = delays(model, "the big on a on", [*reference], tau=2, chunk=1)
    assert found == WordDelays(delays_ms=(160,) * 3, reference_words=3, deletions=0)


def test_deletions_count_beside_the_delays(model: Model) -> None:
    heard = spoken(model, "the on")
    reference = [heard[0], Spoken("cat", 500), Spoken("sat", 900), heard[1]]
    found = delays(model, "the on", reference, tau=2, chunk=1)
    assert found == WordDelays(delays_ms=(160, 160), reference_words=4, deletions=2)
    stats = delay_stats([found])
    assert (stats.matched_share, stats.deletion_rate) == (0.5, 0.5)


def test_a_substitution_is_neither_matched_nor_deleted(model: Model) -> None:
    heard = spoken(model, "the cat on")
    found = delays(model, "the cat on", [heard[0], Spoken("dog", heard[1].end_ms), heard[2]], tau=1, chunk=1)
    assert found == WordDelays(delays_ms=(80, 80), reference_words=3, deletions=0)


@pytest.mark.parametrize("repeat", [1, 2, 3])
def test_repeats_are_insertions_wherever_they_stand(model: Model, repeat: int) -> None:
    words = ["the", "cat", "on"]
    written = " ".join([*words[:repeat], words[repeat - 1], *words[repeat:]])
    heard = spoken(model, written)
    reference = [*heard[:repeat], *heard[repeat + 1 :]]  # the first of the two was spoken
    found = delays(model, written, reference, tau=2, chunk=1)
    assert (found.reference_words, found.deletions, len(found.delays_ms)) == (3, 0, 3)
    # Which of two equal words is the match is jiwer's choice; the second one came later by its step and the gap.
    later = {160, heard[repeat].end_ms - heard[repeat - 1].end_ms + 160}
    assert set(found.delays_ms) <= later


def test_nothing_matched_has_no_delay_and_every_word_deleted(model: Model) -> None:
    stats = delay_stats([delays(model, "", spoken(model, "the on"), tau=1, chunk=1)])
    assert (stats.pooled, stats.matched_share, stats.deletion_rate) == (None, 0.0, 1.0)
    assert delay_stats([]).matched_share is None


# -- revisions -------------------------------------------------------------------------------------------------------


def test_append_only_text_is_final_when_it_first_comes() -> None:
    partials = [(80, ["a"]), (160, ["a"]), (240, ["a", "cat"]), (400, ["a", "cat", "sat"])]
    assert commitments(partials) == tuple(Commitment(first_ms=at, final_ms=at) for at in (80, 240, 400))


def test_a_revised_word_is_final_when_it_last_came_back() -> None:
    partials = [(80, ["cat"]), (160, ["cap"]), (240, ["cat"]), (320, ["cat", "sat"])]
    assert commitments(partials) == (
        Commitment(first_ms=80, final_ms=240),
        Commitment(first_ms=320, final_ms=320),
    )


def test_a_word_stays_while_others_before_it_change() -> None:
    partials = [(80, ["a", "cat"]), (160, ["cat"]), (240, ["the", "black", "cat"])]
    assert commitments(partials)[2] == Commitment(first_ms=80, final_ms=80)


def test_text_of_two_hypotheses_that_agree_is_late_by_a_hypothesis() -> None:
    """LocalAgreement-2 commits what two consecutive hypotheses share: on steady speech one hypothesis later."""
    hypotheses = [(1000 * k, "a cat sat on the mat".split()[:k]) for k in range(1, 7)]
    agreed = [(time, earlier) for (_, earlier), (time, _) in pairwise(hypotheses)]
    assert [one.final_ms for one in commitments(hypotheses)] == [1000, 2000, 3000, 4000, 5000, 6000]
    assert [one.final_ms for one in commitments(agreed)] == [2000, 3000, 4000, 5000, 6000]


def test_no_hypothesis_no_word_and_time_does_not_go_back() -> None:
    assert commitments([]) == commitments([(80, [])]) == ()
    with pytest.raises(ConfigError, match=r"in the order of their time; got \[160, 80\]"):
        commitments([(160, ["a"]), (80, ["a"])])


# -- plots -----------------------------------------------------------------------------------------------------------


def entry(delay_ms: int, wer: float, p50: int | None, chunk_ms: int = 320) -> dict[str, object]:
    delay = {"p50_ms": p50, "p90_ms": 900, "p95_ms": 950, "matched_share": 0.9, "deletion_rate": 0.02}
    return {
        "model": "m",
        "delay_ms": delay_ms,
        "chunk_ms": chunk_ms,
        "wer": wer,
        "interval": [wer - 1, wer + 2],
        "delay": delay,
        "histogram": histogram([p50, p50 + 20] if p50 else []),
        "clips": 3,
    }


def results(path: Path, *entries: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in entries), encoding="utf-8")
    return path


def test_a_histogram_counts_every_delay_once() -> None:
    found = histogram([-41, -40, 0, 5, 19, 20])
    assert found == [(-60, 1), (-40, 1), (0, 3), (20, 1)]
    assert histogram([]) == []


def test_a_curve_a_run_and_chunk_in_the_order_of_delay(tmp_path: Path) -> None:
    before = results(tmp_path / "before.jsonl", entry(480, 8.0, 600), entry(80, 12.0, 300), entry(80, 9.0, 400, 640))
    after = results(tmp_path / "after.jsonl", entry(480, 7.0, 500))
    curves = frontier(read_results([before, after]))
    assert list(curves) == ["after, 320 ms chunks", "before, 320 ms chunks", "before, 640 ms chunks"]
    assert [(point["delay_ms"], point["wer"], point["p50_ms"]) for point in curves["before, 320 ms chunks"]] == [
        (80, 12.0, 300),
        (480, 8.0, 600),
    ]
    assert curves["after, 320 ms chunks"][0]["deletion_rate"] == 0.02


def test_the_command_draws_and_keeps_the_numbers(tmp_path: Path) -> None:
    path = results(tmp_path / "run.jsonl", entry(80, 12.0, 300), entry(480, 8.0, None))
    assert main([str(path), "--out", str(tmp_path / "plots")]) == 0
    for name in ("frontier.png", "delays.png"):
        assert (tmp_path / "plots" / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    numbers = json.loads((tmp_path / "plots" / "delays.json").read_text())
    assert numbers["bin_ms"] == awed.BIN_MS
    assert list(numbers["counts"].values()) == [[[300, 1], [320, 1]], []]
    assert len(json.loads((tmp_path / "plots" / "frontier.json").read_text())["run, 320 ms chunks"]) == 2


def test_what_is_no_result_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no evaluated setting"):
        draw([], tmp_path)
    assert main([str(tmp_path / "none.jsonl"), "--out", str(tmp_path)]) == 2
    assert "none.jsonl cannot be read" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"old\.jsonl, line 1: no line of an evaluation with delays"):
        read_results([results(tmp_path / "old.jsonl", {"model": "m", "wer": 5.0})])
