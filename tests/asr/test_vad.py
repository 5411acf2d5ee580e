from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.audio import read_audio
from asr.errors import ConfigError
from asr.resample import Samples
from asr.units import SAMPLE_RATE, STEP_SAMPLES
from asr.vad import CUT_WINDOWS, LEAD_WINDOWS, TRAIL_WINDOWS, WINDOW_SAMPLES, SilenceSkipper, SileroDetector
from asr.words import Transcript, Word

SPEECH = Path(__file__).parents[2] / "samples" / "audio"


class LoudDetector:
    """Speech is what is loud; counts windows in its state, so that a lost state is seen."""

    def init_state(self) -> int:
        return 0

    def step(self, windows: Samples, state: int) -> tuple[Samples, int]:
        assert windows.shape[1] == WINDOW_SAMPLES
        return (np.abs(windows).max(1) > 0.5).astype(np.float32), state + len(windows)


def numbered(spans: list[tuple[bool, int]]) -> Samples:
    """Windows of speech or silence; every sample differs, so that its place is known."""
    parts = [np.full(windows * WINDOW_SAMPLES, 0.75 if speech else 0.0) for speech, windows in spans]
    whole = np.concatenate([*parts, np.zeros(0)])
    return (whole + np.arange(len(whole)) * 3e-7).astype(np.float32)


def sieve(samples: Samples, cuts: list[int]) -> tuple[SilenceSkipper, Samples]:
    skipper = SilenceSkipper(LoudDetector())
    kept = [skipper.step(piece) for piece in np.split(samples, cuts)]
    return skipper, np.concatenate([*kept, skipper.finish()])


spans = st.lists(st.tuples(st.booleans(), st.integers(1, 3 * TRAIL_WINDOWS)), max_size=6)


@settings(max_examples=40, deadline=None)
@given(spans=spans, tail=st.integers(0, WINDOW_SAMPLES - 1), cuts=st.lists(st.integers(0, 90_000), max_size=5))
def test_any_pieces_give_the_same_and_every_kept_sample_knows_its_place(
    spans: list[tuple[bool, int]], tail: int, cuts: list[int]
) -> None:
    samples = numbered([*spans, (False, 1)])[: -WINDOW_SAMPLES + tail or None]
    skipper, kept = sieve(samples, sorted(min(cut, len(samples)) for cut in cuts))
    kept_whole = sieve(samples, [])[1]
    assert np.array_equal(kept, kept_whole)
    assert (skipper.received, skipper.kept) == (len(samples), len(kept))
    places = [skipper.received_at(at, end=False) for at in range(0, len(kept), 97)]
    assert np.array_equal(kept[::97], samples[places]), "each kept sample came from where it is said to come from"
    assert all(a < b for a, b in pairwise(places))


def test_long_silence_is_cut_to_what_is_kept_around_speech() -> None:
    silence = TRAIL_WINDOWS + LEAD_WINDOWS + 40 * CUT_WINDOWS
    skipper, kept = sieve(numbered([(True, 10), (False, silence + 2), (True, 10), (False, silence)]), [])
    assert len(kept) == (10 + TRAIL_WINDOWS + LEAD_WINDOWS + 2 + 10 + TRAIL_WINDOWS) * WINDOW_SAMPLES
    joint = (10 + TRAIL_WINDOWS) * WINDOW_SAMPLES
    cut = 40 * CUT_WINDOWS * WINDOW_SAMPLES
    assert cut % STEP_SAMPLES == 0
    assert skipper.received_at(joint, end=True) == joint, "what ends there ended before the cut"
    assert skipper.received_at(joint, end=False) == joint + cut, "what begins there begins behind it"


def test_short_silence_is_kept_whole() -> None:
    samples = numbered([(True, 3), (False, TRAIL_WINDOWS + LEAD_WINDOWS), (True, 3)])
    assert np.array_equal(sieve(samples, [])[1], samples)


def test_silence_alone_leaves_nothing_and_holds_little() -> None:
    skipper = SilenceSkipper(LoudDetector())
    for _ in range(50):
        assert len(skipper.step(np.zeros(SAMPLE_RATE, dtype=np.float32))) == 0
        assert len(skipper._held) < LEAD_WINDOWS + CUT_WINDOWS
    assert len(skipper.finish()) == 0
    assert skipper.received == 50 * SAMPLE_RATE


def test_words_get_their_times_back() -> None:
    quiet = 400 + TRAIL_WINDOWS + LEAD_WINDOWS
    skipper, _ = sieve(numbered([(False, 400 + LEAD_WINDOWS), (True, 50), (False, quiet), (True, 50)]), [])
    lead = LEAD_WINDOWS * WINDOW_SAMPLES * 1000 // SAMPLE_RATE
    first = Word(text="a", start_ms=lead + 100, end_ms=lead + 300, emitted_ms=lead + 900, confidence=1.0)
    gap = (TRAIL_WINDOWS + LEAD_WINDOWS + 50) * 32
    second = Word(
        text="b", start_ms=lead + gap + 100, end_ms=lead + gap + 300, emitted_ms=lead + gap + 500, confidence=1
    )
    transcript = Transcript(words=(first, second), audio_samples=1, settings={"delay_ms": 480})
    restored = skipper.restore(transcript)
    assert restored.audio_samples == (900 + 2 * LEAD_WINDOWS + TRAIL_WINDOWS) * WINDOW_SAMPLES
    assert [(w.start_ms, w.end_ms) for w in restored.words] == [
        (400 * 32 + lead + 100, 400 * 32 + lead + 300),
        (800 * 32 + lead + gap + 100, 800 * 32 + lead + gap + 300),
    ]
    assert restored.settings == {"delay_ms": 480, "vad": True}


def test_silero_hears_speech_and_no_silence_whatever_the_pieces() -> None:
    speech = read_audio(SPEECH / "1993-147149-0026.opus")
    detector = SileroDetector()
    rng = np.random.default_rng(0)
    hiss = rng.normal(0, 1e-4, 20 * SAMPLE_RATE).astype(np.float32)
    samples = np.concatenate([hiss, speech, hiss, speech])
    skipper = SilenceSkipper(detector)
    kept = np.concatenate([*(skipper.step(piece) for piece in np.array_split(samples, 7)), skipper.finish()])
    seconds = len(kept) / SAMPLE_RATE
    assert 2 * len(speech) / SAMPLE_RATE - 1 <= seconds <= 2 * len(speech) / SAMPLE_RATE + 4
    again = SilenceSkipper(detector)
    assert np.array_equal(np.concatenate([again.step(samples), again.finish()]), kept)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'earlybird-asr\[vad\]'"):
        SileroDetector()
