"""Training sessions: what is drawn how often, and that words stay where their sound is."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import soundfile
import torch

from asr.units import SAMPLE_RATE
from recipes.data import Clip
from recipes.sessions import Plan, SessionMaker, _band, group, plan_sessions
from recipes.teacher import TaughtWord

WORDS = [
    TaughtWord(text=text, pieces=(i,), start_ms=start, end_ms=start + 150)
    for i, (text, start) in enumerate([("a", 100), ("b", 400), ("c", 700), ("d", 1000), ("e", 1300), ("f", 1600)])
]
"""Each is a tone between silences."""
LENGTH_MS = 1900


def spans(words: tuple[TaughtWord, ...]) -> list[tuple[int, int]]:
    return [(word.start_ms, word.end_ms) for word in words]


def clip(name: str, duration_ms: int, source: str = "some", folder: Path = Path()) -> Clip:
    path = folder / name
    return Clip(audio=name, path=path, duration_ms=duration_ms, text=None, speaker=None, source=source, licence="CC0")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    folder = tmp_path_factory.mktemp("sessions")
    samples = torch.zeros(LENGTH_MS * SAMPLE_RATE // 1000)
    time = torch.arange(150 * SAMPLE_RATE // 1000) / SAMPLE_RATE
    for word in WORDS:
        at = word.start_ms * SAMPLE_RATE // 1000
        samples[at : at + len(time)] = 0.2 * torch.cos(2 * torch.pi * 1000 * time)
    soundfile.write(folder / "a.wav", samples.numpy(), SAMPLE_RATE, subtype="FLOAT")
    return clip("a.wav", LENGTH_MS, folder=folder)


# -- plans ---------------------------------------------------------------------------------------------------------

CLIPS = [clip(f"{i}", 500 + 137 * i, source=("rare", "often", "some")[i % 3]) for i in range(30)]


def plans(seed: int, *, joined_share: float = 0.5, longest_ms: int = 8000, **weights: float) -> list[Plan]:
    return plan_sessions(
        CLIPS, weights=weights, longest_ms=longest_ms, joined_share=joined_share, rng=random.Random(seed)
    )


def counted(found: list[Plan]) -> Counter[str]:
    return Counter(one.audio for plan in found for one in plan.clips)


@pytest.mark.parametrize("seed", range(5))
def test_a_clip_comes_as_often_as_its_source_weighs(seed: int) -> None:
    counts = counted(plans(seed, rare=0.0, often=3.0))
    assert {one.audio: counts[one.audio] for one in CLIPS} == {
        one.audio: {"rare": 0, "often": 3, "some": 1}[one.source] for one in CLIPS
    }


def test_a_part_of_a_weight_is_a_chance() -> None:
    counts = sum((counted(plans(seed, rare=1.3)) for seed in range(100)), Counter[str]())
    rare = [counts[one.audio] for one in CLIPS if one.source == "rare"]
    assert 1.25 < sum(rare) / len(rare) / 100 < 1.35
    assert min(rare) >= 100


@pytest.mark.parametrize("seed", range(5))
def test_no_session_is_too_long_and_too_long_clips_are_left_out(seed: int) -> None:
    found = plans(seed, joined_share=1.0, longest_ms=4000)
    assert all(plan.duration_ms <= 4000 for plan in found)
    assert set(counted(found)) == {one.audio for one in CLIPS if one.duration_ms <= 3000}
    assert any(len(plan.clips) > 1 for plan in found)
    assert all(len(plan.clips) == len(plan.pauses_ms) for plan in found)
    assert all(150 <= pause <= 2500 for plan in found for pause in plan.pauses_ms[1:])


def test_clips_stay_alone_where_none_are_joined_and_a_seed_is_an_epoch() -> None:
    assert all(len(plan.clips) == 1 for plan in plans(1, joined_share=0.0))
    assert plans(3) == plans(3) != plans(4)


@pytest.mark.parametrize("seconds", [1.0, 9.0, 30.0])
def test_batches_hold_every_plan_once_and_no_more_than_they_may(seconds: float) -> None:
    found = plans(1)
    batches = list(group(found, seconds=seconds, rng=random.Random(2)))
    assert Counter(id(plan) for batch in batches for plan in batch) == Counter(id(plan) for plan in found)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(plan.duration_ms for plan in batch) <= seconds * 1000


# -- sound ---------------------------------------------------------------------------------------------------------


def maker(recorded: Clip, noises: tuple[torch.Tensor, ...] = ()) -> SessionMaker:
    return SessionMaker({recorded.audio: WORDS}, noises)


def test_words_lie_where_they_sound_after_pauses_and_cuts(recorded: Clip) -> None:
    plan_of = [Plan(clips=(recorded,) * 2, pauses_ms=(300, 700), seed=seed) for seed in range(40)]
    cut = 0
    for plan in plan_of:
        session = maker(recorded).make(plan)
        if len(session.words) == 12:
            assert spans(session.words)[0] == (400, 550)
            assert spans(session.words)[6] == (300 + LENGTH_MS + 700 + 100, 300 + LENGTH_MS + 700 + 250)
            assert session.clean.shape[0] == plan.duration_ms * 16
        else:
            cut += 1
            assert session.words[-1].text == "f"
        loud = torch.zeros_like(session.clean, dtype=torch.bool)
        for start, end in spans(session.words):
            loud[start * 16 : end * 16] = True
            assert session.clean[start * 16 : end * 16].square().mean() > 1e-5
        assert not session.clean[~loud].any()
    assert 2 <= cut <= 14  # one in six


def test_a_cut_keeps_half_of_the_words_and_all_behind_the_first(recorded: Clip) -> None:
    texts = set()
    for seed in range(60):
        session = maker(recorded).make(Plan(clips=(recorded,), pauses_ms=(0,), seed=seed))
        texts.add("".join(word.text for word in session.words))
        assert all(later > earlier for earlier, later in spans(session.words))
    assert texts <= {"abcdef", "bcdef", "cdef", "def"}
    assert len(texts) > 2


def test_the_same_plan_is_the_same_session(recorded: Clip) -> None:
    plan = Plan(clips=(recorded,), pauses_ms=(0,), seed=5)
    first, second = (maker(recorded).make(plan) for _ in range(2))
    assert torch.equal(first.clean, second.clean)
    assert torch.equal(first.heard, second.heard)
    assert first.words == second.words


def test_noise_is_5_to_30_db_below_the_speech_and_under_a_third_of_the_sessions(recorded: Clip) -> None:
    hiss = torch.randn(20_000, generator=torch.Generator().manual_seed(1))
    ratios, clear = [], 0
    for seed in range(120):
        session = maker(recorded, (hiss,)).make(Plan(clips=(recorded,), pauses_ms=(0,), seed=seed))
        assert session.heard.shape == session.clean.shape
        assert float(session.heard.abs().max()) <= 1
        noise = session.heard - session.clean
        if not noise.any():
            clear += 1
            continue
        ratios.append(10 * torch.log10(session.clean.square().mean() / noise.square().mean()).item())
    noisy = [ratio for ratio in ratios if ratio < 31]  # the band changes a pure tone less
    assert 25 <= len(noisy) <= 55
    assert 4.5 < min(noisy) < 12
    assert max(noisy) > 24
    assert clear > 60


def test_a_telephone_hears_only_its_band() -> None:
    time = torch.arange(SAMPLE_RATE) / SAMPLE_RATE
    tones = [torch.sin(2 * torch.pi * pitch * time) for pitch in (100.0, 1000.0, 5000.0)]
    torch.testing.assert_close(_band(sum(tones, torch.zeros(())), 300, 3400), tones[1], atol=3e-3, rtol=0)
