"""The CTC head: streaming equals the whole, rows do not mix, and an idle row stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asr.ctc import CtcHead
from asr.units import FRAMES_PER_STEP
from tests import tiny


@pytest.fixture
def head() -> CtcHead:
    return tiny.tiny_ctc()


def features(steps: int, rows: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(rows, steps * FRAMES_PER_STEP, tiny.DIM, generator=torch.Generator().manual_seed(seed))


def streamed(head: CtcHead, x: Tensor, sizes: list[int]) -> Tensor:
    state, said = head.init_state(len(x)), []
    for chunk in x.split([size * FRAMES_PER_STEP for size in sizes], 1):
        log_probs, steps, state = head.step(chunk, torch.full((len(x),), chunk.shape[1]), state)
        assert steps.tolist() == [log_probs.shape[1]] * len(x)
        said.append(log_probs)
    return torch.cat(said, 1)


@pytest.mark.parametrize("sizes", [[9], [1] * 9, [2, 4, 3], [0, 5, 0, 4]])
def test_any_chunking_equals_the_training_forward(head: CtcHead, sizes: list[int]) -> None:
    x = features(9)
    whole = head(x)
    assert whole.shape == (2, 9, head.pieces + 1)
    torch.testing.assert_close(streamed(head, x, sizes), whole, rtol=0, atol=1e-5)


def test_what_it_gives_are_log_probabilities(head: CtcHead) -> None:
    torch.testing.assert_close(head(features(5)).exp().sum(-1), torch.ones(2, 5))
    assert head.blank == head.pieces


def test_an_idle_row_stays_as_it_was(head: CtcHead) -> None:
    state = head.step(features(3), torch.tensor([12, 12]), head.init_state(2))[2]
    _, steps, after = head.step(features(4, seed=1), torch.tensor([0, 16]), state)
    assert steps.tolist() == [0, 4]
    assert torch.equal(after[0], state[0])
    assert not torch.equal(after[1], state[1])


def test_padding_behind_a_row_is_not_heard(head: CtcHead) -> None:
    x, lens = features(6), torch.tensor([8, 24])
    log_probs, steps, state = head.step(x, lens, head.init_state(2))
    alone, _, last = head.step(x[:1, :8], torch.tensor([8]), head.init_state(1))
    assert steps.tolist() == [2, 6]
    torch.testing.assert_close(log_probs[0, :2], alone[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(state[0], last[0], rtol=0, atol=1e-6)


def test_a_later_step_does_not_change_an_earlier_one(head: CtcHead) -> None:
    x = features(6)
    changed = x.clone()
    changed[:, 16:] += 1
    before, after = head(x), head(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 4], after[:, 4])
    assert not torch.allclose(before[:, 5], after[:, 5])
