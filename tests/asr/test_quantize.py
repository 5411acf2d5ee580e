"""int8 weights: how near they come, that nobody's batch matters, and what cannot have them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import asr
from asr import quantize as module
from asr.checkpoint import save
from asr.errors import CheckpointError, ConfigError
from asr.jobs import transcribe_streams
from asr.metrics import normalize_english
from asr.model import Model
from asr.quantize import Int8Linear, quantize
from asr.transcriber import transcribe
from asr.words import Transcript
from tests.tiny_model import bursts, tiny_additive_model, tiny_ctc_model, tiny_model

SAMPLE = "samples/audio/1034-121119-0000.opus"


def made(outs: int, ins: int, seed: int, *, bias: bool = True) -> tuple[nn.Linear, Int8Linear]:
    torch.manual_seed(seed)
    linear = nn.Linear(ins, outs, bias=bias).requires_grad_(False)
    return linear, Int8Linear(linear.weight, linear.bias)


def by_hand(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """The same sums in float64: weights of 127 steps a row, inputs of 63 a vector."""
    w = linear.weight.double()
    scale = w.abs().amax(1, keepdim=True) / 127
    size = x.double().abs().amax(-1, keepdim=True) / 63
    y = (x.double() / size).round() @ (w / scale).round().T * size * scale[:, 0]
    return (y if linear.bias is None else y + linear.bias.double()).float()


@settings(max_examples=25, deadline=None)
@given(
    outs=st.integers(1, 70),
    ins=st.integers(1, 300),
    rows=st.integers(1, 9),
    seed=st.integers(0, 99),
    bias=st.booleans(),
)
def test_it_is_the_product_of_the_rounded_factors(outs: int, ins: int, rows: int, seed: int, bias: bool) -> None:
    linear, mine = made(outs, ins, seed, bias=bias)
    x = torch.randn(rows, ins) * torch.logspace(-3, 3, rows)[:, None]
    near = (mine(x) - by_hand(linear, x)).abs() / x.abs().amax(-1, keepdim=True)
    assert float(near.median()) < 1e-5
    assert float(near.max()) < 0.05  # a value that lies on the edge between two steps may round either way
    most = x.norm(dim=-1, keepdim=True) * linear.weight.norm(dim=1)
    assert float(((mine(x) - linear(x)).abs() / most).max()) < 0.05


@settings(max_examples=25, deadline=None)
@given(before=st.integers(0, 40), after=st.integers(0, 40), seed=st.integers(0, 99))
def test_a_vector_gets_the_same_whoever_shares_its_batch(before: int, after: int, seed: int) -> None:
    _, mine = made(33, 64, seed)
    x = torch.randn(3, 64)
    others = [torch.randn(n, 64) * 1000 for n in (before, after)]
    batch = torch.cat([others[0], x, others[1]])
    assert torch.equal(mine(batch)[before : before + 3], mine(x))
    assert torch.equal(mine(x[None, :, None])[0, :, 0], mine(x))


def test_the_largest_products_do_not_overflow() -> None:
    linear = nn.Linear(4096, 4, bias=False).requires_grad_(False)
    linear.weight.fill_(1.0)
    linear.weight[1::2] = -1.0
    x = torch.ones(2, 4096)
    torch.testing.assert_close(Int8Linear(linear.weight, None)(x), linear(x), rtol=1e-5, atol=0)


@pytest.mark.parametrize("x", [torch.zeros(2, 8), torch.zeros(0, 8)])
def test_silence_and_nothing(x: torch.Tensor) -> None:
    linear, mine = made(5, 8, 1)
    torch.testing.assert_close(mine(x), linear(x))


@pytest.mark.parametrize("make", [tiny_model, tiny_ctc_model, tiny_additive_model])
def test_every_product_of_encoder_and_decoder_is_int8_and_the_model_given_is_left_alone(
    make: Callable[[Path], Model], tmp_path: Path
) -> None:
    model = make(tmp_path)
    before = copy.deepcopy(model.recogniser.state_dict())
    small = quantize(model)
    parts = (small.recogniser.encoder, small.recogniser.decoder)
    left = [part for owner in parts for part in owner.modules() if isinstance(part, nn.Linear)]
    assert len(left) == (2 if make is tiny_additive_model else 0)  # the delay's scale is small and stays
    assert isinstance(small.recogniser.decoder.readout, Int8Linear)
    assert model.recogniser.decoder.readout is None
    after = model.recogniser.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("make", [tiny_model, tiny_additive_model])
def test_a_file_gets_the_same_in_any_batch(make: Callable[[Path], Model], tmp_path: Path) -> None:
    model = quantize(make(tmp_path))
    options = {"delay_ms": 80, "chunk_ms": 160}
    clips = {str(n): bursts(1 + n / 3, n).numpy() for n in range(4)}
    for key, result in transcribe_streams(model, ((k, [c]) for k, c in clips.items()), batch_size=3, **options):
        assert isinstance(result, Transcript)
        alone = transcribe(model, clips[key], **options)
        assert result.words
        assert [replace(word, confidence=0) for word in result.words] == [replace(w, confidence=0) for w in alone.words]


def test_the_default_model_writes_nearly_the_same() -> None:
    exact, small = (asr.load(name) for name in ("earlybird-en", "int8:earlybird-en"))
    assert small.name == "earlybird-en, int8"
    mine, theirs = (normalize_english(transcribe(model, SAMPLE).text).split() for model in (small, exact))
    assert mine[:6] == theirs[:6]  # marks may differ


def test_what_cannot_be_int8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path)
    with pytest.raises(CheckpointError, match="tiny, int8 has int8 weights; save the model that they were made of"):
        save(quantize(model), tmp_path / "saved", "card")
    monkeypatch.setattr(Model, "device", torch.device("cuda", 0))
    with pytest.raises(ConfigError, match="int8 weights are for processors; tiny is on cuda:0"):
        quantize(model)
    monkeypatch.setattr(module, "ENGINE", "abacus")
    with pytest.raises(ConfigError, match="int8 weights need a PyTorch with abacus"):
        Int8Linear(torch.ones(2, 2), None)
