"""Weights spread over processes (FSDP2): each holds a part of them, of their gradients and of the optimiser's state.

What is saved is always whole, so that a run goes on with another number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from recipes.distributed import Processes

__all__ = ["is_sharded", "shard", "spread_as", "whole"]


def shard(blocks: Sequence[nn.Module], processes: Processes) -> None:
    """Spreads each block's weights over the processes, in place; with one process they stay as they are.

    A block's weights are whole while it computes. Its gradients are sums over the processes, as those of
    `Processes.add_gradients` are.
    """
    if processes.size == 1:
        return
    mesh = init_device_mesh(next(blocks[0].parameters()).device.type, (processes.size,))
    for block in blocks:
        part = fully_shard(block, mesh=mesh, reshard_after_forward=True)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo has no other


def is_sharded(weight: Tensor) -> bool:
    """Whether this process holds a part of it only."""
    return isinstance(weight, DTensor)


def whole(value: Any) -> Any:
    """Dictionaries and lists with each tensor whole; every process has to ask for it at once."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, Mapping):
        return {name: whole(part) for name, part in value.items()}
    return [whole(part) for part in value] if isinstance(value, list) else value


@torch.no_grad()
def spread_as(value: Tensor, weight: Tensor) -> Tensor:
    """A whole tensor as `weight` is held: this process' part of it, or all."""
    if not isinstance(weight, DTensor):
        return value
    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)
