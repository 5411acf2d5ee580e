"""A model: a recogniser with its vocabulary, the settings it was made for, and a name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeGuard

import torch

from asr.additive_config import AdditiveConfig
from asr.additive_recogniser import AdditiveRecogniser
from asr.config import AnchorConfig, ChunkSetting, GateConfig, SessionLimits, SessionSettings
from asr.cross import CrossDecoder
from asr.cross_recogniser import CrossRecogniser
from asr.ctc import CtcHead
from asr.ctc_tokenizer import CtcTokenizer
from asr.encoder import whisper_encoder
from asr.errors import CheckpointError
from asr.frontend import Frontend
from asr.gate import AttentionGate, CorrectingGate, Gate, LearnedGate
from asr.mtp import MtpHeads
from asr.units import FRAMES_PER_STEP, STEP_MS
from asr.vocabulary import Vocabulary

SETTLED_FRAMES = 16
"""With so much right context a frame hardly changes any more."""


@dataclass(frozen=True, kw_only=True)
class CrossConfig:
    """Shape and settings of a cross-family model, as `config.json` holds them.

    A part that not every checkpoint has is a field with a default that means "not there": the configuration alone says
    what is built, and the weights must fit it exactly.
    """

    mel_bins: int
    dim: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    vocabulary: int
    text_positions: int
    max_frames: int
    alignment_heads: tuple[tuple[int, int], ...]
    prompt: tuple[int, ...]
    end_id: int
    banned: tuple[int, ...]
    banned_first: tuple[int, ...]
    limits: SessionLimits
    left_context_frames: int = 500
    gate: GateConfig = field(default_factory=GateConfig)
    anchors: AnchorConfig = field(default_factory=AnchorConfig)
    gate_hidden: int | None = None  # width of the learned gate; None: the attention gate
    gate_corrects: bool = False  # whether it corrects the attention gate instead of replacing it
    ctc_hidden: int | None = None  # width of the CTC head; None: there is none
    ctc_pieces: int = 0
    mtp_heads: int = 0  # pieces guessed ahead; 0: there are no such heads
    mtp_pieces: int = 0  # they guess among so many of the first, most frequent, pieces

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CrossConfig:
        """Raises CheckpointError for missing or unknown keys."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise CheckpointError(f"the configuration has unknown keys {unknown}; known are {sorted(known)}")
        try:
            limits = values["limits"]
            return cls(
                **{
                    **values,
                    "alignment_heads": tuple((int(a), int(b)) for a, b in values["alignment_heads"]),
                    "prompt": tuple(values["prompt"]),
                    "banned": tuple(values["banned"]),
                    "banned_first": tuple(values["banned_first"]),
                    "limits": SessionLimits(
                        chunks=tuple(ChunkSetting(**c) for c in limits["chunks"]), delays=tuple(limits["delays"])
                    ),
                    "gate": GateConfig(**values.get("gate", {})),
                    "anchors": AnchorConfig(**values.get("anchors", {})),
                }
            )
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"the configuration is incomplete or has a wrong field: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        return asdict(self)


