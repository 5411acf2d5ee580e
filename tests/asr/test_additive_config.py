"""The additive family's configuration: JSON there and back, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from asr.additive_config import AdditiveConfig
from asr.config import ChunkSetting, SessionLimits
from asr.errors import CheckpointError, ConfigError


def limits(right: int = 0, silence: int = 0) -> SessionLimits:
    chunk = ChunkSetting(chunk_steps=4, right_frames=right, silence_frames=silence)
    return SessionLimits(chunks=(chunk,), delays=(2, 6))


CONFIG = AdditiveConfig(
    mel_bins=12,
    encoder_dim=16,
    encoder_layers=1,
    encoder_heads=2,
    encoder_head_dim=8,
    encoder_hidden=24,
    encoder_window_frames=9,
    dim=16,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=8,
    hidden=24,
    window_steps=6,
    vocabulary=24,
    limits=limits(),
)


def test_json_there_and_back() -> None:
    assert AdditiveConfig.from_json(json.loads(json.dumps(CONFIG.to_json()))) == CONFIG


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers is 0; it must be at least 1"),
        ({"theta": 0.5}, "theta is 0.5; it must be at least 1"),
        ({"dim": 15}, "dim is 15; it must be even"),
        ({"encoder_head_dim": 7}, "encoder_head_dim is 7; it must be even"),
        ({"encoder_kind": "other"}, "encoder_kind is 'other'; it must be 'voxtral' or 'whisper'"),
        (
            {"encoder_kind": "whisper"},
            "a Whisper's heads share its channels, and four times as many are inside; got 2 heads of 8, and 24 in 16",
        ),
        ({"kv_heads": 3}, "heads (4) must be a multiple of kv_heads (3)"),
        (
            {"limits": limits(right=8)},
            "a causal encoder has no right context and no silence frames; got ChunkSetting(chunk_steps=4, "
            "right_frames=8, silence_frames=0)",
        ),
        (
            {"limits": limits(silence=8)},
            "a causal encoder has no right context and no silence frames; got ChunkSetting(chunk_steps=4, "
            "right_frames=0, silence_frames=8)",
        ),
    ],
)
def test_a_shape_that_cannot_work_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        replace(CONFIG, **change)
    assert str(error.value) == message


def test_unknown_and_missing_keys_are_named() -> None:
    values = CONFIG.to_json()
    with pytest.raises(CheckpointError, match=r"has unknown keys \['colour'\]"):
        AdditiveConfig.from_json({**values, "colour": 1})
    del values["hidden"]
    with pytest.raises(CheckpointError, match=r"incomplete or has a wrong field: .*'hidden'"):
        AdditiveConfig.from_json(values)
    with pytest.raises(CheckpointError, match="incomplete"):
        AdditiveConfig.from_json({key: value for key, value in CONFIG.to_json().items() if key != "limits"})
