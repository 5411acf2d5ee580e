"""Low-rank corrections of linear layers (Hu et al. 2021): y = W x + (α / r) · B A x, with B = 0 at the start."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asr.errors import ConfigError

__all__ = ["LoraLinear", "attach_lora", "merge_lora"]


class LoraLinear(nn.Module):
    """A linear layer that stays as it is, and what is learned of it.

    Args:
        base: the layer; frozen.
        rank: r.
        alpha: α; the correction counts α / r.
    """

    def __init__(self, base: nn.Linear, *, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = alpha / rank
        self.down = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.up = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self.base(x) + self.scale * F.linear(F.linear(x, self.down), self.up)  # type: ignore[no-any-return]

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One linear layer of the same outputs."""
        self.base.weight += self.scale * self.up @ self.down
        return self.base


def attach_lora(module: nn.Module, *, rank: int, alpha: float) -> list[nn.Parameter]:
    """Corrects every linear layer within `module`, in place, and freezes the rest; gives what may be trained.

    Raises:
        ConfigError: if the rank is below 1 or there is no linear layer.
    """
    if rank < 1:
        raise ConfigError(f"the rank is {rank}; it must be at least 1")
    module.requires_grad_(False)
    trained: list[nn.Parameter] = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(parent, LoraLinear):
                layer = LoraLinear(child, rank=rank, alpha=alpha)
                setattr(parent, name, layer)
                trained += [layer.down, layer.up]
    if not trained:
        raise ConfigError(f"{type(module).__name__} has no linear layer to correct")
    return trained


def merge_lora(module: nn.Module) -> None:
    """Adds the corrections to the weights, in place: afterwards `module` has the layers it had before."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoraLinear):
                setattr(parent, name, child.merged())
