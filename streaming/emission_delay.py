"""How soon words come: a session's meter, in constant memory, on two clocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from asr.words import Word

BIN_MS = 10
LOWEST_MS, HIGHEST_MS = -5_000, 60_000
"""Delays beyond are counted in the last bin on their side; the largest is kept exactly."""


@dataclass(frozen=True, kw_only=True)
class DelaySummary:
    """Attributes: count: words. p50_ms, p90_ms, p95_ms: quantiles, rounded up to 10 ms. max_ms: exact."""

    count: int
    p50_ms: int
    p90_ms: int
    p95_ms: int
    max_ms: int


class DelayHistogram:
    """Counts delays in bins of 10 ms."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()
        self._count = 0
        self._max_ms = 0

    def add(self, delay_ms: int) -> None:
        """Count one."""
        self._max_ms = delay_ms if not self._count else max(self._max_ms, delay_ms)
        self._count += 1
        self._bins[-(-min(max(delay_ms, LOWEST_MS), HIGHEST_MS) // BIN_MS)] += 1

    def summary(self) -> DelaySummary | None:
        """The figures; None if nothing was counted."""
        if not self._count:
            return None
        quantiles = [self._quantile(percent) for percent in (50, 90, 95)]
        return DelaySummary(
            count=self._count, p50_ms=quantiles[0], p90_ms=quantiles[1], p95_ms=quantiles[2], max_ms=self._max_ms
        )

    def _quantile(self, percent: int) -> int:
        """The least bin at or below which `percent` of the delays lie."""
        seen = 0
        for bin_, count in sorted(self._bins.items()):
            seen += count
            if 100 * seen >= percent * self._count:
                return bin_ * BIN_MS
        raise AssertionError("the bins hold all that was counted")


class EmissionDelayMeter:
    """Word emission delay: from the end of a word to its commitment.

    On the audio clock that is the audio that had to arrive. On the caller's clock it is what a listener waits; the
    moment at which a word ended is taken from the arrival of the audio, the quickest piece so far setting the offset
    between the two clocks (only true of audio that arrives as it is spoken).
    """

    def __init__(self) -> None:
        self._audio, self._wall = DelayHistogram(), DelayHistogram()
        self._offset_ms: int | None = None

    def arrived(self, *, received_ms: int, now_ms: int) -> None:
        """Audio up to `received_ms` is there at `now_ms`."""
        offset = now_ms - received_ms
        self._offset_ms = offset if self._offset_ms is None else min(self._offset_ms, offset)

    def committed(self, word: Word, *, now_ms: int | None) -> None:
        """A word was handed out, at `now_ms` if the caller has a clock."""
        self._audio.add(word.delay_ms)
        wall_ms = None if now_ms is None else self.wall_delay_ms(word, now_ms=now_ms)
        if wall_ms is not None:
            self._wall.add(wall_ms)

    def wall_delay_ms(self, word: Word, *, now_ms: int) -> int | None:
        """How late a word is that is handed out at `now_ms`; None before any audio arrived with a clock."""
        return None if self._offset_ms is None else now_ms - self._offset_ms - word.end_ms

    def audio(self) -> DelaySummary | None:
        """On the audio clock; None without a word."""
        return self._audio.summary()

    def wall(self) -> DelaySummary | None:
        """On the caller's clock; None without a word or a clock."""
        return self._wall.summary()
