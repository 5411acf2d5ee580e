"""Transcripts in the teacher's spelling: the words stay, the decoder chooses capitals and marks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import soundfile
import torch
from torch import Tensor

from asr.checkpoint import save
from asr.errors import ConfigError
from asr.model import Model
from recipes.align import AlignedClip, AlignedWord
from recipes.data import Clip
from recipes.spell import MARKS, Speller, forms, main, spell
from recipes.teacher import read_words
from tests.tiny_model import bursts, tiny_additive_model, tiny_model

TEXT = ("THE", "DOG", "I'M", "ON", "A", "LOG")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return tiny_model(tmp_path)


def rigged(model: Model, monkeypatch: pytest.MonkeyPatch, likes: Callable[[int], Sequence[str]]) -> None:
    """At its n-th call, from 0, the decoder likes the first pieces of these texts, the earlier ones more."""
    calls = iter(range(1000))

    def logits(hidden: Tensor) -> Tensor:
        row = torch.zeros(hidden.shape[0], model.vocabulary.size)
        for place, text in enumerate(reversed(likes(next(calls))), start=1):
            row[:, model.vocabulary.encode(text)[0]] = place
        return row

    monkeypatch.setattr(model.recogniser.decoder, "logits", logits)


def written(model: Model, words: Sequence[str]) -> list[str]:
    (pieces,) = Speller(model).spell([bursts(0.5)], [words])
    return [model.vocabulary.decode(word) for word in pieces]


def test_a_decoder_that_likes_small_letters_and_no_marks(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rigged(model, monkeypatch, lambda _: [" the", " d", " o", " a", " l", "<|endoftext|>"])
    assert written(model, TEXT) == [" the", " dog", " I'm", " on", " a", " log"]


def test_capitals_where_the_decoder_likes_them(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rigged(model, monkeypatch, lambda call: [" D"] if call == 0 else [" dog", "<|endoftext|>"])
    assert written(model, ("DON", "DOG")) == [" Don", " dog"]


def test_one_mark_behind_a_word_at_the_most_and_none_before_the_first(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigged(model, monkeypatch, lambda _: ["?", ",", " the", " d"])
    assert written(model, ("THE", "DOG")) == [" the?", " dog?"]


def test_a_mark_only_where_it_is_likelier_than_what_follows(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    # call 0: " the" is chosen and read; 1: mark or " the"; 2: its mark is written, mark or end
    rigged(model, monkeypatch, lambda call: [" the", "."] if call < 2 else [".", "<|endoftext|>"])
    assert written(model, ("THE", "THE")) == [" the", " the."]


def test_forms_of_i_are_always_capitals() -> None:
    assert [forms(word) for word in ("I", "I'LL", "IN", "A")] == [("I",), ("I'll",), ("in", "In"), ("a", "A")]


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_decoder_says_the_words_stay(tmp_path: Path, seed: int) -> None:
    words = written(tiny_model(tmp_path, seed=seed), TEXT)
    bare = [word.strip().rstrip("".join(MARKS)).upper() for word in words]
    assert bare == list(TEXT)
    assert all(word[0] == " " for word in words)


def test_a_clip_in_a_batch_is_spelled_as_it_is_alone(model: Model) -> None:
    sounds, texts = [bursts(0.4, 1), bursts(1.2, 2)], [TEXT, TEXT[3:4]]
    together = Speller(model).spell(sounds, texts)
    alone = [Speller(model).spell([sound], [text])[0] for sound, text in zip(sounds, texts, strict=True)]
    assert together == alone


def test_only_a_full_context_decoder_can_spell(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tiny additive is no cross-family model"):
        Speller(tiny_additive_model(tmp_path))


# -- clips -----------------------------------------------------------------------------------------------------------


def clip(folder: Path, name: str, text: str | None, duration_ms: int = 500) -> Clip:
    soundfile.write(folder / name, bursts(duration_ms / 1000).numpy(), 16_000)
    return Clip(
        audio=name,
        path=folder / name,
        duration_ms=duration_ms,
        text=text,
        speaker=None,
        source="toy",
        licence="CC0",
    )


def aligned(clip: Clip, text: str) -> AlignedClip:
    words = tuple(AlignedWord(text=word, start_ms=100 * i, end_ms=100 * i + 90) for i, word in enumerate(text.split()))
    return AlignedClip(audio=clip.audio, text=text, words=words)


def test_small_letters_keep_their_spelling_and_times_are_the_alignment_s(model: Model, tmp_path: Path) -> None:
    texts = {"small.wav": "The dog, don't.", "big.wav": "THE DOG", "empty.wav": "", "unaligned.wav": "THE"}
    clips = [clip(tmp_path, name, text) for name, text in texts.items()]
    lines = list(spell(model, clips, {one.audio: aligned(one, texts[one.audio]) for one in clips[:3]}))
    words = {str(line["audio"]): line["words"] for line in lines}
    assert set(words) == {"small.wav", "big.wav"}
    small, big = words["small.wav"], words["big.wav"]
    assert isinstance(small, list)
    assert isinstance(big, list)
    assert [word["text"] for word in small] == ["The", "dog,", "don't."]
    assert [word["text"].rstrip("".join(MARKS)).upper() for word in big] == ["THE", "DOG"]
    assert [(word["start_ms"], word["end_ms"]) for word in big] == [(0, 90), (100, 190)]
    for word in small + big:
        assert model.vocabulary.decode(list(word["pieces"])) == " " + word["text"]


def test_the_command_appends_what_is_not_there_yet(model: Model, tmp_path: Path) -> None:
    save(model, tmp_path / "model", "card")
    clips = [clip(tmp_path, "a.wav", "THE DOG"), clip(tmp_path, "b.wav", "a log")]
    manifest, alignments = tmp_path / "clips.jsonl", tmp_path / "aligned.jsonl"
    lines = [
        {"audio": one.audio, "duration": one.duration_ms / 1000, "text": one.text, "source": "toy", "licence": "CC0"}
        for one in clips
    ]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    alignments.write_text("".join(aligned(one, one.text or "").to_json() + "\n" for one in clips))
    command = ["--model", str(tmp_path / "model"), "--manifest", str(manifest), "--alignments", str(alignments)]
    out = tmp_path / "out"
    assert main([*command, "--out", str(out)]) == 0
    first = (out / "teacher.jsonl").read_text()
    assert {name: len(words) for name, words in read_words(out).items()} == {"a.wav": 2, "b.wav": 2}
    (out / "teacher.jsonl").write_text(first.splitlines(keepends=True)[0])
    assert main([*command, "--out", str(out)]) == 0
    assert (out / "teacher.jsonl").read_text() == first
