"""Any rate from 8 to 48 kHz to the 16 kHz that the recogniser hears, a piece at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import soxr

from asr.errors import ConfigError, StreamClosed
from asr.units import SAMPLE_RATE

Samples = npt.NDArray[np.float32]
"""[N] or [N, channels] float32, nominally in [-1, 1]."""

LOWEST_RATE = 8_000
HIGHEST_RATE = 48_000


class Resampler:
    """Band-limited resampling of one mono stream to 16 kHz; chunked output equals the whole, sample for sample.

    At 16 kHz it hands the samples through unchanged. The filter owes some output until `finish`.

    Args:
        source_rate: samples per second of what comes in, 8000..48000.

    Raises:
        ConfigError: if `source_rate` is outside that range or no whole number.

    Example:
        >>> resampler = Resampler(48_000)
        >>> first = resampler.step(np.zeros(4_800, dtype=np.float32))
        >>> len(first) + len(resampler.finish())
        1600
    """

    def __init__(self, source_rate: int) -> None:
        if source_rate != int(source_rate) or not LOWEST_RATE <= source_rate <= HIGHEST_RATE:
            raise ConfigError(
                f"sample rate is {source_rate} Hz; it must be a whole number from {LOWEST_RATE} to {HIGHEST_RATE}"
            )
        self.source_rate = int(source_rate)
        self._stream: soxr.ResampleStream | None = None
        if self.source_rate != SAMPLE_RATE:
            self._stream = soxr.ResampleStream(self.source_rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
        self._finished = False

    def step(self, samples: Samples) -> Samples:
        """Take the next samples and give what can be given.

        Args:
            samples: [N] at `source_rate`; N may be 0.

        Returns:
            [M] at 16 kHz.

        Raises:
            StreamClosed: after `finish`.
        """
        return self._run(samples, last=False)

    def finish(self) -> Samples:
        """Give the rest, [M] at 16 kHz: in all, as many seconds as came in.

        Raises:
            StreamClosed: if called twice.
        """
        rest = self._run(np.zeros(0, dtype=np.float32), last=True)
        self._finished = True
        return rest

    def _run(self, samples: Samples, *, last: bool) -> Samples:
        if self._finished:
            raise StreamClosed("the resampler was finished; make a new one for the next stream")
        if self._stream is None:
            return samples
        resampled: Samples = self._stream.resample_chunk(np.ascontiguousarray(samples, dtype=np.float32), last=last)
        return resampled
