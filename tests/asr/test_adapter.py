"""The adapter: four frames of a step side by side."""

from __future__ import annotations

import math

import pytest
import torch

from asr.adapter import Adapter
from asr.errors import AudioFormatError


def test_a_step_is_made_of_its_own_four_frames_in_order() -> None:
    adapter = Adapter(frame_dim=1, dim=4)
    adapter.first.weight.data = torch.eye(4)
    adapter.second.weight.data = torch.eye(4)
    frames = torch.arange(8.0).view(1, 8, 1)
    gelu = [0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in range(8)]
    torch.testing.assert_close(adapter(frames), torch.tensor([[gelu[:4], gelu[4:]]]))


def test_there_are_no_biases() -> None:
    assert [name for name, _ in Adapter(frame_dim=2, dim=3).named_parameters()] == ["first.weight", "second.weight"]


def test_frames_must_be_whole_steps() -> None:
    with pytest.raises(AudioFormatError, match=r"^6 frames are no whole number of steps of 4$"):
        Adapter(frame_dim=1, dim=4)(torch.zeros(1, 6, 1))
