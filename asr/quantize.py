"""Weights of int8 on processors: a quarter of the memory, and less time where reading them is what takes it.

Each row of a weight matrix has its own scale, and so has each vector that meets it. The products are summed in 32-bit
integers, which round nowhere: what a stream gets does not depend on who shares its batch, nor on the batch's shape.
Scales by the whole batch, as dynamic quantisation usually has them, would break that. Vectors keep seven bits, since
FBGEMM's kernels for AVX2 add pairs of products in sixteen.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import torch
from torch import Tensor, nn

from asr.additive import AdditiveDecoder, DelayCondition
from asr.cross import CrossDecoder
from asr.errors import ConfigError
from asr.model import Model

__all__ = ["Int8Linear", "quantize"]

ENGINE = "fbgemm"
_LARGEST, _ZERO = 63, 64  # of a seven-bit activation: 1 to 127 around 64
_LARGEST_WEIGHT = 127


class Int8Linear(nn.Module):
    """`nn.Linear` with a weight of int8.

    Args:
        weight: [out, in]; bias: [out] or None.

    Raises:
        ConfigError: if this build of PyTorch has no FBGEMM.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        weight = weight.detach().float()
        scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST_WEIGHT
        whole = (weight / scale[:, None]).round().to(torch.int8)
        self.bias = None if bias is None else bias.detach().float().clone()
        self._packed = _pack(whole, scale)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], float32."""
        shape = x.shape[:-1]
        x = x.reshape(-1, self.in_features)
        size = x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        y = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x / size, 1 / _LARGEST, _ZERO, self._packed
        )
        return (y * size if self.bias is None else torch.addcmul(self.bias, y, size)).reshape(*shape, self.out_features)


def _pack(whole: Tensor, scale: Tensor) -> object:
    """What FBGEMM multiplies by: whole [out, in] int8 times scale [out]."""
    if ENGINE not in torch.backends.quantized.supported_engines:
        raise ConfigError(f"int8 weights need a PyTorch with {ENGINE}, which the build for this processor lacks")
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    with warnings.catch_warnings():  # quantised tensors are to leave PyTorch; its kernels have no other way in yet
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")
        weight = torch._make_per_channel_quantized_tensor(whole, scale.double(), zeros, 0)
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = ENGINE
    try:
        return torch.ops.quantized.linear_prepack(weight, None)
    finally:
        torch.backends.quantized.engine = engine


def quantize(model: Model) -> Model:
    """The same model with int8 weights in encoder and decoder; norms, convolutions, gate and heads stay as they are.

    Raises:
        ConfigError: if the model is not on the processor, or this build of PyTorch has no FBGEMM.
    """
    if model.device.type != "cpu":
        raise ConfigError(f"int8 weights are for processors; {model.name} is on {model.device}")
    recogniser = copy.deepcopy(model.recogniser).requires_grad_(False)
    for part in (recogniser.encoder, recogniser.decoder):
        for owner in part.modules():
            for name, child in list(owner.named_children()):
                if isinstance(child, nn.Linear) and not isinstance(owner, DelayCondition):
                    setattr(owner, name, Int8Linear(child.weight, child.bias))
    decoder = recogniser.decoder
    if isinstance(decoder, CrossDecoder | AdditiveDecoder):
        decoder.readout = Int8Linear(decoder.embedding.weight, None)
    return replace(model, name=f"{model.name}, int8", recogniser=recogniser)
