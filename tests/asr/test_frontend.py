"""The front end against torchaudio's filters, a plain STFT, and Whisper's own padded stem."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asr.errors import AudioFormatError, InvalidSamples
from asr.frontend import Frontend, mel_filters
from asr.units import STEP_SAMPLES
from tests import tiny

torchaudio = pytest.importorskip("torchaudio")

STEPS = 12


def whole_clip_mel(samples: Tensor, bins: int) -> Tensor:
    """[F, T] Whisper's log-mel with a fixed floor: frame i is centred on sample 160 i."""
    spectrum = torch.stft(
        samples, 400, 160, window=torch.hann_window(400), center=True, pad_mode="constant", return_complex=True
    )
    filters = torchaudio.functional.melscale_fbanks(201, 0.0, 8000.0, bins, 16_000, norm="slaney", mel_scale="slaney")
    mel = filters.T @ spectrum.abs().square()
    return mel.clamp(min=10**-6.5).log10() / 4 + 1  # (x + 4) / 4


def stem_of(frontend: Frontend, mel: Tensor) -> Tensor:
    """[T/2, C] Whisper's stem: both convolutions padded by one frame on both sides."""
    first = F.gelu(F.conv1d(mel[None], frontend.conv1.weight, frontend.conv1.bias, padding=1))
    return F.gelu(F.conv1d(first, frontend.conv2.weight, frontend.conv2.bias, stride=2, padding=1))[0].T


def frames_of(frontend: Frontend, samples: Tensor) -> Tensor:
    lens = torch.tensor([len(samples)])
    return frontend.step(samples[None], lens, frontend.init_state(1))[0][0]


@pytest.mark.parametrize("bins", [80, 128])
def test_filters_are_torchaudio_s(bins: int) -> None:
    expected = torchaudio.functional.melscale_fbanks(201, 0.0, 8000.0, bins, 16_000, norm="slaney", mel_scale="slaney")
    torch.testing.assert_close(torch.from_numpy(mel_filters(bins)), expected, rtol=1e-4, atol=1e-7)


def test_mel_is_the_whole_clip_s_one_hop_later() -> None:
    samples = tiny.sound(STEPS * STEP_SAMPLES, 50)
    frontend = tiny.randomised(Frontend(mel_bins=80, dim=4))
    streamed = frontend.log_mel(F.pad(samples, (360, 0))[None])[0]
    whole = whole_clip_mel(samples, 80)
    # Window i of the stream ends 40 samples after hop i does; the whole clip's frame i - 1 is that window.
    torch.testing.assert_close(streamed[:, 1:], whole[:, : streamed.shape[1] - 1], rtol=0, atol=2e-5)
    assert streamed.min() >= frontend.floor == (-6.5 + 4) / 4


def test_stem_is_whisper_s_20_ms_later() -> None:
    # Whisper pads its mel with zeros, a stream with silence: after two frames of it, the clip's start is alike.
    samples = F.pad(tiny.sound(STEPS * STEP_SAMPLES, 51), (4 * STEP_SAMPLES, 0))
    frontend = tiny.randomised(Frontend(mel_bins=80, dim=6))
    streamed = frames_of(frontend, samples)
    whisper = stem_of(frontend, whole_clip_mel(samples, 80))
    torch.testing.assert_close(streamed[3:], whisper[2 : len(streamed) - 1], rtol=0, atol=5e-5)


def test_a_stream_begins_as_if_it_had_been_silent_for_ever() -> None:
    samples = tiny.sound(STEPS * STEP_SAMPLES, 52)
    frontend = tiny.tiny_frontend()
    later = frames_of(frontend, F.pad(samples, (STEP_SAMPLES, 0)))
    torch.testing.assert_close(later[4:], frames_of(frontend, samples), rtol=0, atol=1e-6)
    silent = frontend.silent_frame().expand(4, -1)
    torch.testing.assert_close(later[:4], silent, rtol=0, atol=1e-6)


def test_loudness_is_the_louder_mel_frame_of_the_two() -> None:
    samples = torch.zeros(STEP_SAMPLES)
    samples[640:] = tiny.sound(640, 53)
    frontend = tiny.tiny_frontend()
    _, loudness, counts, _ = frontend.step(samples[None], torch.tensor([STEP_SAMPLES]), frontend.init_state(1))
    mel = frontend.log_mel(F.pad(samples, (360, 0))[None])[0].mean(0)
    assert loudness[0].tolist() == [max(mel[2 * i], mel[2 * i + 1]) for i in range(4)]
    assert loudness[0, 0] == pytest.approx(frontend.floor)
    assert loudness[0, 3] > loudness[0, 0]
    assert counts.tolist() == [4]


def test_ten_decibels_are_a_quarter() -> None:
    samples = torch.randn(STEPS * STEP_SAMPLES, generator=torch.Generator().manual_seed(54))
    frontend = tiny.tiny_frontend()
    louder, quieter = (frontend.log_mel(x[None]) for x in (samples, samples * 10**-0.5))
    torch.testing.assert_close(louder - quieter, torch.full_like(louder, 0.25), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("size", "lens"), [(1000, 0), (2 * STEP_SAMPLES, 1000)])
def test_only_whole_steps_are_taken(size: int, lens: int) -> None:
    frontend = tiny.tiny_frontend()
    with pytest.raises(AudioFormatError, match=f"lengths \\[{lens}\\] of {size}; whole steps of 1280 are needed"):
        frontend.step(torch.zeros(1, size), torch.tensor([lens]), frontend.init_state(1))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_samples_must_be_finite_where_they_are_valid(bad: float) -> None:
    frontend, lens = tiny.tiny_frontend(), torch.tensor([STEP_SAMPLES, 0])
    samples = torch.zeros(2, STEP_SAMPLES)
    samples[1, 5] = bad
    frames, *_ = frontend.step(samples, lens, frontend.init_state(2))
    assert frames.isfinite().all()
    samples[0, 7] = bad
    with pytest.raises(InvalidSamples, match="row 0 holds NaN or infinity"):
        frontend.step(samples, lens, frontend.init_state(2))
