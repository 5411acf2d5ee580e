"""Two clocks of one stream: what the model has heard, and what of it was audio.

A flush lets the model hear silence that was never recorded. Its samples advance the model's clock and not the audio's;
every time that a user sees is on the audio's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

KEPT_GAPS = 32
"""Silences remembered one by one. A flush adds over a second, and no model here looks back further than half a minute:
what it reads a token from always lies behind the oldest of them."""


@dataclass(frozen=True, kw_only=True)
class ClockMap:
    """Model samples to audio samples and back, in constant memory.

    Attributes:
        model: samples heard, silence included.
        gaps: the newest silences as (first model sample, first one after it), oldest first.
        forgotten: samples of older silences.

    Example:
        >>> clock = ClockMap().hear(100).insert(50).hear(10)
        >>> clock.audio, clock.to_audio(100), clock.to_audio(149), clock.to_audio(155)
        (110, 100, 100, 105)
    """

    model: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    forgotten: int = 0

    @property
    def audio(self) -> int:
        """Samples of audio heard."""
        return self.to_audio(self.model)

    def hear(self, samples: int) -> ClockMap:
        """The map after so many samples of audio."""
        return replace(self, model=self.model + samples)

    def insert(self, samples: int) -> ClockMap:
        """The map after so many samples of silence that are no audio."""
        if not samples:
            return self
        end = self.model + samples
        if self.gaps and self.gaps[-1][1] == self.model:
            return replace(self, model=end, gaps=(*self.gaps[:-1], (self.gaps[-1][0], end)))
        gaps = (*self.gaps, (self.model, end))
        lost = gaps[:-KEPT_GAPS]
        forgotten = self.forgotten + sum(after - first for first, after in lost)
        return ClockMap(model=end, gaps=gaps[-KEPT_GAPS:], forgotten=forgotten)

    def to_audio(self, at: int) -> int:
        """The audio sample at model sample `at`; within a silence, the one at which it began.

        What lies ahead of the model's clock counts as now, what lies before the stream as its start.
        """
        at = min(at, self.model)
        silent = self.forgotten + sum(min(at, after) - first for first, after in self.gaps if first < at)
        return max(0, at - silent)

    def to_model(self, at: int) -> int:
        """The model sample at which audio sample `at` was heard; a silence at that place lies before it."""
        at += self.forgotten
        for first, after in self.gaps:
            if first <= at:
                at += after - first
        return at
