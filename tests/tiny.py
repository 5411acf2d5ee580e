"""Models with random weights, small enough for tests, and sound to feed them."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from asr.adapter import Adapter
from asr.additive import AdditiveDecoder
from asr.additive_recogniser import AdditiveRecogniser
from asr.config import AnchorConfig, ChunkSetting, GateConfig, RowSettings, SessionSettings
from asr.cross import CrossDecoder
from asr.cross_recogniser import CrossRecogniser
from asr.ctc import CtcHead
from asr.encoder import Encoder, causal_encoder, causal_whisper_encoder, whisper_encoder
from asr.frontend import Frontend
from asr.gate import AttentionGate, Gate, GateAnswer, GateView

MEL_BINS, DIM, HEADS, VOCABULARY = 12, 16, 2, 24
PROMPT, END = (22, 23), 21
ANCHORS = AnchorConfig(
    limit_frames=96,
    pause_after_frames=64,
    pause_frames=12,
    keep_frames=40,
    text_limit=24,
    tail_frames=8,
    voiced_frames=12,
)

M = TypeVar("M", bound=nn.Module)


def randomised(module: M, seed: int = 0) -> M:
    """The module with reproducible weights of a size at which its outputs depend on its inputs."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        scale = 0.3 if parameter.dim() == 1 or "positions" in name else parameter[0].numel() ** -0.5
        values = torch.randn(parameter.shape, generator=generator) * scale
        parameter.data = 1 + values if name.endswith("norm.weight") else values
    return module.eval().requires_grad_(False)


def sound(samples: int, seed: int = 0) -> Tensor:
    """[samples] noise in bursts: loud, faint and silent stretches of 20 ms and more."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.randint(-6, 1, (samples // 960 + 1,), generator=generator).float()
    envelope = torch.where(level < -4, 0.0, 10.0**level).repeat_interleave(960)[:samples]
    return torch.randn(samples, generator=generator) * envelope * 0.3


def settings(delay: int, chunk: int, right: int = 0, silence: int = 0) -> SessionSettings:
    """τ and c in steps, R and S in frames."""
    setting = ChunkSetting(chunk_steps=chunk, right_frames=right, silence_frames=silence)
    return SessionSettings(chunk=setting, delay_steps=delay)


def rows_of(*chosen: SessionSettings) -> RowSettings:
    return RowSettings.stack(list(chosen))


def tiny_frontend() -> Frontend:
    return randomised(Frontend(mel_bins=MEL_BINS, dim=DIM))


def tiny_whisper_encoder(left_context_frames: int = 40) -> Encoder:
    return randomised(whisper_encoder(layers=2, dim=DIM, heads=HEADS, left_context_frames=left_context_frames))


def tiny_causal_encoder(window_frames: int = 9) -> Encoder:
    return randomised(
        causal_encoder(layers=2, dim=DIM, heads=HEADS, head_dim=8, hidden=24, theta=1e4, window_frames=window_frames)
    )


def tiny_causal_whisper_encoder(window_frames: int = 9) -> Encoder:
    return randomised(causal_whisper_encoder(layers=2, dim=DIM, heads=HEADS, theta=1e4, window_frames=window_frames))


def tiny_cross_decoder(text_positions: int = 48) -> CrossDecoder:
    return randomised(
        CrossDecoder(
            vocabulary=VOCABULARY,
            layers=2,
            dim=DIM,
            heads=HEADS,
            text_positions=text_positions,
            alignment_heads=((0, 1), (1, 0)),
        )
    )


def tiny_ctc() -> CtcHead:
    return randomised(CtcHead(dim=DIM, hidden=10, pieces=6), seed=2)


def word_tables() -> dict[str, Tensor]:
    """Pieces 0..9 begin words, 10..17 continue them, 18..20 are signs, the rest is special."""
    index = torch.arange(VOCABULARY)
    return {
        "begins_word": index < 10,
        "letters": index < 18,
        "banned": index > END,
        "banned_first": (index >= 18) & (index < END),
    }


class EverySecondStep:
    """A gate that lets a token go at every second step, whatever the sound is."""

    def __call__(self, view: GateView) -> GateAnswer:
        """Open rows; what is written is said to have been heard τ ago."""
        frame = (view.now - 1 - 4 * view.delay).clamp(min=0)
        return GateAnswer((view.now // 4 % 2 == 0) & ~view.ended, frame)


def tiny_cross(
    *,
    anchors: AnchorConfig = ANCHORS,
    gate: Gate | None = None,
    text_positions: int = 48,
    max_frames: int = 120,
    left_context_frames: int = 40,
    ctc: CtcHead | None = None,
) -> CrossRecogniser:
    if gate is None:
        gate = AttentionGate(
            GateConfig(hold_frames=8, sure_probability=0.1, careful_tokens=1, pause_frames=12, sink_frames=1)
        )
    return randomised(
        CrossRecogniser(
            frontend=tiny_frontend(),
            encoder=tiny_whisper_encoder(left_context_frames),
            decoder=tiny_cross_decoder(text_positions),
            gate=gate,
            anchors=anchors,
            prompt=PROMPT,
            end_id=END,
            max_frames=max_frames,
            ctc=ctc,
            **word_tables(),
        ),
        seed=3,
    )


def tiny_additive_decoder(window_steps: int = 6) -> AdditiveDecoder:
    return randomised(
        AdditiveDecoder(
            outputs=VOCABULARY + 1,
            layers=2,
            dim=DIM,
            heads=4,
            kv_heads=2,
            head_dim=8,
            hidden=24,
            theta=1e4,
            window_steps=window_steps,
            condition_dim=6,
        )
    )


def tiny_additive() -> AdditiveRecogniser:
    tables = word_tables()
    model = randomised(
        AdditiveRecogniser(
            frontend=tiny_frontend(),
            encoder=tiny_causal_encoder(),
            adapter=Adapter(frame_dim=DIM, dim=DIM),
            decoder=tiny_additive_decoder(),
            begins_word=tables["begins_word"],
            letters=tables["letters"],
            banned=tables["banned"],
        ),
        seed=1,
    )
    model.adapter.second.weight.mul_(4)  # so that what is heard counts more than what was said
    model.decoder.embedding.weight[model.wait] *= 3  # and it waits now and then
    return model
