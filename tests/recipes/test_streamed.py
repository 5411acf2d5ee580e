"""The parallel streaming forward equals the streamed one."""

from __future__ import annotations

import pytest
import torch

from asr.config import ChunkSetting, RowSettings, SessionSettings
from asr.cross_recogniser import CrossRecogniser
from asr.units import FRAMES_PER_STEP, STEP_SAMPLES
from recipes.streamed import Layout, decode_streamed, encode_streamed
from tests import tiny

CHUNKS = pytest.mark.parametrize(
    ("steps", "right", "silence"), [(1, 0, 0), (2, 8, 4), (1, 12, 3), (4, 4, 0), (3, 0, 6)]
)
BATCH, STEPS = 2, 12


def setting(steps: int, right: int, silence: int) -> ChunkSetting:
    return ChunkSetting(chunk_steps=steps, right_frames=right, silence_frames=silence)


def sound() -> torch.Tensor:
    return torch.stack([tiny.sound(STEPS * STEP_SAMPLES, seed) for seed in range(BATCH)])


def frames_of(model: CrossRecogniser, samples: torch.Tensor) -> torch.Tensor:
    lens = torch.full((BATCH,), samples.shape[1])
    return model.frontend.step(samples, lens, model.frontend.init_state(BATCH))[0]


def test_a_layout_owns_every_final_frame_once() -> None:
    layout = Layout.of(setting(2, 8, 3), STEPS * FRAMES_PER_STEP)
    owned = layout.frame.flatten()[layout.owner]
    assert owned.tolist() == list(range(STEPS * FRAMES_PER_STEP - 8))
    assert layout.real.flatten()[layout.owner].all()
    assert layout.frame.flatten()[layout.whole()].tolist() == list(range(STEPS * FRAMES_PER_STEP))
    assert (layout.valid.sum(1) - layout.real.sum(1)).tolist() == [3] * layout.blocks


@CHUNKS
def test_features_and_rows_equal_the_streamed_ones(steps: int, right: int, silence: int) -> None:
    model = tiny.tiny_cross()
    chunk = setting(steps, right, silence)
    samples = sound()
    layout = Layout.of(chunk, STEPS * FRAMES_PER_STEP)
    memory = encode_streamed(model, frames_of(model, samples), layout)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, model.decoder.embedding.weight.shape[0], (BATCH, layout.blocks + 2), generator=generator)
    block = torch.tensor([[0, 0, *range(layout.blocks)]] * BATCH)
    hidden = decode_streamed(model, memory, tokens, block)

    state = model.init_state(BATCH, max_chunk_steps=steps, max_right=right, max_silence=silence)
    rows = RowSettings.stack([SessionSettings(chunk=chunk, delay_steps=1)] * BATCH, samples.device)
    text = model.decoder.init_state(BATCH)
    size = steps * STEP_SAMPLES
    for k in range(layout.blocks):
        state = model.listen(samples[:, k * size : (k + 1) * size], torch.full((BATCH,), size), rows, state)
        begin, count = int(layout.begin[k]), int(layout.valid[k].sum())
        streamed = state.memory.features[:, begin : begin + count]
        parallel = memory.features.view(BATCH, layout.blocks, layout.size, -1)[:, k, :count]
        torch.testing.assert_close(parallel, streamed, atol=2e-5, rtol=1e-4)
        mine = slice(0, 3) if k == 0 else slice(k + 2, k + 3)
        lens = torch.full((BATCH,), tokens[:, mine].shape[1])
        said, _ = model.decoder.rows(tokens[:, mine], lens, text, state.memory)
        text = text.advance(lens)
        torch.testing.assert_close(hidden[:, mine], said, atol=2e-5, rtol=1e-4)


def test_the_old_frames_in_view_are_bounded() -> None:
    model = tiny.tiny_cross()
    model.encoder.left_context_frames = 8
    samples = sound()
    layout = Layout.of(setting(1, 0, 0), STEPS * FRAMES_PER_STEP)
    near = encode_streamed(model, frames_of(model, samples), layout).final()
    state = model.init_state(BATCH, max_chunk_steps=1, max_right=0, max_silence=0)
    rows = RowSettings.stack([SessionSettings(chunk=setting(1, 0, 0), delay_steps=1)] * BATCH, samples.device)
    for piece in samples.split(STEP_SAMPLES, 1):  # type: ignore[no-untyped-call]
        state = model.listen(piece, torch.full((BATCH,), STEP_SAMPLES), rows, state)
    torch.testing.assert_close(near, state.memory.features[:, : near.shape[1]], atol=2e-5, rtol=1e-4)


def test_every_weight_of_encoder_and_decoder_gets_a_gradient() -> None:
    model = tiny.tiny_cross().requires_grad_(True)
    layout = Layout.of(setting(2, 8, 4), STEPS * FRAMES_PER_STEP)
    memory = encode_streamed(model, frames_of(model, sound()), layout)
    tokens = torch.arange(BATCH * 5).view(BATCH, 5)
    hidden = decode_streamed(model, memory, tokens, torch.tensor([[0, 1, 2, 4, 5]] * BATCH))
    hidden.square().sum().backward()  # type: ignore[no-untyped-call]
    for part in (model.encoder, model.decoder):
        for name, weight in part.named_parameters():
            assert weight.grad is not None, name
            assert bool(torch.isfinite(weight.grad).all()), name
