"""Low-rank corrections: nothing at the start, merged without a change, and all that is trained."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from asr.errors import ConfigError
from recipes.lora import LoraLinear, attach_lora, merge_lora
from tests.tiny import tiny_cross_decoder

TOKENS, FRAMES, LENS = torch.tensor([[1, 2, 3]]), torch.randn(1, 5, 16), torch.tensor([5])


def test_before_training_nothing_changes_and_only_corrections_learn() -> None:
    decoder = tiny_cross_decoder()
    before, _ = decoder(TOKENS, FRAMES, LENS)
    linear = sum(isinstance(m, nn.Linear) for m in decoder.modules())
    trained = attach_lora(decoder, rank=2, alpha=4)
    assert torch.equal(decoder(TOKENS, FRAMES, LENS)[0], before)
    assert len(trained) == 2 * linear
    assert {id(p) for p in decoder.parameters() if p.requires_grad} == {id(p) for p in trained}


def test_merged_layers_are_the_old_ones_with_the_same_outputs() -> None:
    decoder = tiny_cross_decoder()
    names = list(decoder.state_dict())
    untouched = copy.deepcopy(decoder)
    trained = attach_lora(decoder, rank=2, alpha=4)
    with torch.no_grad():
        for parameter in trained:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    corrected, _ = decoder(TOKENS, FRAMES, LENS)
    assert not torch.allclose(corrected, untouched(TOKENS, FRAMES, LENS)[0], atol=1e-3)
    merge_lora(decoder)
    assert list(decoder.state_dict()) == names
    torch.testing.assert_close(decoder(TOKENS, FRAMES, LENS)[0], corrected, atol=1e-5, rtol=1e-4)


def test_a_correction_by_hand() -> None:
    base = nn.Linear(2, 2, bias=False)
    base.weight.data = torch.eye(2)
    layer = LoraLinear(base, rank=1, alpha=3)
    layer.down.data, layer.up.data = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5], [0.0]])
    assert layer(torch.tensor([1.0, 1.0])).tolist() == [1 + 3 * 0.5 * 3, 1.0]


def test_what_cannot_be_corrected_is_refused() -> None:
    with pytest.raises(ConfigError, match="the rank is 0"):
        attach_lora(tiny_cross_decoder(), rank=0, alpha=1)
    with pytest.raises(ConfigError, match="LayerNorm has no linear layer"):
        attach_lora(nn.LayerNorm(3), rank=1, alpha=1)
