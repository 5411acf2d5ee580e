"""From gradients to weights, the same in every run: rates, clipping, AdamW, and a moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from asr.errors import ConfigError
from recipes.distributed import Processes
from recipes.sharding import is_sharded, spread_as, whole

__all__ = ["Trained", "Updates"]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Weights that learn at one rate, stated at its height; all of them sharded, or none."""

    weights: Sequence[nn.Parameter]
    rate: float


class Updates:
    """Moves weights along their gradients.

    Args:
        parts: what learns, and how fast.
        weight_decay, betas: AdamW's.
        clip_norm: the largest norm of all gradients together.
        average_decay: of an exponential moving average of the weights; 0: none is kept.
        processes: that each hold a part of the gradients.

    Raises:
        ConfigError: if average_decay is not at least 0 and below 1.
    """

    def __init__(
        self,
        parts: Sequence[Trained],
        *,
        weight_decay: float,
        clip_norm: float,
        betas: tuple[float, float] = (0.9, 0.98),
        average_decay: float = 0.0,
        processes: Processes | None = None,
    ) -> None:
        if not 0 <= average_decay < 1:
            raise ConfigError(f"average_decay is {average_decay}; it must be at least 0 and below 1")
        self._weights = [weight for part in parts for weight in part.weights]
        self._sharded = [weight for weight in self._weights if is_sharded(weight)]
        self._plain = [weight for weight in self._weights if not is_sharded(weight)]
        self._rates = [part.rate for part in parts]
        self._clip_norm, self._decay = clip_norm, average_decay
        self._processes = processes or Processes()
        groups = [{"params": list(part.weights)} for part in parts]
        self._optimiser = torch.optim.AdamW(groups, lr=0.0, betas=betas, weight_decay=weight_decay)
        self._average = [weight.detach().clone() for weight in self._weights] if average_decay else []

    def clear(self) -> None:
        """Forgets the gradients."""
        self._optimiser.zero_grad()

    def apply(self, scale: float) -> float:
        """One update, at rates of `scale` times their height; gives the norm of the gradients before clipping."""
        for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * scale
        self._processes.add_gradients(self._plain)
        norm = self._clip()
        self._optimiser.step()
        for mean, now in zip(self._average, self._weights, strict=bool(self._average)):
            mean.lerp_(now.detach(), 1 - self._decay)
        return norm

    def _clip(self) -> float:
        """Clips the gradients; gives their norm before."""
        if not self._sharded:
            return float(nn.utils.clip_grad_norm_(self._weights, self._clip_norm))
        plain, sharded = (
            nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
            for weights in (self._plain, self._sharded)
        )
        norm = math.hypot(float(plain), float(whole(sharded)))
        for weight in self._weights:
            if weight.grad is not None:
                weight.grad.mul_(min(1.0, self._clip_norm / (norm + 1e-6)))
        return norm

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it the weights are their moving average, where one is kept; behind it they are what they were."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for mean, now in zip(self._average, self._weights, strict=bool(self._average)):
            kept = now.clone()
            now.copy_(mean)
            mean.copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state and the average, whole; every process has to ask for it at once."""
        found: dict[str, Any] = whole({"optimiser": self._optimiser.state_dict(), "average": self._average})
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        optimiser = dict(state["optimiser"])
        optimiser["state"] = {
            i: {name: spread_as(value, self._weights[i]) if value.dim() else value for name, value in one.items()}
            for i, one in optimiser["state"].items()
        }
        self._optimiser.load_state_dict(optimiser)
        with torch.no_grad():
            for mean, saved in zip(self._average, state["average"], strict=True):
                mean.copy_(spread_as(saved, mean))
