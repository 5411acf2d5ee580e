"""The transformer parts: known answers and masks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asr.blocks import Attention, GeluFeedForward, Rotary, SwigluFeedForward, ring_mask
from asr.errors import ConfigError
from asr.state import KVRing
from tests import tiny


def attention(*, heads: int = 4, kv_heads: int = 2, rotary: Rotary | None = None) -> Attention:
    return tiny.randomised(
        Attention(
            dim=8,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=4,
            query_bias=True,
            key_bias=False,
            value_bias=True,
            output_bias=True,
            rotary=rotary,
        )
    )


def test_rotary_turns_each_pair_by_position_times_frequency() -> None:
    # head_dim 4, theta 100: frequencies 1 and 1/10; pairs are (0, 2) and (1, 3), the half-split layout.
    x = torch.tensor([1.0, 1.0, 0.0, 0.0])[None, None, None]
    turned = Rotary(head_dim=4, theta=100.0)(x, torch.tensor([[3]]))[0, 0, 0]
    expected = torch.tensor([math.cos(3), math.cos(0.3), math.sin(3), math.sin(0.3)])
    torch.testing.assert_close(turned, expected)


def test_rotary_products_depend_on_the_distance_alone_even_far_away() -> None:
    rotary, query, key = Rotary(head_dim=8, theta=1e4), torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(at: int) -> Tensor:
        return (rotary(query, torch.tensor([[at + 5]])) * rotary(key, torch.tensor([[at]]))).sum()

    torch.testing.assert_close(product(10**7), product(0), rtol=0, atol=1e-5)


def test_rotary_frequencies_are_not_in_a_checkpoint() -> None:
    assert Rotary(head_dim=4, theta=1e4).state_dict() == {}


def test_heads_must_share_keys_evenly() -> None:
    with pytest.raises(ConfigError, match=r"^heads \(3\) must be a multiple of kv_heads \(2\)$"):
        attention(heads=3)


def test_each_query_head_uses_its_group_s_keys() -> None:
    layer, x = attention(), torch.randn(2, 5, 8)
    key, value = layer.keys_values(x)
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    query = layer.queries(x)
    heads = []
    for head in range(4):
        score = query[:, head] @ key[:, head // 2].transpose(1, 2) / 2  # sqrt(head_dim)
        weight = score.masked_fill(~mask[:, 0], -math.inf).softmax(-1)
        heads.append(weight @ value[:, head // 2])
    torch.testing.assert_close(layer.attend(query, key, value, mask), layer.out(torch.cat(heads, 2)))


def test_attention_with_weights_is_the_same_attention() -> None:
    layer, x = attention(kv_heads=4), torch.randn(2, 5, 8)
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    key, value = layer.keys_values(x)
    y, weights = layer.attend_with_weights(layer.queries(x), key, value, mask)
    torch.testing.assert_close(y, layer.attend(layer.queries(x), key, value, mask))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))
    assert not weights[~mask.expand_as(weights)].any()


def test_whisper_has_no_key_bias() -> None:
    assert attention().key.bias is None
    assert attention().query.bias is not None


def test_feed_forwards() -> None:
    x = torch.randn(2, 3, 8)
    gelu = tiny.randomised(GeluFeedForward(dim=8, hidden=12))
    exact = 0.5 * (h := gelu.up(x)) * (1 + torch.erf(h / math.sqrt(2)))
    torch.testing.assert_close(gelu(x), gelu.down(exact))
    swiglu = tiny.randomised(SwigluFeedForward(dim=8, hidden=12, down_bias=True))
    torch.testing.assert_close(swiglu(x), swiglu.down(F.silu(swiglu.gate(x)) * swiglu.up(x)))
    assert SwigluFeedForward(dim=8, hidden=12, down_bias=False).down.bias is None


def seen(length: list[int], lens: list[int], count: int, *, window: int | None) -> list[list[list[int]]]:
    """Positions that each query of each row sees in a ring of left context 3 and slack 2 (slot = position mod 5)."""
    ring = KVRing.zeros(batch=len(length), heads=1, head_dim=1, left_context=3, slack=2)
    ring = ring.advance(torch.tensor(length), None)
    positions = ring.length[:, None] + torch.arange(count)
    mask = ring_mask(ring, positions, torch.tensor(lens), None, window=window)[:, 0]
    ends = [length[b] + max(lens[b], 1) for b in range(len(length))]
    return [
        [sorted(newest(slot, end) for slot in query.nonzero()[:, 0].tolist()) for query in row]
        for row, end in zip(mask, ends, strict=True)
    ]


def newest(slot: int, end: int) -> int:
    """The newest position before `end` that lies in a slot."""
    return end - 1 - (end - 1 - slot) % 5


def test_a_bidirectional_block_sees_its_past_and_all_of_itself() -> None:
    assert seen([7], [2], 2, window=None) == [[[4, 5, 6, 7, 8]] * 2]
    assert seen([1], [2], 2, window=None) == [[[0, 1, 2]] * 2]


def test_a_causal_window_ends_at_oneself() -> None:
    assert seen([7], [2], 2, window=3) == [[[5, 6, 7], [6, 7, 8]]]
    assert seen([0], [2], 2, window=3) == [[[0], [0, 1]]]


def test_padding_is_seen_by_nobody_and_sees_what_the_last_valid_query_sees() -> None:
    assert seen([7, 6], [2, 1], 2, window=None)[1] == [[3, 4, 5, 6]] * 2
    assert seen([7, 6], [2, 1], 2, window=3)[1] == [[4, 5, 6]] * 2


def test_an_idle_row_s_softmax_is_never_empty() -> None:
    for window in (None, 3):
        assert all(query for query in seen([0, 3], [0, 2], 2, window=window)[0])
