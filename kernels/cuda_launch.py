"""Numba's CUDA part, and how the kernels here are started on tensors of PyTorch.

Imported only by the backends that need it. Under NUMBA_ENABLE_CUDASIM=1 kernels run in numba's simulator, on tensors of
the CPU.
"""

from __future__ import annotations

from typing import Any

import numba.core.config
import numba.cuda
import torch
from torch import Tensor

cuda: Any = numba.cuda  # its stubs know neither kernels nor the simulator
SIMULATED = bool(vars(numba.core.config)["ENABLE_CUDASIM"])
SIMULATED_THREADS = 32  # the simulator makes each a thread of the system

if not SIMULATED and not cuda.is_available():
    raise ImportError("numba finds no CUDA device (NUMBA_ENABLE_CUDASIM=1 simulates one)")


def launch(kernel: Any, blocks: int, threads: int, tensors: list[Tensor]) -> None:
    """Runs a kernel on the tensors' device, in the order of PyTorch's own work there."""
    device = tensors[0].device
    if not blocks:
        return
    if SIMULATED:
        kernel[blocks, threads](*(tensor.numpy() for tensor in tensors))
        return
    if device.type != "cuda":
        raise ValueError(f"the CUDA backend needs tensors on a CUDA device, got {device}")
    with torch.cuda.device(device):
        stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
        kernel[blocks, threads, stream](*(cuda.as_cuda_array(tensor) for tensor in tensors))
