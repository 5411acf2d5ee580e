"""The key-value ring: the one mutable part of a stream's state.

Storage is shared by successive states; `length` says what a state may read, so "keep the old state" is rollback. Rows
are slots of a pool: `rows` picks the ones that take part in a call, and None means all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asr.errors import SpeculationBudgetExceeded
from asr.invariant import FUSED_KEYS, KEYS, filled_up


@dataclass(frozen=True)
class KVRing:
    """Keys and values of the frames (or rows of text) that attention may look back at.

    Attributes:
        keys, values: [B, H, M, D]. Position p lives in slot p mod capacity; those behind, at least one, take padding.
        length: [B] int64, positions committed; never wraps.
        left_context: how many committed positions before its own block a query may see.
        capacity: slots a row has.
    """

    keys: Tensor
    values: Tensor
    length: Tensor
    left_context: int
    capacity: int

    @classmethod
    def zeros(
        cls,
        *,
        batch: int,
        heads: int,
        head_dim: int,
        left_context: int,
        slack: int,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> KVRing:
        """An empty ring that can take blocks of up to `slack` uncommitted positions."""
        capacity = left_context + slack
        shape = (batch, heads, filled_up(capacity + 1, KEYS), head_dim)
        return cls(
            torch.zeros(shape, device=device, dtype=dtype),
            torch.zeros(shape, device=device, dtype=dtype),
            torch.zeros(batch, dtype=torch.int64, device=device),
            left_context,
            capacity,
        )

    def lengths(self, rows: Tensor | None) -> Tensor:
        """[k] committed positions of `rows`."""
        return self.length if rows is None else self.length[rows]

    def write(self, keys: Tensor, values: Tensor, lens: Tensor, rows: Tensor | None) -> None:
        """Stores [k, H, T, D], of which lens [k] are valid, after the committed positions; `advance` commits.

        Raises:
            SpeculationBudgetExceeded: if the positions would overwrite some that a query may still see.
        """
        count = int(lens.max()) if keys.shape[0] else 0
        # Evicting position length-left_context-1 is fine: only positions >= length-left_context are ever read again.
        longest_unwrapped = int((self.lengths(rows) + lens).max()) if keys.shape[0] else 0
        if longest_unwrapped > self.capacity and self.left_context + count > self.capacity:
            raise SpeculationBudgetExceeded(
                f"a block of {count} positions does not fit a ring of {self.capacity} slots with a left context of "
                f"{self.left_context}; make the ring with slack >= {count}"
            )
        index = torch.arange(self.keys.shape[0], device=self.keys.device) if rows is None else rows
        offset = torch.arange(keys.shape[2], device=keys.device)
        slots = (self.lengths(rows)[:, None] + offset) % self.capacity  # [k, T]
        slots = torch.where(offset < lens[:, None], slots, self.capacity)
        self.keys[index[:, None], :, slots] = keys.transpose(1, 2)
        self.values[index[:, None], :, slots] = values.transpose(1, 2)

    def visible(self, count: int, rows: Tensor | None) -> int:
        """Slots, from the front, that a block of `count` freshly written positions has to look through; as many as
        attention can take whoever else is in the batch."""
        most = self.keys.shape[2]
        return most if most > FUSED_KEYS else min(most, filled_up(int(self.lengths(rows).max()) + count, KEYS))

    def readable(self, count: int, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """All streams' keys and values [B, H, visible, D], as many as a block of `count` freshly written positions of
        `rows` looks through; which of them each query may see is `asr.blocks.ring_mask`'s to say."""
        high = self.visible(count, rows)
        return self.keys[:, :, :high], self.values[:, :, :high]

    def advance(self, count: Tensor, rows: Tensor | None) -> KVRing:
        """The state in which [k] more positions of `rows` are committed."""
        if rows is None:
            return replace(self, length=self.length + count)
        return replace(self, length=self.length.index_add(0, rows, count))

    def reset(self, rows: Tensor) -> KVRing:
        """The state in which `rows` are empty; storage is left as it is, `length` hides it."""
        return replace(self, length=self.length.index_fill(0, rows, 0))


@dataclass(frozen=True)
class Rings:
    """The state of a stack of layers: the encoder's final frames, or a decoder's remembered rows.

    Attributes: rings: one per layer, of one length.
    """

    rings: tuple[KVRing, ...]

    @property
    def length(self) -> Tensor:
        """[B] positions committed (since the anchor, where positions are bounded)."""
        return self.rings[0].length

    def advance(self, count: Tensor, rows: Tensor | None = None) -> Rings:
        """The state in which [k] more of the positions just written are committed, in `rows` or in all."""
        return replace(self, rings=tuple(ring.advance(count, rows) for ring in self.rings))

    def reset(self, rows: Tensor) -> Rings:
        """The state in which `rows` are empty."""
        return replace(self, rings=tuple(ring.reset(rows) for ring in self.rings))


def tensors_of(state: object) -> list[Tensor]:
    """Every tensor in a state tree of dataclasses and tuples."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, tuple | list):
        return [tensor for part in state for tensor in tensors_of(part)]
    if hasattr(state, "__dataclass_fields__"):
        return [tensor for name in state.__dataclass_fields__ for tensor in tensors_of(getattr(state, name))]
    return []


def nbytes(state: object) -> int:
    """Bytes that a state holds, for admission and for the law that it does not grow."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state))
