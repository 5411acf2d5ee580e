"""The additive decoder: known answers for the delay's conditioning, and several rows at once."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asr.additive import DelayCondition
from asr.errors import ConfigError, SpeculationBudgetExceeded
from tests import tiny


def test_the_delay_is_cosines_then_sines_of_steps_times_falling_frequencies() -> None:
    # Voxtral Realtime: w_i = exp(-ln(10000) i / (C/2)); here C = 4, so w = 1 and 1/100; the argument is steps, 6.
    found = DelayCondition(dim=4, hidden=2).embed(torch.tensor([6, 0]))
    six = [math.cos(6), math.cos(0.06), math.sin(6), math.sin(0.06)]
    torch.testing.assert_close(found, torch.tensor([six, [1, 1, 0, 0]]))


def test_conditioning_is_two_matrices_with_an_exact_gelu_between() -> None:
    condition = DelayCondition(dim=4, hidden=1)
    condition.first.weight.data = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    condition.second.weight.data = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    x = math.cos(0.06)
    gelu = 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
    torch.testing.assert_close(
        condition(torch.tensor([6])), torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]) * gelu, rtol=0, atol=1e-6
    )


def test_a_layer_scales_the_mlp_s_input_and_nothing_else() -> None:
    layer = tiny.tiny_additive_decoder()._layers()[0]
    x, delay = torch.randn(2, 3, tiny.DIM), torch.tensor([1, 6])
    normed = layer.feed_forward_norm(x)
    rows = []
    for row, tau in enumerate(delay):
        g = layer.condition.second(F.gelu(layer.condition.first(layer.condition.embed(tau[None]))))[0]
        rows.append(x[row] + layer.feed_forward(normed[row] * (1 + g)))
    torch.testing.assert_close(layer.modulated(x, delay), torch.stack(rows))


def test_an_odd_size_cannot_be_conditioned() -> None:
    with pytest.raises(ConfigError, match=r"^dim is 5; the delay's sines and cosines need an even one$"):
        DelayCondition(dim=5, hidden=2)


def test_there_is_no_bias_and_one_embedding_for_both_ends() -> None:
    decoder = tiny.tiny_additive_decoder()
    names = [name for name, _ in decoder.named_parameters()]
    assert not [name for name in names if name.endswith("bias")]
    assert sum(p.shape[0] == tiny.VOCABULARY + 1 for p in decoder.parameters()) == 1
    hidden = torch.randn(1, 2, tiny.DIM)
    torch.testing.assert_close(decoder.logits(hidden), hidden @ decoder.embedding.weight.T)


@pytest.mark.parametrize("sizes", [[4, 4, 4], [1, 2, 3, 4, 2], [1] * 12])
def test_rows_at_once_equal_rows_one_by_one(sizes: list[int]) -> None:
    decoder = tiny.tiny_additive_decoder(window_steps=5)
    generator = torch.Generator().manual_seed(70)
    tokens = torch.randint(0, tiny.VOCABULARY + 1, (2, 12), generator=generator)
    audio = torch.randn(2, 12, tiny.DIM, generator=generator)
    delay = torch.tensor([2, 7])

    def run(parts: list[int]) -> Tensor:
        state, outputs, done = decoder.init_state(2, max_rows=4), [], 0
        for n in parts:
            lens = torch.tensor([n, n])
            outputs.append(decoder.rows(tokens[:, done : done + n], audio[:, done : done + n], delay, lens, state))
            state = state.advance(lens)
            done += n
        return torch.cat(outputs, 1)

    torch.testing.assert_close(decoder.logits(run(sizes)), decoder(tokens, audio, delay), rtol=0, atol=1e-5)


def test_a_draft_may_be_accepted_in_part() -> None:
    decoder = tiny.tiny_additive_decoder(window_steps=5)
    delay, one = torch.tensor([3]), torch.tensor([1])
    tokens = torch.randint(0, tiny.VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(71))
    audio = torch.randn(1, 12, tiny.DIM, generator=torch.Generator().manual_seed(72))
    state = decoder.init_state(1, max_rows=4)
    expected = decoder(tokens, audio, delay)
    for done in range(0, 10, 2):  # each time four rows are drafted, the last two of them wrong, and two accepted
        drafted = torch.cat([tokens[:, done : done + 2], tokens[:, :2] * 0], 1)
        heard = audio[:, [done, done + 1, 0, 0]]
        hidden = decoder.rows(drafted, heard, delay, 4 * one, state)
        torch.testing.assert_close(decoder.logits(hidden[:, :2]), expected[:, done : done + 2], rtol=0, atol=1e-5)
        state = state.advance(2 * one)
    with pytest.raises(SpeculationBudgetExceeded, match="make the ring with slack >= 5"):
        decoder.rows(tokens[:, :5], audio[:, :5], delay, 5 * one, state)


def test_each_output_depends_on_the_delay() -> None:
    decoder = tiny.tiny_additive_decoder()
    tokens, audio = torch.zeros(2, 4, dtype=torch.int64), torch.randn(1, 4, tiny.DIM).expand(2, -1, -1)
    one, two = decoder(tokens, audio, torch.tensor([2, 3]))
    assert ((one - two).abs().amax(-1) > 1e-3).all()
