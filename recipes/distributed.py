"""One run in several processes: each takes its share of a batch, and all take the step of the whole batch.

Under `torchrun --nproc-per-node 2 -m recipes.grpo …` every process draws the same batches, works on every n-th part of
them and adds up gradients; weights, optimiser and random state so stay the same everywhere, and equal to those of one
process but for the order of the sums (tests/recipes/test_distributed.py). Without torchrun there is one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, distributed

__all__ = ["Processes"]

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """Attributes: rank: this process, from 0. size: how many there are."""

    rank: int = 0
    size: int = 1

    @classmethod
    def start(cls, device: str = "cpu") -> Processes:
        """Those that torchrun started, joined; one where there is no torchrun."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        return cls(rank=distributed.get_rank(), size=size)

    @property
    def first(self) -> bool:
        """Whether this one writes files and prints."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """Every n-th of the items, this process' own."""
        return list(items[self.rank :: self.size])

    def add(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            values = values.clone()
            distributed.all_reduce(values)
        return values

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replaces each gradient by the sum over all processes; a missing one counts as 0."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)

    def gather(self, items: list[T]) -> list[T]:
        """The items of all processes in the order that `share` took them from."""
        if self.size == 1:
            return items
        parts: list[list[T]] = [[] for _ in range(self.size)]
        distributed.all_gather_object(parts, items)
        return [part[i] for i in range(len(parts[0])) for part in parts if i < len(part)]

    def end(self) -> None:
        """Leaves the others."""
        if self.size > 1:
            distributed.destroy_process_group()
