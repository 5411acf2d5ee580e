"""The teacher's words with the transcript's times, and what is stored of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soundfile
import torch

from asr.checkpoint import save
from asr.errors import ConfigError
from asr.model import CrossConfig, Model
from asr.units import FRAME_SAMPLES, FRAMES_PER_STEP, STEP_SAMPLES
from recipes import teacher
from recipes.align import AlignedClip, AlignedWord
from recipes.data import Clip
from recipes.teacher import (
    TAIL_STEPS,
    TaughtWord,
    decode_offline,
    full_context_features,
    main,
    read_features,
    read_words,
    stacked,
    taught_words,
    teach,
)
from tests.tiny_model import bursts, tiny_additive_model, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def aligned(*words: tuple[str, int, int]) -> list[AlignedWord]:
    return [AlignedWord(text=text, start_ms=start, end_ms=end) for text, start, end in words]


def taught(model: Model, text: str, words: list[AlignedWord], max_error: float = 0.5) -> list[TaughtWord] | None:
    return taught_words(model, model.vocabulary.encode(" " + text), words, max_error=max_error)


def spans(words: list[TaughtWord] | None) -> list[tuple[str, int, int]]:
    assert words is not None
    return [(word.text, word.start_ms, word.end_ms) for word in words]


def test_words_get_the_transcript_s_times(model: Model) -> None:
    words = taught(model, "The don't, he.", aligned(("the", 100, 300), ("DON'T", 300, 700), ("he", 900, 990)))
    assert spans(words) == [("The", 100, 300), ("don't,", 300, 700), ("he.", 900, 990)]
    assert words is not None
    pieces = [piece for word in words for piece in word.pieces]
    assert pieces == model.vocabulary.encode(" The don't, he.")
    assert [len(word.pieces) for word in words][1] == 3


def test_a_word_that_the_transcript_lacks_lies_between_its_neighbours(model: Model) -> None:
    the, he, on, no = ("the", 100, 300), ("he", 900, 1000), ("on", 1000, 1200), ("no", 1200, 1300)
    known = aligned(the, he, on, no)
    assert spans(taught(model, "the a he on no", known)) == [the, ("a", 300, 900), he, on, no]
    assert spans(taught(model, "the a b he on no", known)) == [the, ("a", 300, 600), ("b", 600, 900), he, on, no]
    assert spans(taught(model, "b the he on no", known))[0] == ("b", 0, 100)
    assert spans(taught(model, "the he on a", known)) == [the, he, on]  # no nearer to the transcript with "a"
    assert spans(taught(model, "the he a no", known))[2] == ("a", 1000, 1200)  # misheard


def test_what_runs_on_behind_the_transcript_is_cut_off(model: Model) -> None:
    words = aligned(("the", 100, 300), ("he", 900, 1000))
    assert spans(taught(model, "the he the he the he", words)) == [("the", 100, 300), ("he", 900, 1000)]


@pytest.mark.parametrize(("max_error", "kept"), [(0.3, False), (0.34, True)])
def test_a_text_that_differs_too_much_is_not_taught(model: Model, max_error: float, kept: bool) -> None:
    words = aligned(("the", 100, 300), ("on", 300, 700), ("he", 900, 1000))
    assert (taught(model, "the a he", words, max_error) is not None) == kept
    assert taught(model, "", words, 1.0) is None


# -- features ------------------------------------------------------------------------------------------------------


def test_a_clip_in_a_batch_is_taught_as_it_is_alone(model: Model) -> None:
    recogniser = model.recogniser
    sounds = [bursts(0.5, 1), bursts(1.3, 2)]
    samples, lens = stacked(sounds, TAIL_STEPS)
    assert lens.tolist() == [STEP_SAMPLES * (7 + TAIL_STEPS), STEP_SAMPLES * (17 + TAIL_STEPS)]
    with torch.inference_mode():
        features, counts = full_context_features(recogniser, samples, lens)  # type: ignore[arg-type]
        texts = decode_offline(recogniser, features, counts)  # type: ignore[arg-type]
        for row, sound in enumerate(sounds):
            alone, count = full_context_features(recogniser, *stacked([sound], TAIL_STEPS))  # type: ignore[arg-type]
            assert int(counts[row]) == int(count[0]) == int(lens[row]) // FRAME_SAMPLES
            torch.testing.assert_close(features[row, : int(count[0])], alone[0], rtol=0, atol=1e-5)
            (text,) = decode_offline(recogniser, alone, count)  # type: ignore[arg-type]
            assert texts[row][: len(text)] == text  # a text that runs on is cut by the longest clip of its batch
    assert isinstance(model.config, CrossConfig)
    assert not set(texts[0] + texts[1]) & set(model.config.banned)
    assert max(len(text) for text in texts) >= 1


def test_a_whole_clip_is_heard_by_every_frame(model: Model) -> None:
    samples, lens = stacked([bursts(1.0, 1)], 0)
    changed = samples.clone()
    changed[:, -STEP_SAMPLES:] += 0.3
    with torch.inference_mode():
        first, _ = full_context_features(model.recogniser, samples, lens)  # type: ignore[arg-type]
        second, _ = full_context_features(model.recogniser, changed, lens)  # type: ignore[arg-type]
    assert not torch.allclose(first[:, :FRAMES_PER_STEP], second[:, :FRAMES_PER_STEP])


def clips(folder: Path, count: int) -> list[Clip]:
    found = []
    for number in range(count):
        path = folder / f"{number}.wav"
        sound = bursts(0.9 + 0.1 * number, number)
        soundfile.write(path, sound.numpy(), 16_000)
        duration_ms = 900 + 100 * number
        found.append(
            Clip(
                audio=path.name,
                path=path,
                duration_ms=duration_ms,
                text="a b",
                speaker=None,
                source="s",
                licence="l",
            )
        )
    return found


def shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """One clip a shard."""
    batches = teacher.length_batches
    monkeypatch.setattr(teacher, "length_batches", lambda chosen, _: batches(chosen, 1.0))


def alignments(model: Model, chosen: list[Clip]) -> dict[str, AlignedClip]:
    """Transcripts that are what the teacher says."""
    found = {}
    for clip in chosen:
        samples, lens = stacked([teacher.load_audio(clip.path)], TAIL_STEPS)
        with torch.inference_mode():
            features, counts = full_context_features(model.recogniser, samples, lens)  # type: ignore[arg-type]
            pieces = decode_offline(model.recogniser, features, counts)[0]  # type: ignore[arg-type]
        spoken = model.vocabulary.decode(pieces).split()
        words = tuple(AlignedWord(text=word, start_ms=10 * i, end_ms=10 * i + 10) for i, word in enumerate(spoken))
        found[clip.audio] = AlignedClip(audio=clip.audio, text=" ".join(spoken), words=words)
    return found


def test_features_and_words_are_stored_and_a_stopped_run_goes_on(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortened(monkeypatch)
    chosen = clips(tmp_path, 3)
    truth = alignments(model, chosen)
    out = tmp_path / "out"
    out.mkdir()
    featured, known = teach(model, chosen, truth, out, taught_hours=1.0, max_error=1.0)
    assert featured == 3
    features = dict(read_features(out))
    assert sorted(features) == [clip.audio for clip in chosen]
    for clip in chosen:
        assert features[clip.audio].dtype == torch.float16
        assert features[clip.audio].shape[0] == -(-clip.duration_ms * 16 // FRAME_SAMPLES) + 4 * TAIL_STEPS
    words = read_words(out)
    assert len(words) == known
    assert known >= 1
    assert all(isinstance(word, TaughtWord) for spoken in words.values() for word in spoken)

    shards = sorted(out.glob("features-*"))
    before = {shard: shard.read_bytes() for shard in shards}
    shards[1].unlink()
    kept = [json.loads(line)["audio"] for line in (out / "teacher.jsonl").read_text().splitlines()]
    assert teach(model, chosen, truth, out, taught_hours=0.0, max_error=1.0)[0] == 1
    assert {shard: shard.read_bytes() for shard in shards} == before
    assert [json.loads(line)["audio"] for line in (out / "teacher.jsonl").read_text().splitlines()] == kept
    assert not list(out.glob("*.tmp"))


def test_only_a_cross_family_model_teaches(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tiny additive is no cross-family model"):
        teach(tiny_additive_model(tmp_path), [], {}, tmp_path, taught_hours=1.0, max_error=0.5)


def test_the_command_takes_clips_up_to_its_hours(model: Model, tmp_path: Path) -> None:
    chosen = clips(tmp_path, 3)
    entries = [
        {"audio": clip.audio, "duration": clip.duration_ms / 1000, "text": "a b", "source": "s", "licence": "l"}
        for clip in chosen
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    aligned_clips = alignments(model, chosen).values()
    (tmp_path / "a.jsonl").write_text("".join(clip.to_json() + "\n" for clip in aligned_clips))
    save(model, tmp_path / "model", "card")
    arguments = ["--model", str(tmp_path / "model"), "--manifest", str(tmp_path / "m.jsonl")]
    arguments += ["--alignments", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out"), "--hours", "0.0005"]
    assert main(arguments) == 0
    heard = [clip.duration_ms for clip in chosen if clip.audio in dict(read_features(tmp_path / "out"))]
    assert len(heard) == 2  # 1.8 s are reached with the second
