"""Updates: a step by hand, rates of parts, clipping, the moving average, and what a save holds."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from asr.errors import ConfigError
from recipes.updates import Trained, Updates


def parts(*values: float) -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor([value, value])) for value in values]


def updates(weights: list[nn.Parameter], *, decay: float = 0.0, clip_norm: float = 1e9) -> Updates:
    trained = [Trained(weights=[weight], rate=0.1 * 10**i) for i, weight in enumerate(weights)]
    return Updates(trained, weight_decay=0.0, clip_norm=clip_norm, average_decay=decay)


def push(weights: list[nn.Parameter], gradient: float = 1.0) -> None:
    for weight in weights:
        weight.grad = torch.full_like(weight, gradient)


def test_each_part_moves_at_its_own_rate_times_the_scale() -> None:
    """The first step of Adam is the rate, whatever the gradient's size."""
    weights = parts(5.0, 5.0)
    moving = updates(weights)
    push(weights, 3.0)
    assert moving.apply(0.5) == pytest.approx(6.0)  # four numbers of 3
    assert weights[0].tolist() == pytest.approx([4.95] * 2)
    assert weights[1].tolist() == pytest.approx([4.5] * 2)
    moving.clear()
    assert [weight.grad for weight in weights] == [None, None]


def test_gradients_are_clipped_together_and_their_norm_told_as_it_was() -> None:
    weights = parts(0.0, 0.0)
    push(weights, 10.0)
    assert updates(weights, clip_norm=0.2).apply(1.0) == pytest.approx(20.0)
    for weight in weights:
        assert weight.grad is not None
        assert weight.grad.tolist() == pytest.approx([0.1] * 2, rel=1e-4)


def test_the_average_follows_and_is_in_place_only_within() -> None:
    weights = parts(1.0)
    moving = updates(weights, decay=0.75)
    mean = weights[0].detach().clone()
    for _ in range(3):
        push(weights)
        moving.apply(1.0)
        mean = 0.75 * mean + 0.25 * weights[0].detach()
    now = weights[0].detach().clone()
    for _ in range(2):  # the exchange leaves no trace
        with moving.averaged():
            torch.testing.assert_close(weights[0].detach(), mean)
        assert torch.equal(weights[0], now)
    with pytest.raises(ValueError, match="within"), moving.averaged():
        raise ValueError("within")
    assert torch.equal(weights[0], now)


def test_without_an_average_the_weights_are_their_own() -> None:
    weights = parts(1.0)
    with updates(weights).averaged():
        assert weights[0].tolist() == [1.0, 1.0]


def test_a_save_has_all_that_later_steps_depend_on() -> None:
    weights, others = parts(1.0, 2.0), parts(7.0, 8.0)
    first, second = updates(weights, decay=0.5), updates(others, decay=0.5)
    push(weights, 1.0)
    first.apply(1.0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with torch.no_grad():
        for mine, other in zip(weights, others, strict=True):
            other.copy_(mine)
    for moving, these in ((first, weights), (second, others)):
        push(these, -2.0)
        moving.apply(1.0)
    for mine, other in zip(weights, others, strict=True):
        assert torch.equal(mine, other)
    with first.averaged(), second.averaged():
        for mine, other in zip(weights, others, strict=True):
            assert torch.equal(mine, other)


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_that_cannot_be_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match=f"average_decay is {decay}; it must be at least 0 and below 1"):
        updates(parts(1.0), decay=decay)
