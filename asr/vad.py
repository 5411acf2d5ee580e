"""Long silence is left out before the recogniser hears it, and its words' times are put right afterwards.

The detector is silero-vad (https://github.com/snakers4/silero-vad), run by onnxruntime on many windows at once.
"""

from __future__ import annotations

import importlib.util
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from asr.errors import ConfigError
from asr.resample import Samples
from asr.units import SAMPLE_RATE, samples_to_ms
from asr.words import Transcript

__all__ = ["WINDOW_SAMPLES", "SilenceSkipper", "SileroDetector", "SpeechDetector"]

WINDOW_SAMPLES = 512
CONTEXT_SAMPLES = 64
LEAST_PROBABILITY = 0.35
"""Below silero's own 0.5: a word lost costs more than a silence kept."""
TRAIL_WINDOWS = SAMPLE_RATE // WINDOW_SAMPLES
"""Kept behind speech: about a second, in which text that is late still comes."""
LEAD_WINDOWS = TRAIL_WINDOWS // 2
"""Kept before speech, or up to `CUT_WINDOWS` more. A silence of at most both together is kept whole."""
CUT_WINDOWS = 5
"""Left out at once: whole steps, so that each step behind a cut hears what it would have heard."""


class SpeechDetector(Protocol):
    """Says of each window whether somebody speaks in it. State in, state out."""

    def init_state(self) -> Any:
        """Before the first window."""

    def step(self, windows: Samples, state: Any) -> tuple[Samples, Any]:
        """The probability of speech [n] in windows [n, WINDOW_SAMPLES], n >= 1, that follow each other."""


class SileroDetector:
    """silero-vad's network; one serves any number of streams.

    Raises:
        ConfigError: if silero-vad or onnxruntime is not installed.
    """

    def __init__(self) -> None:
        # Found, not imported: importing silero_vad sets PyTorch's number of threads.
        package = importlib.util.find_spec("silero_vad")
        if package is None or importlib.util.find_spec("onnxruntime") is None:
            raise ConfigError("leaving out silence needs silero-vad and onnxruntime: pip install 'earlybird-asr[vad]'")
        import onnxruntime

        assert package.submodule_search_locations
        options = onnxruntime.SessionOptions()
        options.inter_op_num_threads = options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(Path(package.submodule_search_locations[0], "data", "silero_vad_16k_sequence.onnx")),
            sess_options=options,
            providers=["CPUExecutionProvider"],
        )

    def init_state(self) -> tuple[Samples, Samples, Samples]:
        """See `SpeechDetector.init_state`: the newest samples, and the network's two memories."""
        memory = np.zeros((1, 1, 128), dtype=np.float32)
        return np.zeros(CONTEXT_SAMPLES, dtype=np.float32), memory, memory

    def step(self, windows: Samples, state: Any) -> tuple[Samples, Any]:
        """See `SpeechDetector.step`."""
        before, hidden, cell = state
        contexts = np.concatenate([before[None], windows[:-1, -CONTEXT_SAMPLES:]])
        probabilities, hidden, cell = self._session.run(
            ["speech_probs", "hn", "cn"],
            {"input": np.concatenate([contexts, windows], axis=1), "h": hidden, "c": cell},
        )
        return probabilities.reshape(-1), (windows[-1, -CONTEXT_SAMPLES:].copy(), hidden, cell)


class SilenceSkipper:
    """Samples of one stream in, those that are kept out. Holds less than a second of audio.

    Args:
        detector: who tells speech.

    Attributes:
        received, kept: samples so far.
    """

    def __init__(self, detector: SpeechDetector) -> None:
        self._detector = detector
        self._state = detector.init_state()
        self._rest = np.zeros(0, dtype=np.float32)
        self._held: deque[Samples] = deque()  # silence that is kept if speech follows
        self._quiet_windows = TRAIL_WINDOWS
        self._joints: list[int] = []  # [cuts] where in what is kept something was left out
        self._cut: list[int] = []  # [cuts] samples left out up to there
        self._dropped = 0
        self.received = self.kept = 0

    def step(self, samples: Samples) -> Samples:
        """What is kept of samples [N], any N: [M] at 16 kHz."""
        self.received += len(samples)
        samples = np.concatenate([self._rest, samples])
        whole = len(samples) // WINDOW_SAMPLES * WINDOW_SAMPLES
        self._rest = samples[whole:]
        return self._sieve(samples[:whole].reshape(-1, WINDOW_SAMPLES))

    def finish(self) -> Samples:
        """The rest [M]; a last window is filled with silence to be judged, and given as long as it is."""
        if not len(self._rest):
            return np.zeros(0, dtype=np.float32)
        missing = WINDOW_SAMPLES - len(self._rest)
        last = self._sieve(np.pad(self._rest, (0, missing))[None])
        self._rest = self._rest[:0]
        if len(last):
            self.kept -= missing
            last = last[:-missing]
        return last

    def _sieve(self, windows: Samples) -> Samples:
        if not len(windows):
            return np.zeros(0, dtype=np.float32)
        probabilities, self._state = self._detector.step(windows, self._state)
        kept: list[Samples] = []
        for window, probability in zip(windows, probabilities, strict=True):
            if probability >= LEAST_PROBABILITY:
                if self._dropped > (self._cut[-1] if self._cut else 0):
                    self._joints.append(self.kept)
                    self._cut.append(self._dropped)
                self._keep([*self._held, window], kept)
                self._held.clear()
                self._quiet_windows = 0
            elif self._quiet_windows < TRAIL_WINDOWS:
                self._keep([window], kept)
                self._quiet_windows += 1
            else:
                self._held.append(window)
                if len(self._held) == LEAD_WINDOWS + CUT_WINDOWS:
                    self._dropped += sum(len(self._held.popleft()) for _ in range(CUT_WINDOWS))
        return np.concatenate(kept) if kept else np.zeros(0, dtype=np.float32)

    def _keep(self, windows: list[Samples], kept: list[Samples]) -> None:
        kept += windows
        self.kept += sum(map(len, windows))

    def received_at(self, kept: int, *, end: bool) -> int:
        """Where a place in what is kept lies in what was received.

        Args:
            kept: in samples.
            end: at a joint: whether the place ends something before the cut, or begins something behind it.
        """
        cuts = (bisect_left if end else bisect_right)(self._joints, kept)
        return kept + (self._cut[cuts - 1] if cuts else 0)

    def restore(self, transcript: Transcript) -> Transcript:
        """The transcript of what was kept, on the clock of what was received."""

        def at(milliseconds: int, *, end: bool) -> int:
            return samples_to_ms(self.received_at(milliseconds * (SAMPLE_RATE // 1000), end=end))

        words = tuple(
            replace(
                word,
                start_ms=at(word.start_ms, end=False),
                end_ms=at(word.end_ms, end=True),
                emitted_ms=at(word.emitted_ms, end=True),
            )
            for word in transcript.words
        )
        settings = {**transcript.settings, "vad": True}
        return replace(transcript, words=words, audio_samples=self.received, settings=settings)
