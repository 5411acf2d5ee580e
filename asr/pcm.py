"""Headerless PCM: bytes to samples."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from asr.channels import Channel, ChannelMixer
from asr.errors import AudioFormatError, ConfigError, StreamClosed
from asr.resample import Resampler, Samples

PcmEncoding = Literal["pcm_s16le", "pcm_f32le", "mulaw", "alaw"]
BYTES_PER_SAMPLE: dict[PcmEncoding, int] = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}

CONTAINER_MAGIC = {
    b"RIFF": "WAV (RIFF)",
    b"RF64": "WAV (RF64)",
    b"FORM": "AIFF",
    b"OggS": "Ogg",
    b"\x1aE\xdf\xa3": "WebM or Matroska (EBML)",
    b"fLaC": "FLAC",
    b"ID3": "MP3 (ID3)",
}
MAGIC_BYTES = max(len(magic) for magic in CONTAINER_MAGIC)


def _mulaw_table() -> Samples:
    """G.711 µ-law: 8-bit code to sample."""
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    magnitude = ((((code & 0x0F) << 3) + 0x84) << ((code & 0x70) >> 4)) - 0x84
    return (np.where(code & 0x80, -magnitude, magnitude) / 32768).astype(np.float32)


def _alaw_table() -> Samples:
    """G.711 A-law: 8-bit code to sample."""
    code = np.arange(256, dtype=np.int32) ^ 0x55
    mantissa, segment = (code & 0x0F) << 4, (code & 0x70) >> 4
    magnitude = np.where(segment == 0, mantissa + 8, (mantissa + 0x108) << np.maximum(segment - 1, 0))
    return (np.where(code & 0x80, magnitude, -magnitude) / 32768).astype(np.float32)


_TABLES: dict[PcmEncoding, Samples] = {"mulaw": _mulaw_table(), "alaw": _alaw_table()}


def decode_pcm(data: bytes, encoding: PcmEncoding, channels: int) -> Samples:
    """Samples [N, channels] of interleaved PCM.

    Args:
        data: whole frames (one sample of each channel).
        encoding: "pcm_s16le", "pcm_f32le", "mulaw" or "alaw".
        channels: at least 1.

    Raises:
        ConfigError: if the encoding is unknown or `channels` is below 1.
        AudioFormatError: if `data` ends within a frame.

    Example:
        >>> decode_pcm(bytes([0x00, 0x40, 0x00, 0xC0]), "pcm_s16le", 1).tolist()
        [[0.5], [-0.5]]
    """
    frame_bytes = _frame_bytes(encoding, channels)
    if len(data) % frame_bytes:
        raise AudioFormatError(
            f"{len(data)} bytes of {encoding} with {channels} channels; a multiple of {frame_bytes} is needed"
        )
    samples: Samples
    if encoding == "pcm_s16le":
        samples = np.frombuffer(data, dtype="<i2").astype(np.float32) / np.float32(32768)
    elif encoding == "pcm_f32le":
        samples = np.frombuffer(data, dtype="<f4").astype(np.float32)
    else:
        samples = _TABLES[encoding][np.frombuffer(data, dtype=np.uint8)]
    return samples.reshape(-1, channels)


def _frame_bytes(encoding: PcmEncoding, channels: int) -> int:
    if encoding not in BYTES_PER_SAMPLE:
        raise ConfigError(f"PCM encoding is {encoding!r}; it must be one of {', '.join(get_args(PcmEncoding))}")
    if channels < 1:
        raise ConfigError(f"{channels} channels; at least 1 is needed")
    return BYTES_PER_SAMPLE[encoding] * channels


class PcmDecoder:
    """PCM bytes in pieces of any size to mono samples at 16 kHz.

    The first bytes are held back until they can be told from a container's: a WAV file sent as PCM is an error, not
    noise.

    Args:
        encoding: as in `decode_pcm`.
        sample_rate: 8000..48000 Hz.
        channels: how many are interleaved.
        channel: which one to hear, from 0, or "mix".

    Raises:
        ConfigError: if one of the four cannot work.
    """

    def __init__(self, encoding: PcmEncoding, *, sample_rate: int, channels: int = 1, channel: Channel = "mix") -> None:
        self._encoding: PcmEncoding = encoding
        self._channels = channels
        self._frame_bytes = _frame_bytes(encoding, channels)
        self._mixer = ChannelMixer(channels=channels, channel=channel)
        self._resampler = Resampler(sample_rate)
        self._pending = b""
        self._magic_checked = False
        self._finished = False

    def step(self, data: bytes) -> Samples:
        """Samples [M] at 16 kHz; bytes of an unfinished frame are kept for the next call.

        Raises:
            AudioFormatError: if the stream begins like a container file.
            InvalidSamples: if a sample is NaN or infinite.
            StreamClosed: after `finish`.
        """
        if self._finished:
            raise StreamClosed("the PCM stream was finished; make a new decoder for the next one")
        self._pending += data
        if not self._magic_checked:
            if len(self._pending) < MAGIC_BYTES:
                return np.zeros(0, dtype=np.float32)
            self._check_magic()
        whole = len(self._pending) - len(self._pending) % self._frame_bytes
        ready, self._pending = self._pending[:whole], self._pending[whole:]
        return self._decode(ready)

    def finish(self) -> Samples:
        """The rest [M] at 16 kHz.

        Raises:
            AudioFormatError: if the stream ended within a frame.
            StreamClosed: if called twice.
        """
        if self._finished:
            raise StreamClosed("the PCM stream was finished already")
        self._finished = True
        dangling = len(self._pending) % self._frame_bytes
        if dangling:
            raise AudioFormatError(
                f"the stream ended with {dangling} bytes of an unfinished frame; "
                f"{self._encoding} with {self._channels} channels has {self._frame_bytes} bytes a frame"
            )
        return np.concatenate([self._decode(self._pending), self._resampler.finish()])

    def warnings(self) -> list[str]:
        """What is suspicious about the audio so far, one sentence each."""
        return self._mixer.warnings()

    def _decode(self, data: bytes) -> Samples:
        return self._resampler.step(self._mixer.step(decode_pcm(data, self._encoding, self._channels)))

    def _check_magic(self) -> None:
        for magic, container in CONTAINER_MAGIC.items():
            if self._pending.startswith(magic):
                raise AudioFormatError(
                    f"the stream was declared as {self._encoding} and begins like a {container} file; "
                    "send its samples, or open the file with asr.audio.open_audio"
                )
        self._magic_checked = True
