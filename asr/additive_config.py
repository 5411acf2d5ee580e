"""The additive family's configuration, as a checkpoint's `config.json` holds it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from asr.config import ChunkSetting, SessionLimits
from asr.errors import CheckpointError, ConfigError

EncoderKind = Literal["voxtral", "whisper"]


@dataclass(frozen=True, kw_only=True)
class AdditiveConfig:
    """Shape and settings of an additive-family model.

    Attributes:
        mel_bins: F.
        encoder_kind: "voxtral", or "whisper": its layers, causal and with relative positions, so that its weights fit.
        encoder_dim, encoder_layers, encoder_heads, encoder_head_dim, encoder_hidden, encoder_theta: the encoder.
        encoder_window_frames: encoder frames that a frame may see, itself included.
        dim, layers, heads, kv_heads, head_dim, hidden, theta: the decoder.
        window_steps: decoder rows that a row may see, itself included.
        condition_dim: inner size of the delay's conditioning.
        vocabulary: V text ids; the wait's id is V.
        limits: what sessions may choose from; the encoder is causal, so without right context and silence.
    """

    mel_bins: int
    encoder_dim: int
    encoder_layers: int
    encoder_heads: int
    encoder_head_dim: int
    encoder_hidden: int
    encoder_window_frames: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    window_steps: int
    vocabulary: int
    limits: SessionLimits
    encoder_kind: EncoderKind = "voxtral"
    condition_dim: int = 32
    encoder_theta: float = 1e6
    theta: float = 1e6

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value < 1:
                raise ConfigError(f"{field.name} is {value}; it must be at least 1")
        for name in ("dim", "head_dim", "encoder_head_dim"):
            if getattr(self, name) % 2:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be even")
        if self.encoder_kind not in ("voxtral", "whisper"):
            raise ConfigError(f"encoder_kind is {self.encoder_kind!r}; it must be 'voxtral' or 'whisper'")
        if self.encoder_kind == "whisper" and (
            self.encoder_hidden != 4 * self.encoder_dim
            or self.encoder_heads * self.encoder_head_dim != self.encoder_dim
        ):
            raise ConfigError(
                f"a Whisper's heads share its channels, and four times as many are inside; got {self.encoder_heads} "
                f"heads of {self.encoder_head_dim}, and {self.encoder_hidden} in {self.encoder_dim}"
            )
        if self.heads % self.kv_heads:
            raise ConfigError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        for chunk in self.limits.chunks:
            if chunk.right_frames or chunk.silence_frames:
                raise ConfigError(f"a causal encoder has no right context and no silence frames; got {chunk}")

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> AdditiveConfig:
        """The inverse of `to_json`.

        Raises:
            CheckpointError: for missing or unknown keys.
            ConfigError: for values that cannot work.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise CheckpointError(f"the configuration has unknown keys {unknown}; known are {sorted(known)}")
        try:
            limits = values["limits"]
            chunks = tuple(ChunkSetting(**chunk) for chunk in limits["chunks"])
            return cls(**{**values, "limits": SessionLimits(chunks=chunks, delays=tuple(limits["delays"]))})
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"the configuration is incomplete or has a wrong field: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Plain values for `config.json`."""
        return asdict(self)
