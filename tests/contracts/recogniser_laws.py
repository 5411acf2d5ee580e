"""The laws that are written for whole recognisers: drafts within a block, the training forward, re-anchoring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.additive_recogniser import AdditiveRecogniser
from asr.config import RowSettings, SessionSettings
from asr.cross_recogniser import CrossRecogniser
from asr.decode import choose, decode_block
from asr.recogniser import WAIT
from asr.units import FRAMES_PER_STEP, STEP_SAMPLES
from tests import tiny
from tests.contracts.parts import uncached_blocks

STILL = replace(tiny.ANCHORS, pause_after_frames=96, voiced_frames=10_000)
"""No re-anchoring before the limit."""


def drafted(model: Any, x: Tensor, chosen: SessionSettings, seed: int | None) -> list[int]:
    """Tokens of a stream; with a seed, every block is first decoded with random outputs, which are forgotten."""
    chunk = chosen.chunk
    rows, active = tiny.rows_of(chosen), torch.ones(1, dtype=torch.bool)
    state = model.init_state(
        1, max_chunk_steps=chunk.chunk_steps, max_right=chunk.right_frames, max_silence=chunk.silence_frames
    )
    random = torch.Generator().manual_seed(seed or 0)
    tokens = []
    for block in x.split(STEP_SAMPLES * chunk.chunk_steps):
        state = model.listen(block[None], torch.tensor([len(block)]), rows, state)
        if seed is not None:
            tried = state
            for _ in range(len(block) // STEP_SAMPLES):
                output, tried = model.row(active, rows, tried)
                tried = model.accept(active, torch.randint(-1, 20, (1,), generator=random), output, tried)
        for _ in range(len(block) // STEP_SAMPLES):
            output, state = model.row(active, rows, state)
            said, _, _ = choose(output, active, None, None)
            state = model.accept(active, said, output, state)
            tokens.append(int(said[0]))
    return tokens


def additive_logits(model: AdditiveRecogniser, x: Tensor, rows: RowSettings, steps: int) -> tuple[Tensor, Tensor]:
    """Greedy outputs [B, T] (the wait as V) of streams of equal length and the text logits [B, T, V] before them."""
    batch = x.shape[0]
    state = model.init_state(batch, max_chunk_steps=steps, max_right=0, max_silence=0)
    active = torch.ones(batch, dtype=torch.bool)
    said, logits = [], []
    for block in x.split(STEP_SAMPLES * steps, 1):
        state = model.listen(block, torch.full((batch,), block.shape[1]), rows, state)
        for _ in range(block.shape[1] // STEP_SAMPLES):
            output, state = model.row(active, rows, state)
            tokens, _, _ = choose(output, active, None, None)
            state = model.accept(active, tokens, output, state)
            said.append(torch.where(tokens == WAIT, model.wait, tokens))
            logits.append(output.logits)
    return torch.stack(said, 1), torch.stack(logits, 1)


def check_additive_offline(model: AdditiveRecogniser, rows: RowSettings, steps: int) -> None:
    """2. Streaming equals the training forward: text logits and greedy outputs of three streams."""
    x = torch.stack([tiny.sound(STEP_SAMPLES * 30, 42 + row) for row in range(len(rows.delay))])
    said, streamed = additive_logits(model, x, rows, steps)
    trained = model(x, said, rows.delay)
    allowed = ~model.banned
    torch.testing.assert_close(streamed[..., allowed], trained[..., :-1][..., allowed], rtol=0, atol=1e-5)
    trained[..., :-1][..., ~allowed] = -torch.inf
    assert torch.equal(trained.argmax(-1), said)


def cross_oracle(model: CrossRecogniser, seen: list[Tensor], tokens: list[int]) -> Tensor:
    """[V] logits of the last of `tokens`, token i over the frames seen[i] [T, C]. No caches."""
    decoder = model.decoder
    at = torch.arange(len(tokens))
    x = (decoder.embedding(torch.tensor(tokens)) + decoder.positions[: len(tokens)])[None]
    text_mask = (at <= at[:, None])[None, None]
    for layer in decoder.layers:
        y = layer.attention_norm(x)
        x = x + layer.attention.attend(layer.attention.queries(y), *layer.attention.keys_values(y), text_mask)
        rows = []
        for row, frames in enumerate(seen):
            everything = torch.ones(1, 1, 1, len(frames), dtype=torch.bool)
            rows.append(layer.look(x[:, row : row + 1], *layer.cross.keys_values(frames[None]), everything)[0])
        x = torch.cat(rows, 1)
    return decoder.logits(decoder.norm(x))[0, -1]


def cross_memories(model: CrossRecogniser, x: Tensor, chosen: SessionSettings) -> Iterator[Tensor]:
    """What the decoder can look at in each block: the final frames, the provisional ones and silence. No caches."""
    chunk, frames = chosen.chunk, chosen.chunk.chunk_steps * FRAMES_PER_STEP
    stem = model.frontend.step(x[None], torch.tensor([len(x)]), model.frontend.init_state(1))[0][0]
    positions = model.encoder_positions
    quiet = model.frontend.silent_frame() + positions
    sizes = [frames] * (len(stem) // frames)
    stem = stem + positions[: len(stem)]
    final = stem[:0]
    for encoded, begin in uncached_blocks(model.encoder, stem, quiet, sizes, chunk.right_frames, chunk.silence_frames):
        yield torch.cat([final[:begin], encoded])
        final = torch.cat([final[:begin], encoded[: len(encoded) - chunk.silence_frames]])


def check_cross_offline(model: CrossRecogniser, chosen: SessionSettings, steps: int) -> None:
    """2. Streaming equals the same maths without caches and rings, for the first `steps` steps (no re-anchoring)."""
    rows, active, chunk = tiny.rows_of(chosen), torch.ones(1, dtype=torch.bool), chosen.chunk
    x = tiny.sound(STEP_SAMPLES * steps, 45)
    state = model.init_state(
        1, max_chunk_steps=chunk.chunk_steps, max_right=chunk.right_frames, max_silence=chunk.silence_frames
    )
    tokens, seen, remembered = list(tiny.PROMPT), [x[:0]] * len(tiny.PROMPT), 0
    blocks = x.split(STEP_SAMPLES * chunk.chunk_steps)
    for block, memory in zip(blocks, cross_memories(model, x, chosen), strict=True):
        state = model.listen(block[None], torch.tensor([len(block)]), rows, state)
        for _ in range(chunk.chunk_steps):
            output, state = model.row(active, rows, state)
            seen = seen[:remembered] + [memory] * (len(tokens) - remembered)  # those not remembered look anew
            expected = cross_oracle(model, seen, tokens)
            torch.testing.assert_close(state.row.present()[2][0], expected, rtol=0, atol=1e-5)
            said, _, _ = choose(output, active, None, None)
            state = model.accept(active, said, output, state)
            if int(said[0]) != WAIT:
                remembered = len(tokens)
                tokens.append(int(said[0]))
    assert remembered > 4
    assert int(state.re_anchors[0]) == 0


def check_re_anchored(model: CrossRecogniser, chosen: SessionSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """8. A re-anchored row, nothing fed again, equals a fresh row that is given the frames from the cut on."""
    steps = chosen.chunk.chunk_steps
    rows = tiny.rows_of(chosen)
    x = tiny.sound(STEP_SAMPLES * steps * 30, 46)
    blocks_of_x = [block[None] for block in x.split(STEP_SAMPLES * steps)]
    lens = torch.tensor([STEP_SAMPLES * steps])
    back = -(-tiny.ANCHORS.keep_frames // FRAMES_PER_STEP // steps) - 1  # blocks that the cut lies back
    room = {"max_chunk_steps": steps * (back + 1), "max_right": 8, "max_silence": 8}
    state = model.init_state(1, **room)
    for block in blocks_of_x[: 10 - back]:
        _, state, _ = decode_block(model, block, lens, rows, state)
    frontend, cut = state.frontend, int(state.heard[0])
    for block in blocks_of_x[10 - back : 10]:
        _, state, _ = decode_block(model, block, lens, rows, state)
    assert int(state.re_anchors[0]) == 0
    with monkeypatch.context() as forced:
        forced.setattr(model, "_must_re_anchor", lambda *_: torch.tensor([True]))
        forced.setattr("asr.cross_recogniser.place_anchor", lambda _, __, tokens, *___, **____: (cut, len(tokens)))
        far, state, _ = decode_block(model, blocks_of_x[10], lens, rows, state)
    assert (int(state.re_anchors[0]), int(state.anchor[0])) == (1, cut)

    fresh = replace(model.init_state(1, **room), frontend=frontend)
    first = torch.cat(blocks_of_x[10 - back : 11], 1)
    fresh = model.listen(first, torch.tensor([first.shape[1]]), rows, fresh)
    fresh = replace(fresh, clock=torch.tensor([steps * back]))  # those steps were decoded before the anchor
    near = []
    for _ in range(steps):
        active = torch.tensor([True])
        output, fresh = model.row(active, rows, fresh)
        said, _, _ = choose(output, active, None, None)
        fresh = model.accept(active, said, output, fresh)
        near.append((int(said[0]), output.logits))
    assert [int(o.tokens[0]) for o in far] == [token for token, _ in near]
    torch.testing.assert_close(state.row.present()[2], fresh.row.present()[2], rtol=0, atol=1e-5)
    for block in blocks_of_x[11:20]:
        one, state, _ = decode_block(model, block, lens, rows, state)
        two, fresh, _ = decode_block(model, block, lens, rows, fresh)
        assert [int(o.tokens[0]) for o in one] == [int(o.tokens[0]) for o in two]
        assert [int(o.frame[0]) for o in one] == [int(o.frame[0]) + cut for o in two]
        torch.testing.assert_close(state.row.present()[2], fresh.row.present()[2], rtol=0, atol=1e-5)
