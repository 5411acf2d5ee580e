"""Audio in: any file as mono samples at 16 kHz, in constant memory.

The parts: `asr.audio_file` (containers), `asr.channels` (many channels to one), `asr.resample` (any rate to 16 kHz),
`asr.pcm` (headerless bytes of a network or a microphone).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from asr.audio_file import Reader, open_reader
from asr.channels import Channel, ChannelMixer
from asr.errors import AudioFormatError, ConfigError, EmptyAudio, InvalidSamples, StreamClosed, TruncatedAudio
from asr.pcm import PcmDecoder, PcmEncoding, decode_pcm
from asr.resample import HIGHEST_RATE, LOWEST_RATE, Resampler, Samples
from asr.units import SAMPLE_RATE

__all__ = [
    "AudioSource",
    "Channel",
    "PcmDecoder",
    "PcmEncoding",
    "Resampler",
    "Samples",
    "decode_pcm",
    "display_path",
    "open_audio",
    "read_audio",
]

DEFAULT_BLOCK_SAMPLES = 4 * SAMPLE_RATE
TOLERATED_LOSS = 0.1
"""How much of the promised length may be missing without a warning."""


def display_path(path: str | os.PathLike[str]) -> str:
    r"""The name in one printable line: control characters and undecodable bytes as escapes.

    >>> display_path("a\nb.wav")
    'a\\nb.wav'
    """
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class AudioSource:
    """One open audio file; made by `open_audio`, used as a context manager, read once.

    Attributes:
        path: the file.
        sample_rate: its own rate in Hz; `blocks` gives 16 kHz.
        channels: how many it has.
        declared_seconds: the length its header promises, or None.
        warnings: after the last block: what was suspicious, one sentence each.
    """

    def __init__(self, path: Path, reader: Reader, mixer: ChannelMixer) -> None:
        self.path = path
        self.sample_rate = reader.sample_rate
        self.channels = reader.channels
        self.declared_seconds: float | None = None
        if reader.declared_frames is not None:
            self.declared_seconds = reader.declared_frames / reader.sample_rate
        self.warnings: list[str] = []
        self._reader = reader
        self._mixer = mixer
        self._started = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; harmless when called twice."""
        self._reader.close()

    def blocks(self, block_samples: int = DEFAULT_BLOCK_SAMPLES) -> Iterator[Samples]:
        """Mono blocks [block_samples] at 16 kHz, the last one shorter.

        Raises:
            EmptyAudio: if there is no sample.
            TruncatedAudio: if none of the promised samples can be decoded.
            InvalidSamples: at a NaN or an infinity, with its place.
            ConfigError: if `block_samples` is below 1.
            StreamClosed: if the file was read already.
        """
        if self._started:
            raise StreamClosed(f"{display_path(self.path)}: was read already; open it again")
        self._started = True
        if block_samples < 1:
            raise ConfigError(f"block_samples is {block_samples}; it must be at least 1")
        held = np.zeros(0, dtype=np.float32)
        for samples in self._resampled(max(1, block_samples * self.sample_rate // SAMPLE_RATE)):
            held = np.concatenate([held, samples])
            while len(held) >= block_samples:
                yield held[:block_samples]
                held = held[block_samples:]
        if len(held):
            yield held

    def _resampled(self, read_frames: int) -> Iterator[Samples]:
        resampler = Resampler(self.sample_rate)
        while len(frames := self._reader.read(read_frames)):
            try:
                mono = self._mixer.step(frames)
            except InvalidSamples as error:
                raise InvalidSamples(f"{display_path(self.path)}: {error}") from error
            yield resampler.step(mono)
        self._check_length()
        yield resampler.finish()

    def _check_length(self) -> None:
        declared, decoded = self._reader.declared_frames, self._mixer.frames
        problem = self._reader.problem
        if not decoded:
            if problem is not None or declared:
                reason = problem or "it ends after the header"
                raise TruncatedAudio(
                    f"{display_path(self.path)}: header promised {self.declared_seconds or 0:.1f} s, "
                    f"nothing could be decoded: {reason}"
                )
            raise EmptyAudio(f"{display_path(self.path)}: has a header and no samples")
        decoded_seconds = decoded / self.sample_rate
        if declared is not None and abs(declared - decoded) > TOLERATED_LOSS * max(declared, decoded):
            self.warnings.append(
                f"header promised {declared / self.sample_rate:.1f} s, {decoded_seconds:.1f} s decoded"
            )
        if problem is not None:
            self.warnings.append(f"decoding stopped at {decoded_seconds:.1f} s: {problem}")
        self.warnings += self._mixer.warnings()


def open_audio(path: str | os.PathLike[str], *, channel: Channel = "mix") -> AudioSource:
    """Open an audio file, whatever its container, rate and number of channels.

    libsndfile reads it (WAV, FLAC, Ogg Vorbis and Opus, MP3, AIFF, ...), or else the ffmpeg executable if there is one.

    Args:
        path: a file; any name is safe.
        channel: which channel to hear, from 0, or "mix".

    Raises:
        ConfigError: if there is no such channel.
        EmptyAudio, NoAudioTrack, TruncatedAudio, UnknownContainer: see `asr.errors`.
        AudioFormatError: if it cannot be opened, or its rate is outside 8..48 kHz.
    """
    path = Path(path)
    try:
        reader = open_reader(path)
    except AudioFormatError as error:
        raise type(error)(f"{display_path(path)}: {error}") from error
    try:
        if not LOWEST_RATE <= reader.sample_rate <= HIGHEST_RATE:
            raise AudioFormatError(
                f"{display_path(path)}: has {reader.sample_rate} Hz; {LOWEST_RATE} to {HIGHEST_RATE} Hz are needed"
            )
        try:
            mixer = ChannelMixer(channels=reader.channels, channel=channel)
        except ConfigError as error:
            raise ConfigError(f"{display_path(path)}: {error}") from error
    except (AudioFormatError, ConfigError):
        reader.close()
        raise
    return AudioSource(path, reader, mixer)


def read_audio(path: str | os.PathLike[str], *, channel: Channel = "mix") -> Samples:
    """The whole file as [N] mono samples at 16 kHz.

    Raises:
        EarlybirdError: as `open_audio` and `AudioSource.blocks` do.
    """
    with open_audio(path, channel=channel) as source:
        return np.concatenate(list(source.blocks()))
