"""The laws that are written for whole recognisers: drafts within a block, the training forward, re-anchoring."""

from __future__ import annotations

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
            said, _ = choose(output, active, None)
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
            tokens, _ = choose(output, active, None)
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


def cross_oracle(model: CrossRecogniser, frames: Tensor, seen: list[int], tokens: list[int]) -> Tensor:
    """[V] logits of the last of `tokens`, each row over its own frames: token i saw the first seen[i]. No caches."""
    decoder = model.decoder
    at = torch.arange(len(tokens))
    x = (decoder.embedding(torch.tensor(tokens)) + decoder.positions[: len(tokens)])[None]
    text_mask = (at <= at[:, None])[None, None]
    frame_mask = (torch.arange(frames.shape[0]) < torch.tensor(seen)[:, None])[None, None]
    for layer in decoder.layers:
        y = layer.attention_norm(x)
        x = x + layer.attention.attend(layer.attention.queries(y), *layer.attention.keys_values(y), text_mask)
        x, _ = layer.look(x, *layer.cross.keys_values(frames[None]), frame_mask)
    return decoder.logits(decoder.norm(x))[0, -1]


def check_cross_offline(model: CrossRecogniser, steps: int) -> None:
    """2. Streaming equals uncached maths, until the first re-anchoring; plain chunks, for which the encoder has a training mask."""
    chosen = tiny.settings(1, steps)
    rows, active = tiny.rows_of(chosen), torch.ones(1, dtype=torch.bool)
    total = STILL.limit_frames // FRAMES_PER_STEP // steps * steps
    x = tiny.sound(STEP_SAMPLES * total, 45)
    lens = torch.tensor([len(x)])
    stem, _, _, _ = model.frontend.step(x[None], lens, model.frontend.init_state(1))
    count = stem.shape[1]
    mask = model.encoder.chunk_mask(count, steps * FRAMES_PER_STEP)
    frames = model.encoder(stem + model.encoder_positions[:count], mask)[0]

    state = model.init_state(1, max_chunk_steps=steps, max_right=0, max_silence=0)
    tokens, seen = list(tiny.PROMPT), [0] * len(tiny.PROMPT)
    heard, emitted = 0, 0
    for block in x.split(STEP_SAMPLES * steps):
        state = model.listen(block[None], torch.tensor([len(block)]), rows, state)
        heard += len(block) // 320
        for _ in range(steps):
            output, state = model.row(active, rows, state)
            for i in range(len(tokens) if emitted == 0 else 1):
                seen[-1 - i] = heard  # not remembered yet: they look anew
            expected = cross_oracle(model, frames, seen, tokens)
            torch.testing.assert_close(state.row.logits[0], expected, rtol=0, atol=1e-5)
            said, _ = choose(output, active, None)
            state = model.accept(active, said, output, state)
            if int(said[0]) != WAIT:
                emitted += 1
                tokens.append(int(said[0]))
                seen.append(heard)
    assert emitted > 4
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
        _, state = decode_block(model, block, lens, rows, state)
    frontend, cut = state.frontend, int(state.heard[0])
    for block in blocks_of_x[10 - back : 10]:
        _, state = decode_block(model, block, lens, rows, state)
    assert int(state.re_anchors[0]) == 0
    monkeypatch.setattr(model, "_place", lambda *_: (cut, 0))
    state = model.ask_re_anchor(state, torch.tensor([0]))
    far, state = decode_block(model, blocks_of_x[10], lens, rows, state)
    assert (int(state.re_anchors[0]), int(state.anchor[0])) == (1, cut)

    fresh = replace(model.init_state(1, **room), frontend=frontend)
    first = torch.cat(blocks_of_x[10 - back : 11], 1)
    fresh = model.listen(first, torch.tensor([first.shape[1]]), rows, fresh)
    fresh = replace(fresh, clock=torch.tensor([steps * back]))  # those steps were decoded before the anchor
    near = []
    for _ in range(steps):
        active = torch.tensor([True])
        output, fresh = model.row(active, rows, fresh)
        said, _ = choose(output, active, None)
        fresh = model.accept(active, said, output, fresh)
        near.append((int(said[0]), output.logits))
    assert [int(o.tokens[0]) for o in far] == [token for token, _ in near]
    torch.testing.assert_close(state.row.logits, fresh.row.logits, rtol=0, atol=1e-5)
    for block in blocks_of_x[11:20]:
        one, state = decode_block(model, block, lens, rows, state)
        two, fresh = decode_block(model, block, lens, rows, fresh)
        assert [int(o.tokens[0]) for o in one] == [int(o.tokens[0]) for o in two]
        assert [int(o.frame[0]) for o in one] == [int(o.frame[0]) + cut for o in two]
        torch.testing.assert_close(state.row.logits, fresh.row.logits, rtol=0, atol=1e-5)
