"""Examples: targets in a batch, and which clips there are."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile

from asr.errors import ConfigError
from asr.units import SAMPLE_RATE, STEP_SAMPLES
from asr.vocabulary import Vocabulary
from recipes.align import AlignedClip, AlignedWord
from recipes.data import Clip
from recipes.examples import AlignedExamples, durations_ms, make_batch
from tests.recipes.test_sft import EXAMPLES, spoken
from tests.tiny_model import write_tokenizer


def test_a_batch_has_each_word_at_its_due_step_and_waits_elsewhere() -> None:
    batch = make_batch([spoken((5, 320), (9, 800)), spoken((5, 160), steps=4)], [1, 3], wait=99, trailing_waits=0)
    first, second = batch.outputs.tolist()
    assert [(t, y) for t, y in enumerate(first) if y != 99] == [(4, 5), (10, 9)]
    assert [(t, y) for t, y in enumerate(second) if y != 99] == [(4, 5)]  # past the end of its audio
    assert batch.valid.sum(1).tolist() == [16, 5]
    assert batch.samples.shape == (2, 16 * STEP_SAMPLES)
    assert batch.samples[1, 4 * STEP_SAMPLES :].abs().max() == 0
    assert batch.delay.tolist() == [1, 3]


def test_a_batch_ends_in_the_waits_asked_for() -> None:
    batch = make_batch([spoken((5, 320), steps=4)], [3], wait=99, trailing_waits=5)
    assert batch.outputs.tolist() == [[99] * 6 + [5] + [99] * 5]
    with pytest.raises(ConfigError, match="needs an example"):
        make_batch([], [], wait=99, trailing_waits=5)


def test_examples_are_the_short_clips_with_word_times(tmp_path: Path) -> None:
    vocabulary = Vocabulary(write_tokenizer(tmp_path / "tokenizer.json"))
    soundfile.write(tmp_path / "a.wav", [0.1, -0.1, 0.2], SAMPLE_RATE)

    def clip(name: str, duration_ms: int) -> Clip:
        return Clip(
            audio=name,
            path=tmp_path / name,
            duration_ms=duration_ms,
            text="THE ON",
            speaker=None,
            source="made",
            licence="CC0",
        )

    words = (AlignedWord(text="THE", start_ms=0, end_ms=90), AlignedWord(text="A", start_ms=90, end_ms=200))
    aligned = {name: AlignedClip(audio=name, text="THE A", words=words) for name in ("a.wav", "long.wav")}
    aligned["quiet.wav"] = AlignedClip(audio="quiet.wav", text="", words=())
    clips = [clip("a.wav", 1000), clip("long.wav", 9000), clip("alone.wav", 1000), clip("quiet.wav", 1000)]
    examples = AlignedExamples(clips, aligned, vocabulary, longest_ms=8000)
    assert len(examples) == 1
    assert durations_ms(examples) == [1000]  # as stated, whatever the file holds
    assert durations_ms(EXAMPLES[:2]) == [1280, 1280]
    assert examples[0].samples.tolist() == pytest.approx([0.1, -0.1, 0.2], abs=1e-3)
    assert [vocabulary.decode(list(word.pieces)) for word in examples[0].words] == [" the", " a"]
    assert [word.end_ms for word in examples[0].words] == [90, 200]
    assert [len(example.words) for example in examples[:1]] == [2]
