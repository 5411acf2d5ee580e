"""Drafters: how far the text has come among the words heard, how those are spelt, who drafts for which model."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asr.answers import SOURCES
from asr.cross_recogniser import CrossRecogniser
from asr.drafting import CtcDrafter, Drafting, ModelDrafter, drafter_of, joined, unwritten
from asr.errors import ConfigError
from asr.model import Model
from asr.preview import PreviewWord
from asr.recogniser import Prospect
from asr.transcriber import transcribe
from asr.vocabulary import Vocabulary
from asr.words import DecodeStats, DraftCount, Transcript, Word
from recipes.mtp import with_mtp_heads
from tests import tiny
from tests.tiny_model import (
    bursts,
    tiny_additive_model,
    tiny_ctc_model,
    tiny_model,
    write_ctc_tokenizer,
    write_tokenizer,
)


def heard(*words: tuple[str, int]) -> list[PreviewWord]:
    """Words, each ending at a step."""
    return [PreviewWord(text=text, first=last - 2, last=last) for text, last in words]


SENTENCE = heard(("the", 5), ("cat", 9), ("sat", 14), ("on", 17), ("the", 20), ("mat", 25))


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ([], 0),
        ([("the", 5)], 1),
        ([("the", 5), ("cat", 10)], 2),
        ([("the", 5), ("cat", 10), ("sat", 14), ("on", 16), ("the", 20)], 5),  # the second "the": in letters and time
        ([("a", 5), ("cat", 9), ("zat", 14)], 3),  # heard otherwise than written
        ([("the", 5), ("ca", 9)], 2),  # half a word counts as the word
        ([("dog", 1), ("ran", 2)], 0),  # before all that is in the window
        ([("sat", 14), ("on", 17), ("top", 18), ("the", 20)], 5),  # one more word than was heard
        ([("mat", 25)], 6),
    ],
)
def test_how_many_words_are_written(written: list[tuple[str, int]], count: int) -> None:
    assert unwritten(SENTENCE, written) == count


def test_nothing_heard_nothing_written() -> None:
    assert unwritten([], [("the", 5)]) == 0


@pytest.fixture
def words(tmp_path: Path) -> CtcDrafter:
    return CtcDrafter(Vocabulary(write_tokenizer(tmp_path / "tokenizer.json")), write_ctc_tokenizer(tmp_path / "ctc"))


def prospect(words: CtcDrafter, text: str, steps: list[int], spoken: list[str], clock: int = 0) -> Prospect:
    """`spoken` one after another, a piece a step and a blank between; `text` read a word at each of `steps`."""
    labels: list[int] = []
    for word in words.tokenizer.encode(spoken):
        for one, two in pairwise([-1, *word]):
            labels += [words.tokenizer.blank, two] if one == two else [two]
        labels.append(words.tokenizer.blank)
    pieces = words.vocabulary.encode(text)
    frames, word = [], -1
    for piece in pieces:
        word += words.vocabulary.pieces[piece].startswith(b" ")
        frames.append(4 * steps[max(0, word)])
    return Prospect(clock, pieces, frames, labels, len(labels) - 1)


def drafted(words: CtcDrafter, known: Prospect) -> str:
    return words.vocabulary.decode([piece for _, timed in words.upcoming(known) for piece in timed.pieces])


def test_the_words_to_come_are_spelt_as_the_decoder_spells(words: CtcDrafter) -> None:
    spoken = ["the", "cat", "sat", "on", "a", "log"]
    ends = [word.last for word in words.heard(prospect(words, "", [], spoken))]
    assert drafted(words, prospect(words, "", [], spoken)) == " The cat sat on a log"
    assert drafted(words, prospect(words, " The cat", ends[:2], spoken)) == " sat on a log"
    assert drafted(words, prospect(words, " The cat.", ends[:2], spoken)) == " Sat on a log"
    # The rest of a word that is begun.
    assert drafted(words, prospect(words, " The cat sa", ends[:3], spoken)) == "t on a log"
    # The decoder writes something else: the draft goes on behind it all the same.
    assert drafted(words, prospect(words, " The bat", ends[:2], spoken)) == " sat on a log"


def test_words_are_due_when_their_last_label_has_been_heard(words: CtcDrafter) -> None:
    known = prospect(words, "", [], ["the", "cat"])
    upcoming = words.upcoming(known)
    assert [timed.end_ms for _, timed in upcoming] == [80 * (word.last + 1) for word in words.heard(known)]
    late = Prospect(known.clock, known.text, known.text_frames, known.labels, known.newest_step + 100)
    assert [word.last for word, _ in words.upcoming(late)] == [word.last + 100 for word, _ in upcoming]


def test_i_is_a_capital(words: CtcDrafter) -> None:
    assert drafted(words, prospect(words, " The", [2], ["the", "cat"])).strip() == "cat"
    known = prospect(words, " The", [0], ["i", "don't"])
    assert drafted(words, known) in (" I don't", " don't")  # the first may be taken for what is written


def test_guess_and_words_meet() -> None:
    ctc, mtp, own = (SOURCES.index(name) for name in ("ctc", "mtp", "own"))
    assert joined([], [1, 2]) == [(1, ctc), (2, ctc)]
    assert joined([(1, own), (2, mtp)], []) == [(1, own), (2, mtp)]
    assert joined([(11, own), (1, mtp), (5, mtp)], [1, 2, 3]) == [(11, own), (1, mtp), (2, ctc), (3, ctc)]
    assert joined([(1, own), (5, mtp)], [1, 2, 3]) == [(1, own), (2, ctc), (3, ctc)]
    assert joined([(7, own), (5, mtp)], [1, 2, 3]) == [(7, own), (5, mtp)]


def test_who_can_draft_for_which_model(tmp_path: Path) -> None:
    plain, ctc = tiny_model(tmp_path), tiny_ctc_model(tmp_path)
    heads = with_mtp_heads(ctc, heads=2, pieces=50)
    assert drafter_of(ctc, Drafting(drafter="none")) is None
    for name in ("wait", "ctc", "auto"):
        assert isinstance(drafter_of(ctc, Drafting(drafter=name)), ModelDrafter)  # type: ignore[arg-type]
    assert isinstance(drafter_of(heads, Drafting(drafter="mtp")), ModelDrafter)
    with pytest.raises(ConfigError, match="no CTC head"):
        drafter_of(plain, Drafting(drafter="ctc"))
    with pytest.raises(ConfigError, match="no multi-token heads"):
        drafter_of(ctc, Drafting(drafter="mtp"))
    with pytest.raises(ConfigError, match="nothing that drafts text"):
        drafter_of(tiny_additive_model(tmp_path), Drafting(mode="relaxed"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"drafter": "beam"},
        {"mode": "fast"},
        {"least_probability": 0.0},
        {"most_entropy": -1.0},
        {"drafter": "wait", "mode": "relaxed"},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Drafting(**wrong)


def test_settings_are_stated_as_far_as_they_count() -> None:
    assert Drafting().to_json() == {"draft": "auto", "draft_mode": "exact"}
    assert Drafting(mode="ctc-shortcut").to_json().keys() == {
        "draft", "draft_mode", "draft_least_probability", "draft_most_entropy",
    }  # fmt: skip


# -- whole models ------------------------------------------------------------------------------------------------------


def heads_of(folder: Path) -> Model:
    """A model whose CTC head and multi-token heads are random: both disagree with its decoder."""
    model = with_mtp_heads(tiny_ctc_model(folder), heads=3, pieces=200)
    recogniser = model.recogniser
    assert isinstance(recogniser, CrossRecogniser)
    assert recogniser.mtp is not None
    tiny.randomised(recogniser.mtp, seed=5)
    for head in recogniser.mtp.mix:
        head.weight.data *= 100  # sure of themselves
    recogniser.gate = tiny_model(folder).recogniser.gate  # type: ignore[union-attr]
    recogniser.eval().requires_grad_(False)
    return model


def committed(transcript: Transcript) -> list[Word]:
    """The words without their confidence: rows that run together round otherwise in its last bits."""
    return [replace(word, confidence=0.0) for word in transcript.words]


@pytest.mark.parametrize("chunk_ms", [160, 1600])
def test_a_decoder_gives_its_own_text_whatever_the_heads_say(tmp_path: Path, chunk_ms: int) -> None:
    model, audio = heads_of(tmp_path), bursts(9).numpy()
    found = {}
    for name in ("none", "wait", "ctc", "mtp", "auto"):
        found[name] = transcribe(model, audio, delay_ms=160, chunk_ms=chunk_ms, drafting=Drafting(drafter=name))  # type: ignore[arg-type]
    assert len(found["none"].words) > 3
    assert all(committed(one) == committed(found["none"]) for one in found.values())
    assert found["none"].stats.re_anchors >= 1
    assert found["none"].stats.drafts == {}
    assert {name: set(one.stats.drafts) for name, one in found.items() if name in ("wait", "ctc", "mtp")} == {
        "wait": set(),  # waits take no row
        "ctc": {"ctc"},
        "mtp": {"mtp"},  # what the decoder means to write is not likely enough here
    }
    assert found["auto"].stats.decoder_rows > found["none"].stats.decoder_rows
    assert found["auto"].settings["draft"] == "auto"


def test_relaxed_takes_what_is_likely_enough_and_never_what_is_refused(tmp_path: Path) -> None:
    model, audio = heads_of(tmp_path), bursts(9).numpy()
    exact = transcribe(model, audio, delay_ms=160, chunk_ms=1600)
    relaxed = transcribe(
        model, audio, delay_ms=160, chunk_ms=1600, drafting=Drafting(mode="relaxed", least_probability=1e-6)
    )
    assert relaxed.text != exact.text
    assert relaxed.stats.mean_accepted > exact.stats.mean_accepted
    strict = transcribe(
        model, audio, delay_ms=160, chunk_ms=1600, drafting=Drafting(mode="relaxed", least_probability=1.0)
    )
    assert strict.text == exact.text


def test_additive_models_draft_waits(tmp_path: Path) -> None:
    model, audio = tiny_additive_model(tmp_path), bursts(6).numpy()
    recogniser = model.recogniser.requires_grad_(False)
    recogniser.adapter.second.weight.mul_(4)  # type: ignore[union-attr]
    recogniser.decoder.embedding.weight[recogniser.wait] *= 8  # type: ignore[union-attr]
    none, wait = (
        transcribe(model, audio, delay_ms=160, chunk_ms=320, drafting=Drafting(drafter=name))  # type: ignore[arg-type]
        for name in ("none", "wait")
    )
    assert committed(wait) == committed(none)
    assert none.stats.decoder_calls == none.stats.decoder_rows == none.stats.steps
    assert wait.stats.decoder_calls < none.stats.decoder_calls
    count = wait.stats.drafts["wait"]
    # What a call's draft spares are the calls that the steps behind it would have made.
    assert sum(count.accepted) >= none.stats.decoder_calls - wait.stats.decoder_calls
    assert all(accepted <= proposed for accepted, proposed in zip(count.accepted, count.proposed, strict=False))


def test_mean_accepted_is_by_the_call() -> None:
    drafts = {"ctc": DraftCount(proposed=(2, 3), accepted=(1, 1)), "mtp": DraftCount(proposed=(2,), accepted=(2,))}
    assert DecodeStats(drafts=drafts).mean_accepted == 1.0
    assert DecodeStats().mean_accepted == 0.0
    assert DecodeStats(drafts=drafts).to_json()["drafts"] == {
        "ctc": {"proposed": [2, 3], "accepted": [1, 1]},
        "mtp": {"proposed": [2], "accepted": [2]},
    }


def test_who_drafted_first_does_not_change_the_bytes_of_the_result() -> None:
    drafts = {name: DraftCount(proposed=(1,)) for name in ("own", "ctc", "mtp")}
    turned = dict(reversed(drafts.items()))
    assert json.dumps(DecodeStats(drafts=drafts).to_json()) == json.dumps(DecodeStats(drafts=turned).to_json())


def test_at_one_step_a_block_there_is_nothing_to_draft(tmp_path: Path) -> None:
    found = transcribe(heads_of(tmp_path), np.asarray(bursts(2)), delay_ms=80, chunk_ms=80)
    assert found.stats.drafts == {}
    assert torch.isfinite(torch.tensor(found.stats.mean_accepted))
