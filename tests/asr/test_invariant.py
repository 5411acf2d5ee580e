"""What a row comes to does not depend on its company: bit for bit, by the sizes of the shipped model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import asr
from asr.encoder import whisper_attention
from asr.invariant import GRU, KEYS, QUERIES, ROWS, Conv1d, Linear, filled_up, linear, queries_filled_up
from asr.jobs import transcribe_streams
from asr.words import Word
from recipes.data import load_audio

DIM = 384
SAMPLES = Path(__file__).parents[2] / "samples" / "audio"


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [33, DIM, 4 * DIM])
def test_products_of_few_and_many_rows_agree(threads: int, size: int) -> None:
    layer = Linear(DIM, size).eval()
    x = torch.randn(40, DIM)
    whole = layer(x)
    assert torch.allclose(whole, x @ layer.weight.T + layer.bias, atol=1e-5)
    for count in range(1, 26):
        for at in range(0, 40 - count, 7):
            assert torch.equal(layer(x[at : at + count]), whole[at : at + count])
    assert torch.equal(layer(x.view(5, 8, DIM)), whole.view(5, 8, size))
    assert linear(x[:0], layer.weight).shape == (0, size)


@torch.no_grad()
def test_convolutions_and_recurrences_of_few_and_many_streams_agree(threads: int) -> None:
    convolution, recurrence = Conv1d(80, DIM, 3).eval(), GRU(DIM, DIM, batch_first=True).eval()
    mel, x, state = torch.randn(20, 80, 34), torch.randn(20, 14, DIM), torch.randn(1, 20, DIM)
    whole, (y, last) = convolution(mel), recurrence(x, state)
    for count in range(1, 20):
        for at in range(0, 20 - count, 5):
            part = slice(at, at + count)
            assert torch.equal(convolution(mel[part]), whole[part])
            mine, mine_last = recurrence(x[part], state[:, part].contiguous())
            assert torch.equal(mine, y[part])
            assert torch.equal(mine_last, last[:, part])


@torch.no_grad()
@pytest.mark.parametrize("fused", [True, False])
def test_attention_does_not_feel_other_queries_and_keys_that_are_masked(threads: int, fused: bool) -> None:
    attention = whisper_attention(dim=DIM, heads=6).eval()

    def run(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        if fused:
            return attention.attend(query, key, value, mask)
        return attention.attend_with_weights(query, key, value, mask)[0]

    query, (key, value) = torch.randn(3, 6, 56, 64), torch.randn(2, 3, 6, 4 * KEYS, 64)
    for seen in (1, 100, 190, 300, 500):
        mask = (torch.arange(4 * KEYS) < seen).expand(3, 1, 56, -1)
        whole = run(query, key, value, mask)
        for keys in range(filled_up(seen, KEYS), 4 * KEYS + 1, KEYS):
            for count in (1, 2, 3, 4, 5, 9):
                mine = run(query[:, :, :count], key[:, :, :keys], value[:, :, :keys], mask[:, :, :count, :keys])
                assert torch.equal(mine, whole[:, :count])
            assert torch.equal(run(query[:1], key[:1, :, :keys], value[:1, :, :keys], mask[:1, :, :, :keys]), whole[:1])


def test_what_is_filled_up() -> None:
    query, mask = torch.randn(2, 3, 1, 4), torch.zeros(2, 1, 1, 5, dtype=torch.bool)
    filled, same = queries_filled_up(query, mask)
    assert filled.shape[2] == QUERIES
    assert same is mask
    _, filled_mask = queries_filled_up(query.expand(-1, -1, 2, -1), mask.expand(-1, -1, 2, -1))
    assert filled_mask.shape[2] == QUERIES
    assert filled_mask[:, :, 2:].all()
    assert [filled_up(count, ROWS) for count in (1, 8, 9)] == [8, 8, 16]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["earlybird-en", "int8:earlybird-en"])
def test_a_clip_gets_the_same_digits_alone_in_a_batch_and_with_two_threads(name: str) -> None:
    model = asr.load(name)
    clips = {path.name: load_audio(path).numpy()[: 5 * 16_000] for path in sorted(SAMPLES.glob("*.opus"))[:3]}

    def run(batch_size: int) -> dict[str, tuple[Word, ...]]:
        jobs = ((key, [samples]) for key, samples in clips.items())
        found = {}
        for key, result in transcribe_streams(model, jobs, delay_ms=480, chunk_ms=320, batch_size=batch_size):
            assert not isinstance(result, Exception)
            found[key] = result.words
        return found

    alone = run(1)
    assert sum(map(len, alone.values())) > 20
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for batch_size in (2, 3):
                assert run(batch_size) == alone  # words, times and confidences
    finally:
        torch.set_num_threads(before)
