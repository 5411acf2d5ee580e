"""Execution in bfloat16, emulated where a processor or a state knows only float32: what its rounding changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_PRODUCTS = frozenset({torch.nn.functional.linear, torch.matmul, torch.Tensor.matmul, torch.bmm})


class Bfloat16Products(TorchFunctionMode):
    """Within it, linear layers and matrix products take bfloat16 and give it, widened to float32 for what comes next.

    Like `torch.autocast`, norms, softmax, sums and the state stay in float32, but for a model whose state refuses
    anything else; unlike it, convolutions and fused attention stay there too.

    >>> with Bfloat16Products():
    ...     torch.nn.functional.linear(torch.ones(1), torch.tensor([[1.001]])).item()
    1.0
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _PRODUCTS:
            return func(*args, **kwargs)
        narrow = [_rounded(one) for one in args]
        return func(*narrow, **{key: _rounded(one) for key, one in kwargs.items()}).float()


def _rounded(value: Any) -> Any:
    return value.bfloat16() if isinstance(value, Tensor) and value.is_floating_point() else value
