from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import asr
from asr.errors import ConfigError, EmptyAudio, InvalidSamples
from asr.files import transcribe_files
from asr.model import Model
from asr.resample import Samples
from asr.transcriber import transcribe
from tests.asr.test_vad import LoudDetector
from tests.scripted import codes, say, scripted_model
from tests.tiny_model import bursts, tiny_model

OPTIONS = {"delay_ms": 80, "chunk_ms": 160}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def scripted(tmp_path: Path) -> Model:
    return scripted_model(tmp_path)


def write(path: Path, *channels: Samples) -> Path:
    length = max(map(len, channels))
    frames = np.stack([np.pad(one, (0, length - len(one))) for one in channels], 1)
    soundfile.write(path, frames, 16_000, subtype="FLOAT")
    return path


def test_each_files_text_is_that_of_the_file_alone(tiny: Model, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.wav", bursts(0.3 + 0.4 * n, n).numpy()) for n in range(5)]
    results = {result.path: result for result in transcribe_files(tiny, paths, batch_size=2, **OPTIONS)}
    assert results.keys() == set(paths)
    for path, result in results.items():
        (transcript,) = result.transcripts
        alone = transcribe(tiny, path, **OPTIONS)
        assert (transcript.text, transcript.settings) == (alone.text, alone.settings)
        assert result.audio_samples == alone.audio_samples
    assert asr.transcribe_files is transcribe_files


def test_a_bad_file_is_a_result_with_its_error_and_stops_no_other(scripted: Model, tmp_path: Path) -> None:
    good = write(tmp_path / "good.wav", say(scripted, "the cat"))
    (tmp_path / "empty.wav").touch()
    nan = write(tmp_path / "nan.wav", np.array([0, np.nan], dtype=np.float32))
    results = list(transcribe_files(scripted, [tmp_path / "empty.wav", nan, good], batch_size=1, **OPTIONS))
    assert [type(result.error) for result in results] == [EmptyAudio, InvalidSamples, type(None)]
    assert [result.transcripts for result in results[:2]] == [(), ()]
    assert results[2].transcripts[0].text == "the cat"


def test_what_a_decoder_does_is_its_files_error(
    scripted: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.wav", codes(0, 0))

    def broken(self: object, block_samples: int = 1) -> Iterator[Samples]:
        raise RuntimeError("codec gone")
        yield

    monkeypatch.setattr("asr.audio.AudioSource.blocks", broken)
    (result,) = transcribe_files(scripted, [path], **OPTIONS)
    assert str(result.error) == f"{path}: RuntimeError: codec gone"


def test_each_channel_is_heard_by_itself_and_all_are_in_one_result(scripted: Model, tmp_path: Path) -> None:
    left, right = say(scripted, "the cat"), say(scripted, "a dog sat", lead=20)
    path = write(tmp_path / "call.wav", left, right)
    mono = write(tmp_path / "mono.wav", left)
    for batch_size in (1, 3):
        results = list(
            transcribe_files(scripted, [path, "gone.wav", mono], channel="each", batch_size=batch_size, **OPTIONS)
        )
        call, mono_result = (next(r for r in results if r.path == one) for one in (path, mono))
        assert [t.text for t in call.transcripts] == ["the cat", "a dog sat"]
        assert [(turn.channel, turn.text) for turn in call.turns()] == [(0, "the cat"), (1, "a dog sat")]
        assert [t.text for t in mono_result.transcripts] == ["the cat"]
        assert sum(result.error is not None for result in results) == 1


def test_an_error_in_one_channel_is_the_files(scripted: Model, tmp_path: Path) -> None:
    bad = np.zeros(9_000, dtype=np.float32)
    bad[5] = np.inf
    path = write(tmp_path / "call.wav", say(scripted, "the cat"), bad)
    (result,) = transcribe_files(scripted, [path], channel="each", batch_size=2, **OPTIONS)
    assert isinstance(result.error, InvalidSamples)
    assert result.transcripts == ()


def test_silence_left_out_does_not_move_words(scripted: Model, tmp_path: Path) -> None:
    class ByCode(LoudDetector):
        def step(self, windows: Samples, state: int) -> tuple[Samples, int]:
            return (np.abs(windows).max(1) > 0.0005).astype(np.float32), state + len(windows)

    # Silences of whole windows and whole steps alike, so that the steps that say something stay whole.
    silence = codes(*[0] * 400)
    path = write(
        tmp_path / "a.wav", np.concatenate([silence, say(scripted, "the cat"), silence, say(scripted, "a dog")])
    )
    (plain,) = transcribe_files(scripted, [path], **OPTIONS)
    (skipped,) = transcribe_files(scripted, [path], vad=ByCode(), **OPTIONS)
    (before,), (after,) = plain.transcripts, skipped.transcripts
    assert after.text == before.text == "the cat a dog"
    assert after.audio_samples == before.audio_samples
    assert after.stats.steps < before.stats.steps / 2
    for one, other in zip(before.words, after.words, strict=True):
        assert abs(one.start_ms - other.start_ms) <= 80
        assert abs(one.end_ms - other.end_ms) <= 80
        assert other.end_ms <= after.duration_ms


def test_loud_sound_without_a_word_is_a_warning(
    scripted: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = type(scripted.recogniser).row

    def says_nothing(self, active, settings, state):  # type: ignore[no-untyped-def]
        output, state = spoken(self, active, settings, state)
        return replace(output, open=torch.zeros_like(output.open)), state

    hum = 0.2 * np.sin(np.arange(32_000) * 0.3).astype(np.float32) * (np.arange(32_000) // 4000 % 2)
    quiet = write(tmp_path / "quiet.wav", codes(*[0] * 30))
    loud = write(tmp_path / "loud.wav", hum.astype(np.float32))
    monkeypatch.setattr(type(scripted.recogniser), "row", says_nothing)
    results = {r.path: r for r in transcribe_files(scripted, [quiet, loud], **OPTIONS)}
    assert results[quiet].warnings == ()
    (warning,) = results[loud].warnings
    assert warning == "1.0 s are as loud as speech over their background, and no word was heard"


def test_a_file_is_opened_in_its_turn_and_its_reader_may_be_wrapped(scripted: Model, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.wav", say(scripted, "the cat")) for n in range(3)]
    asked: list[Path] = []
    heard: list[int] = []
    wrapped = 0

    def ahead(blocks: Iterator[Samples]) -> Iterator[Samples]:
        nonlocal wrapped
        wrapped += 1
        return blocks

    def one_by_one() -> Iterator[Path]:
        for path in paths:
            asked.append(path)
            yield path

    results = transcribe_files(scripted, one_by_one(), batch_size=1, ahead=ahead, heard=heard.append, **OPTIONS)
    next(results)
    assert asked == paths[:1]
    list(results)
    assert wrapped == 3
    assert sum(heard) == sum(soundfile.info(path).frames for path in paths)


def test_wrong_settings_are_refused_at_once(scripted: Model) -> None:
    with pytest.raises(ConfigError, match="delay_ms=240"):
        transcribe_files(scripted, ["a.wav"], delay_ms=240, chunk_ms=80)
