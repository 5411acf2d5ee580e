"""Log-mel features and the causal convolution stem: PCM in, encoder frames out, four a step.

Whisper's stem looks 12.5 ms past a frame. Here the mel windows lie one hop and the frames one frame further back, so
that everything a step needs has been heard when the step is: the numbers are Whisper's own, 20 ms later. Before its
first sample a stream is taken to have been silent for ever, so its start is like any other place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.errors import AudioFormatError, InvalidSamples
from asr.invariant import Conv1d, linear
from asr.units import FRAMES_PER_STEP, MEL_SAMPLES, SAMPLE_RATE, STEP_SAMPLES

WINDOW_SAMPLES = 400
LOOK_BACK_SAMPLES = 360  # a step's first window begins this far before the step
MEL_FLOOR = -6.5  # log10; Whisper's per-clip floor (maximum - 8) needs the whole clip, this one is fixed


def mel_filters(bins: int) -> np.ndarray:
    """Slaney-scale, Slaney-normalised triangular filters [201, bins], 0 to 8000 Hz, as Whisper has them."""

    def to_hz(mel: np.ndarray) -> np.ndarray:
        linear = mel * (200.0 / 3)
        return np.where(mel < 15, linear, 1000.0 * np.exp((mel - 15) * (np.log(6.4) / 27)))

    top_mel = 15 + np.log(8.0) / (np.log(6.4) / 27)
    edges = to_hz(np.linspace(0.0, top_mel, bins + 2))
    frequency = np.linspace(0, SAMPLE_RATE / 2, WINDOW_SAMPLES // 2 + 1)
    slope = edges[:, None] - frequency[None, :]  # [bins + 2, 201]
    width = np.diff(edges)
    rising, falling = -slope[:-2] / width[:-1, None], slope[2:] / width[1:, None]
    triangle = np.maximum(0, np.minimum(rising, falling))
    filters: np.ndarray = (triangle * (2.0 / (edges[2:] - edges[:-2]))[:, None]).T.astype(np.float32)
    return filters


@dataclass(frozen=True)
class FrontendState:
    """Attributes: tail: [B, 360] the newest samples; conv1: [B, F, 2] the newest mel frames; conv2: [B, C, 1]."""

    tail: Tensor
    conv1: Tensor
    conv2: Tensor

    def put(self, rows: Tensor, other: FrontendState) -> FrontendState:
        """The state in which `rows` [k] are the k streams of another."""
        return FrontendState(
            self.tail.index_copy(0, rows, other.tail),
            self.conv1.index_copy(0, rows, other.conv1),
            self.conv2.index_copy(0, rows, other.conv2),
        )


class Frontend(nn.Module):
    """PCM [B, N] to encoder frames [B, N/320, C].

    Args:
        mel_bins: F, 80 for Whisper up to large-v2.
        dim: C.
    """

    filters: Tensor
    window: Tensor

    def __init__(self, *, mel_bins: int, dim: int) -> None:
        super().__init__()
        self.mel_bins, self.dim = mel_bins, dim
        self.register_buffer("filters", torch.from_numpy(mel_filters(mel_bins)), persistent=False)
        self.register_buffer("window", torch.hann_window(WINDOW_SAMPLES), persistent=False)
        self.conv1 = Conv1d(mel_bins, dim, 3)
        self.conv2 = Conv1d(dim, dim, 3, stride=2)

    @property
    def floor(self) -> float:
        """The mel value of silence."""
        return (MEL_FLOOR + 4) / 4

    def silent_conv1(self) -> Tensor:
        """[C] what the first convolution says of lasting silence."""
        mel = self.conv1.weight.new_full((1, self.mel_bins, 3), self.floor)
        said: Tensor = F.gelu(self.conv1(mel))
        return said[0, :, 0]

    def silent_frame(self) -> Tensor:
        """[C] the stem's output on the mel floor: the constant that silence frames are made of."""
        said: Tensor = F.gelu(self.conv2(self.silent_conv1()[None, :, None].expand(1, -1, 3)))
        return said[0, :, 0]

    def init_state(self, batch: int) -> FrontendState:
        """Streams that have been silent for ever."""
        weight = self.conv1.weight
        return FrontendState(
            weight.new_zeros(batch, LOOK_BACK_SAMPLES),
            weight.new_full((batch, self.mel_bins, 2), self.floor),
            self.silent_conv1()[None, :, None].expand(batch, -1, 1).contiguous(),
        )

    def log_mel(self, samples: Tensor) -> Tensor:
        """[B, 360 + 160 T] -> log-mel [B, F, T] of the T complete windows, scaled as Whisper scales it."""
        window = samples.unfold(1, WINDOW_SAMPLES, MEL_SAMPLES) * self.window  # [B, T, 400]
        power = torch.fft.rfft(window.float()).abs().square()  # [B, T, 201]
        mel: Tensor = linear(power, self.filters.T).clamp(min=1e-10).log10().clamp(min=MEL_FLOOR)
        return ((mel + 4) / 4).transpose(1, 2).to(self.conv1.weight.dtype)

    def step(self, samples: Tensor, lens: Tensor, state: FrontendState) -> tuple[Tensor, Tensor, Tensor, FrontendState]:
        """Frames of the newest samples.

        Args:
            samples: [B, N] float32 in [-1, 1] at 16 kHz, N a multiple of 1280 (a step).
            lens: [B] valid samples, multiples of 1280; 0 idles.
            state: what the previous call left.
        Returns:
            frames [B, N/320, C], their loudness [B, N/320] (the mean log-mel of the 20 ms; 0.25 is 10 dB), their valid
            counts [B], and the new state.
        Raises:
            AudioFormatError: if N or a length is no whole number of steps.
            InvalidSamples: if a valid sample is NaN or infinite.
        """
        if samples.shape[1] % STEP_SAMPLES or bool((lens % STEP_SAMPLES).any()):
            raise AudioFormatError(
                f"samples came in lengths {lens.tolist()} of {samples.shape[1]}; whole steps of {STEP_SAMPLES} are "
                "needed"
            )
        valid = torch.arange(samples.shape[1], device=samples.device) < lens[:, None]
        samples = torch.where(valid, samples, 0.0)
        if not bool(torch.isfinite(samples).all()):
            row = int((~torch.isfinite(samples)).any(1).nonzero()[0])
            raise InvalidSamples(f"row {row} holds NaN or infinity; samples must be finite")
        heard = torch.cat([state.tail, samples], 1)
        newest = self.log_mel(heard)  # [B, F, N/160]
        loudness = newest.mean(1).view(newest.shape[0], -1, 2).amax(2)
        mel = torch.cat([state.conv1, newest], 2)
        first = torch.cat([state.conv2, F.gelu(self.conv1(mel))], 2)
        frames = F.gelu(self.conv2(first)).transpose(1, 2)  # [B, N/320, C]
        new_state = replace(
            state,
            tail=_tail(heard, lens, LOOK_BACK_SAMPLES),
            conv1=_tail(mel, lens // MEL_SAMPLES, 2),
            conv2=_tail(first, lens // MEL_SAMPLES, 1),
        )
        return frames, loudness, lens // STEP_SAMPLES * FRAMES_PER_STEP, new_state


def _tail(x: Tensor, start: Tensor, size: int) -> Tensor:
    """x[b, ..., start[b] : start[b] + size] for every row, as a new tensor."""
    index = start[:, None] + torch.arange(size, device=x.device)  # [B, size]
    if x.dim() == 3:
        return x.gather(2, index[:, None].expand(-1, x.shape[1], -1))
    return x.gather(1, index)
