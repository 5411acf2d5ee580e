"""Many channels to one: choose a channel, or mix them and say when the mix lost something."""

from __future__ import annotations

from typing import Literal

import numpy as np

from asr.errors import ConfigError, InvalidSamples
from asr.resample import Samples

Channel = int | Literal["mix"]
"""Which channel to hear: its number, counted from 0, or the mean of all."""

FULL_SCALE = 0.9999
CLIPPED_SHARE = 0.001
CANCELLED_SHARE = 0.01
LOUDEST_FLOAT = 1.5


class ChannelMixer:
    """Turns [N, channels] into mono [N], checks it, and keeps what is needed to warn about it.

    Args:
        channels: how many there are, at least 1.
        channel: the number of one of them, from 0, or "mix" for their mean.

    Raises:
        ConfigError: if there is no such channel.
    """

    def __init__(self, *, channels: int, channel: Channel = "mix") -> None:
        if channels < 1:
            raise ConfigError(f"{channels} channels; at least 1 is needed")
        if channel != "mix" and not 0 <= channel < channels:
            raise ConfigError(f"channel {channel} was asked for; there are {channels}, numbered from 0, or 'mix'")
        self._channels = channels
        self._channel: Channel = channel
        self._frames = 0
        self._clipped = 0
        self._peak = 0.0
        self._mix_energy = 0.0
        self._channel_energy = 0.0

    @property
    def frames(self) -> int:
        """How many frames (one sample of each channel) have come in."""
        return self._frames

    def step(self, samples: Samples) -> Samples:
        """Mono samples [N] of [N, channels].

        Raises:
            InvalidSamples: if the result holds NaN or infinity; the message gives the first one's place.
        """
        if not len(samples):
            return np.zeros(0, dtype=np.float32)
        if self._channel == "mix":
            mono: Samples = samples.mean(axis=1, dtype=np.float32) if self._channels > 1 else samples[:, 0]
        else:
            mono = samples[:, self._channel]
        finite = np.isfinite(mono)
        if not finite.all():
            at = int(np.argmin(finite))
            raise InvalidSamples(f"sample {self._frames + at} is {mono[at]}; samples must be finite")
        if self._channel == "mix" and self._channels > 1:
            self._mix_energy += float(np.square(mono, dtype=np.float64).sum())
            self._channel_energy += float(np.square(samples, dtype=np.float64).sum()) / self._channels
        level = np.abs(mono if self._channel != "mix" else samples).max(initial=0.0, axis=-1)
        self._clipped += int(np.count_nonzero(level >= FULL_SCALE))
        self._peak = max(self._peak, float(level.max()))
        self._frames += len(samples)
        return np.ascontiguousarray(mono)

    def warnings(self) -> list[str]:
        """What is suspicious about the audio so far, one sentence each."""
        found = []
        if self._mix_energy < CANCELLED_SHARE * self._channel_energy:
            found.append(
                "the channels cancel each other when mixed (opposite phase): "
                "choose one, for example channel 0, instead of the mix"
            )
        if self._peak > LOUDEST_FLOAT:
            found.append(f"samples reach {self._peak:.4g}; float audio is expected within -1..1")
        elif self._clipped > CLIPPED_SHARE * self._frames:
            share = 100 * self._clipped / self._frames
            found.append(f"{share:.1f} % of the samples are at full scale: the recording is clipped")
        return found
