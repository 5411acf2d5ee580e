"""Any Whisper as a streaming model without training: the settings that were found to carry it (docs/design.md §2)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from asr.config import ChunkSetting, SessionLimits
from asr.importers.whisper import whisper_weights
from asr.model import CrossConfig, Model, build_cross
from asr.vocabulary import Vocabulary

RIGHT_FRAMES = {1: 32, 2: 48, 4: 64, 8: 64, 16: 64, 50: 64}  # by chunk_steps: dearer the shorter the chunk
SILENCE_FRAMES = 50
DELAY_STEPS = tuple(range(1, 17))

UNTRAINED_LIMITS = SessionLimits(
    chunks=tuple(
        ChunkSetting(chunk_steps=steps, right_frames=right, silence_frames=SILENCE_FRAMES)
        for steps, right in RIGHT_FRAMES.items()
    ),
    delays=DELAY_STEPS,
)


def untrained_whisper(folder: Path) -> Model:
    """The CTranslate2 Whisper in `folder`, of any size, behind the attention gate; float32 on the CPU.

    Raises:
        CheckpointError: if a file is missing, or is no Whisper model.
    """
    weights, shape = whisper_weights(folder)
    config = CrossConfig.from_json({**shape, "limits": asdict(UNTRAINED_LIMITS)})
    vocabulary = Vocabulary(folder / "tokenizer.json")
    recogniser = build_cross(config, vocabulary)
    recogniser.load_state_dict(weights)
    return Model(name=f"whisper:{folder.name}", config=config, recogniser=recogniser.eval(), vocabulary=vocabulary)
