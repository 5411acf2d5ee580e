"""The clock: every duration is an integer count of one of these units; milliseconds appear only at the edge.

sample (1/16000 s) < mel frame (10 ms) < encoder frame (20 ms) < step (80 ms).
"""

from asr.errors import ConfigError

SAMPLE_RATE = 16_000
MEL_SAMPLES = 160
FRAME_SAMPLES = 320
STEP_SAMPLES = 1_280
FRAMES_PER_STEP = STEP_SAMPLES // FRAME_SAMPLES
STEP_MS = 80
FRAME_MS = 20


def samples_to_ms(samples: int) -> int:
    """Whole milliseconds in `samples` at 16 kHz, rounded down.

    >>> samples_to_ms(16_000)
    1000
    """
    return samples * 1000 // SAMPLE_RATE


def ms_to_steps(ms: int, *, name: str) -> int:
    """Steps in `ms`; `name` is the setting's name for the message.

    Raises:
        ConfigError: if `ms` is not a positive multiple of 80.

    >>> ms_to_steps(480, name="delay_ms")
    6
    """
    if ms <= 0 or ms % STEP_MS:
        raise ConfigError(f"{name} is {ms}; it must be a positive multiple of {STEP_MS} (one step)")
    return ms // STEP_MS
