"""Products, convolutions and recurrences whose rows come out the same, bit for bit, whoever else is in the batch.

A processor's matrix library chooses its kernel by the number of rows: one row is a product of a matrix and a vector,
few rows take a kernel for few, and a thread's last rows may be few. Each adds up in an order of its own, so a stream
would get other digits alone than in company, with or without a draft behind it; where weights are of int8, digits are
rounded again and words come to differ. From four rows on MKL's kernels agree: everything here fills up to multiples,
and gives back the rows that were asked for. (Batch invariance: Horace He, "Defeating Nondeterminism in LLM Inference",
2025.) `tests/asr/test_invariant.py` holds it on the machine at hand.

In training, where batches are large and nothing is compared with another batch, modules are PyTorch's own.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "GRU",
    "FUSED_KEYS",
    "KEYS",
    "QUERIES",
    "ROWS",
    "Conv1d",
    "Linear",
    "filled_up",
    "linear",
    "queries_filled_up",
]

ROWS = 8
"""Rows of a product come in multiples of this: two threads that share them have four or more each."""
QUERIES = 4
"""The least queries of an attention, each stream's of which are a product of its own."""
KEYS = 192
"""Keys of an attention come in multiples of this; what is masked adds exact zeros. (Multiples of 64 are not enough: a
product over 256 is summed in another order than one over 192 or 320.)"""
FUSED_KEYS = 768
"""PyTorch's fused attention goes through more keys than these in parts: there only one number of keys is safe."""


def filled_up(count: int, multiple: int) -> int:
    """The next multiple.

    >>> filled_up(0, 8), filled_up(1, 8), filled_up(8, 8)
    (0, 8, 8)
    """
    return -(-count // multiple) * multiple


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`: x [..., in], weight [out, in] -> [..., out]."""
    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    y = F.linear(F.pad(rows, (0, 0, 0, -count % ROWS)), weight, bias)
    return y[:count].reshape(*x.shape[:-1], weight.shape[0])


class Linear(nn.Linear):
    """`torch.nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return super().forward(x) if self.training else linear(x, self.weight, self.bias)


class Conv1d(nn.Conv1d):
    """`torch.nn.Conv1d`."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, T] -> [B, out, T']."""
        if self.training or x.shape[0] != 1:
            return super().forward(x)
        return super().forward(x.expand(2, -1, -1))[:1]


class GRU(nn.GRU):
    """`torch.nn.GRU` of one layer and direction, the batch first."""

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """X [B, T, in], state [1, B, hidden] -> y [B, T, hidden] and the new state."""
        if self.training:
            return super().forward(x, state)
        count = x.shape[0]
        more = -count % ROWS
        y, state = super().forward(F.pad(x, (0, 0, 0, 0, 0, more)), F.pad(state, (0, 0, 0, more)))
        return y[:count], state[:, :count]


def queries_filled_up(query: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Queries [B, H, T, D] and their mask [B, 1, T, S], with more behind them where they are too few."""
    more = max(0, QUERIES - query.shape[2])
    if not more:
        return query, mask
    if mask.shape[2] > 1:
        mask = F.pad(mask, (0, 0, 0, more), value=True)
    return F.pad(query, (0, 0, 0, more)), mask