def build_cross(config: CrossConfig, vocabulary: Vocabulary) -> CrossRecogniser:
    """The recogniser that a configuration describes, its weights not yet loaded."""
    size = config.vocabulary
    banned = torch.zeros(size, dtype=torch.bool)
    banned[vocabulary.special_from + 1 :] = True
    banned[list(config.banned)] = True
    banned_first = torch.zeros(size, dtype=torch.bool)
    banned_first[list(config.banned_first)] = True
    gate: Gate = AttentionGate(config.gate)
    if config.gate_hidden is not None:
        kind = CorrectingGate if config.gate_corrects else LearnedGate
        gate = kind(config.gate, dim=config.dim, hidden=config.gate_hidden)
    ctc = None
    if config.ctc_hidden is not None:
        ctc = CtcHead(dim=config.dim, hidden=config.ctc_hidden, pieces=config.ctc_pieces)
    return CrossRecogniser(
        frontend=Frontend(mel_bins=config.mel_bins, dim=config.dim),
        encoder=whisper_encoder(
            layers=config.encoder_layers,
            dim=config.dim,
            heads=config.heads,
            left_context_frames=config.left_context_frames,
        ),
        decoder=CrossDecoder(
            vocabulary=size,
            layers=config.decoder_layers,
            dim=config.dim,
            heads=config.heads,
            text_positions=config.text_positions,
            alignment_heads=config.alignment_heads,
        ),
        gate=gate,
        anchors=config.anchors,
        prompt=config.prompt,
        end_id=config.end_id,
        begins_word=vocabulary.begins_word(size),
        letters=vocabulary.letters(size),
        banned=banned,
        banned_first=banned_first,
        max_frames=config.max_frames,
        pause_frames=config.gate.pause_frames,
        ctc=ctc,
        mtp=MtpHeads(dim=config.dim, heads=config.mtp_heads, pieces=config.mtp_pieces) if config.mtp_heads else None,
        sink_frames=config.gate.sink_frames,
    )


def has_ctc_head(config: CrossConfig | AdditiveConfig) -> TypeGuard[CrossConfig]:
    """Whether a configuration describes a CTC head."""
    return isinstance(config, CrossConfig) and config.ctc_hidden is not None


def _pieces(count: int | None) -> str:
    return "none" if count is None else f"{count} pieces"


@dataclass(frozen=True, kw_only=True)
class Model:
    """What `asr.load` gives.

    Attributes:
        name: the checkpoint's name.
        config: its configuration.
        recogniser: weights only; every stream's state is outside.
        vocabulary: the decoder's pieces.
        ctc_tokenizer: the CTC head's pieces, exactly where the configuration has a head.

    Raises:
        CheckpointError: if there are CTC pieces without a head, a head without pieces, or another number of them.
    """

    name: str
    config: CrossConfig | AdditiveConfig
    recogniser: CrossRecogniser | AdditiveRecogniser
    vocabulary: Vocabulary
    ctc_tokenizer: CtcTokenizer | None = None

    def __post_init__(self) -> None:
        head = self.config.ctc_pieces if has_ctc_head(self.config) else None
        pieces = None if self.ctc_tokenizer is None else len(self.ctc_tokenizer.pieces)
        if head != pieces:
            raise CheckpointError(
                f"{self.name}: the configuration has {_pieces(head)} for a CTC head, the CTC tokenizer has "
                f"{_pieces(pieces)}; a head needs the tokenizer that it was trained with, and no other model has one"
            )

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.recogniser.parameters()).device

    @property
    def has_mtp_heads(self) -> bool:
        """Whether heads guess several pieces ahead (`asr.mtp`)."""
        return isinstance(self.config, CrossConfig) and self.config.mtp_heads > 0

    def settings(self, *, delay_ms: int, chunk_ms: int) -> SessionSettings:
        """A session's settings; ConfigError with the list of trained ones for any other."""
        return self.config.limits.choose(delay_ms=delay_ms, chunk_ms=chunk_ms)

    def lateness_steps(self, settings: SessionSettings) -> int:
        """Steps after a word's end within which its text comes, if it comes.

        These are the delay, what the gate may hold an unsure token or one that looks like a repeat back for, and what
        of the right context still changes a word's frames much.
        """
        late = min(settings.chunk.right_frames, SETTLED_FRAMES)
        if isinstance(self.config, CrossConfig):
            gate = self.config.gate
            late += max(0, gate.offset_frames) + max(gate.hold_frames, gate.stuck_frames)
        return settings.delay_steps - (-late // FRAMES_PER_STEP)

    def describe(self) -> dict[str, object]:
        """What `earlybird models` prints."""
        limits = self.config.limits
        return {
            "name": self.name,
            "parameters": sum(p.numel() for p in self.recogniser.parameters()),
            "chunk_ms": [chunk.chunk_steps * STEP_MS for chunk in limits.chunks],
            "delay_ms": [delay * STEP_MS for delay in limits.delays],
        }
