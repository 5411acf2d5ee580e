"""Whether live audio comes at the rate that was declared for it, told by the wall clock. No I/O.

A microphone sends a second of audio a second. If its samples are counted at another rate than it records at, they come
too fast or too slowly, by the quotient of two common rates, exactly and all the time: 48 kHz sent as 16 kHz is three
seconds a second. What the audio sounds like is not looked at: slow or fast speech and a telephone's narrow band are
legal. A recording that is sent at just such a speed is told as well, which is why this is a warning and no error.
"""

from __future__ import annotations

__all__ = ["RateCheck"]

RATES = (8000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
WINDOW_MS = 4000
WINDOWS = 3
"""So many in a row must agree."""
TOLERANCE = 0.02


class RateCheck:
    """Watches the audio of one connection.

    Args:
        bytes_per_sample: of all channels together. sample_rate: the declared one.
    """

    def __init__(self, *, bytes_per_sample: int, sample_rate: int) -> None:
        self._bytes_per_sample, self._sample_rate = bytes_per_sample, sample_rate
        self._began_ms: float | None = None
        self._bytes = 0
        self._seen: list[int | None] = []
        self._told = False

    def restart(self) -> None:
        """Forgets what was seen: the sender was not free to send when it wanted."""
        self._began_ms, self._seen = None, []

    def step(self, size: int, now_ms: float) -> str | None:
        """Counts a message with `size` bytes of audio that has come now; a warning, once, if the rate seems wrong."""
        if self._began_ms is None:
            self._began_ms, self._bytes = now_ms, 0
            return None
        self._bytes += size
        took_ms = now_ms - self._began_ms
        if took_ms < WINDOW_MS:
            return None
        arriving = 1000 * self._bytes / self._bytes_per_sample / took_ms
        self._began_ms, self._bytes = now_ms, 0
        near = [rate for rate in RATES if abs(arriving / rate - 1) <= TOLERANCE and rate != self._sample_rate]
        declared = abs(arriving / self._sample_rate - 1) <= TOLERANCE
        self._seen = [*self._seen, near[0] if near and not declared else None][-WINDOWS:]
        suspect = self._seen[0]
        if self._told or suspect is None or self._seen != [suspect] * WINDOWS:
            return None
        self._told = True
        return (
            f"{arriving:.0f} samples arrive a second, {self._sample_rate} were declared: if this is live audio, it is "
            f"recorded at {suspect} Hz, and its text will be wrong; declare that as `sample_rate`"
        )
