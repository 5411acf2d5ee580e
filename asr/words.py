"""What a user gets: words with times, and the transcript that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from asr.units import SAMPLE_RATE, samples_to_ms


@dataclass(frozen=True, kw_only=True)
class Word:
    """One committed word. All times are whole milliseconds on the audio clock, from the start of the stream.

    Attributes:
        text: the word as written, its punctuation attached, no surrounding space.
        start_ms, end_ms: when it was spoken; 0 <= start_ms < end_ms <= duration.
        emitted_ms: how much audio had to arrive before its last piece was committed.
        confidence: the geometric mean of its pieces' probabilities, in [0, 1].
    """

    text: str
    start_ms: int
    end_ms: int
    emitted_ms: int
    confidence: float

    @property
    def delay_ms(self) -> int:
        """Word emission delay: emitted_ms - end_ms. Negative is legal.

        >>> Word(text="hi", start_ms=100, end_ms=300, emitted_ms=800, confidence=0.9).delay_ms
        500
        """
        return self.emitted_ms - self.end_ms


@dataclass(frozen=True, kw_only=True)
class DraftCount:
    """How one drafter's outputs fared, by their place in their call's draft.

    Attributes:
        proposed: [places] outputs that were tried. accepted: [places] outputs that the decoder gave as well.
    """

    proposed: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()

    def __add__(self, other: DraftCount) -> DraftCount:
        return DraftCount(
            proposed=_summed(self.proposed, other.proposed), accepted=_summed(self.accepted, other.accepted)
        )

    @classmethod
    def at(cls, place: int, *, accepted: bool) -> DraftCount:
        """One output at `place`: a proposal, or one that was accepted.

        >>> DraftCount.at(1, accepted=False) + DraftCount.at(0, accepted=True)
        DraftCount(proposed=(0, 1), accepted=(1,))
        """
        one = (0,) * place + (1,)
        return cls(accepted=one) if accepted else cls(proposed=one)


def _summed(mine: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(mine, theirs, fillvalue=0))


@dataclass(frozen=True, kw_only=True)
class DecodeStats:
    """Counts of one stream's work; rates are derived from them.

    Attributes:
        decoder_calls: forward passes of the decoder that this stream took part in.
        decoder_rows: rows of those passes that belonged to this stream.
        steps: 80 ms steps decoded, those on synthetic silence included.
        blocks: encoder blocks run.
        audio_samples: samples received at 16 kHz.
        re_anchors: re-anchorings, of which `watchdog_re_anchors` were forced by the watchdog.
        drafts: by the name of the drafter.
    """

    decoder_calls: int = 0
    decoder_rows: int = 0
    steps: int = 0
    blocks: int = 0
    audio_samples: int = 0
    re_anchors: int = 0
    watchdog_re_anchors: int = 0
    drafts: Mapping[str, DraftCount] = field(default_factory=dict)

    @property
    def mean_accepted(self) -> float:
        """Drafted outputs that a call with a draft spared the calls after it; 0 without drafts."""
        calls = sum(count.proposed[0] for count in self.drafts.values() if count.proposed)
        return sum(sum(count.accepted) for count in self.drafts.values()) / calls if calls else 0.0

    def to_json(self) -> dict[str, object]:
        """The counts by name, with the audio in seconds."""
        return {
            "decoder_calls": self.decoder_calls,
            "decoder_rows": self.decoder_rows,
            "steps": self.steps,
            "blocks": self.blocks,
            "audio_seconds": self.audio_samples / SAMPLE_RATE,
            "re_anchors": self.re_anchors,
            "watchdog_re_anchors": self.watchdog_re_anchors,
            "mean_accepted": round(self.mean_accepted, 3),
            "drafts": {
                name: {"proposed": list(count.proposed), "accepted": list(count.accepted)}
                for name, count in sorted(self.drafts.items())
            },
        }


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """All that is known of one finished stream.

    Attributes:
        words: the committed words in the order of emission.
        audio_samples: samples at 16 kHz.
        stats: what it cost.
        settings: the settings it was decoded with, as they go into the JSON result.
    """

    words: tuple[Word, ...]
    audio_samples: int
    stats: DecodeStats = field(default_factory=DecodeStats)
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The words with one space between them."""
        return " ".join(word.text for word in self.words)

    @property
    def duration_ms(self) -> int:
        """Length of the audio in whole milliseconds."""
        return samples_to_ms(self.audio_samples)

    def to_json(self, file: str) -> dict[str, object]:
        """The JSON result of docs/design.md §10: seconds as floats.

        Args:
            file: the input's name, as the result shall state it.
        """
        return {
            "file": file,
            "duration": self.audio_samples / SAMPLE_RATE,
            "text": self.text,
            "words": [
                {
                    "text": word.text,
                    "start": word.start_ms / 1000,
                    "end": word.end_ms / 1000,
                    "emitted": word.emitted_ms / 1000,
                    "delay": word.delay_ms / 1000,
                    "confidence": round(word.confidence, 4),
                }
                for word in self.words
            ],
            "stats": self.stats.to_json(),
            "settings": dict(self.settings),
        }
