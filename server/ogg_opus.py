"""Ogg Opus as it arrives: bytes in pieces of any size to samples at 48 kHz.

The packets are decoded by FFmpeg's libraries (PyAV). Its demuxers want to wait for their input, which a server cannot,
so the pages are taken apart here (RFC 3533 §6, RFC 7845 §3 and §5). Checksums are not looked at: a websocket loses and
alters nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from asr.errors import AudioFormatError, ConfigError
from asr.resample import Samples

if TYPE_CHECKING:
    from av import AudioCodecContext

OPUS_RATE = 48_000
PAGE_HEADER = struct.Struct("<4sBBqIIIB")
"""Capture pattern, version, flags, granule position, serial, sequence, checksum, number of segments."""
CONTINUED = 1
LARGEST_PACKET = 255 * 255
"""Of one page; an Opus packet has at most 1275 bytes a frame and 48 frames."""


class OggPackets:
    """The packets of one logical stream.

    Attributes:
        taken: bytes that made whole pages.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._pending = b""
        self._serial: int | None = None
        self._part: bytes | None = None

    def step(self, data: bytes) -> Iterator[bytes]:
        """The packets that are whole now.

        Raises:
            AudioFormatError: if the bytes are no Ogg, or hold more than one stream.
        """
        self._pending += data
        while (size := self._page_size()) is not None:
            page, self._pending = self._pending[:size], self._pending[size:]
            self.taken += size
            yield from self._packets(page)

    def _page_size(self) -> int | None:
        """The size of the page at the front; None until it is all there."""
        head = self._pending[: PAGE_HEADER.size]
        if not b"OggS".startswith(head[:4]):
            raise AudioFormatError(
                f"byte {self.taken} of the stream should begin an Ogg page with 'OggS'; it is {head[:4]!r}"
            )
        if len(head) < PAGE_HEADER.size:
            return None
        segments = head[-1]
        if len(self._pending) < PAGE_HEADER.size + segments:
            return None
        size = PAGE_HEADER.size + segments + sum(self._pending[PAGE_HEADER.size : PAGE_HEADER.size + segments])
        return size if len(self._pending) >= size else None

    def _packets(self, page: bytes) -> Iterator[bytes]:
        _, version, flags, _, serial, _, _, segments = PAGE_HEADER.unpack_from(page)
        if version != 0 or self._serial not in (None, serial):
            raise AudioFormatError(
                f"an Ogg page of version {version} and stream {serial}; version 0 and one stream are needed"
            )
        self._serial = serial
        if not flags & CONTINUED:
            self._part = b""
        at = PAGE_HEADER.size + segments
        for size in page[PAGE_HEADER.size : at]:
            if self._part is not None:
                self._part += page[at : at + size]
                if len(self._part) > LARGEST_PACKET:
                    raise AudioFormatError(f"an Ogg packet has more than {LARGEST_PACKET} bytes; none of Opus has")
            at += size
            if size < 255:  # the packet ends here (RFC 3533 §5)
                if self._part is not None:
                    yield self._part
                self._part = b""


class OggOpusDecoder:
    """Bytes of an Ogg Opus stream to samples.

    Args:
        channels: how many the stream was declared to have: 1 or 2 (RFC 7845, mapping family 0).

    Raises:
        ConfigError: at another number, or if PyAV, which decodes Opus, is not installed.
    """

    def __init__(self, *, channels: int) -> None:
        try:
            import av
        except ImportError:
            raise ConfigError("ogg-opus needs the package av: pip install 'earlybird-asr[server]'") from None
        if channels not in (1, 2):
            raise ConfigError(f"ogg-opus with {channels} channels; 1 or 2 are needed")
        self._av: Any = av
        self._channels = channels
        self._packets = OggPackets()
        self._codec: AudioCodecContext | None = None
        self._headers = 0

    def step(self, data: bytes) -> Samples:
        """Samples [N, channels] at 48 kHz.

        Raises:
            AudioFormatError: if it is no Ogg Opus, has another number of channels, or cannot be decoded.
        """
        parts = [self._packet(packet) for packet in self._packets.step(data)]
        return np.concatenate([np.zeros((0, self._channels), dtype=np.float32), *parts])

    def _packet(self, packet: bytes) -> Samples:
        empty = np.zeros((0, self._channels), dtype=np.float32)
        if self._codec is None:
            self._open(packet)
            return empty
        if self._headers < 2:
            self._headers += 1  # the comments
            if not packet.startswith(b"OpusTags"):
                raise AudioFormatError(f"the second packet is {packet[:8]!r}; 'OpusTags' is needed (RFC 7845)")
            return empty
        if not packet:
            return empty
        try:
            frames = self._codec.decode(self._av.Packet(packet))
        except self._av.error.FFmpegError as error:
            raise AudioFormatError(f"an Opus packet of {len(packet)} bytes cannot be decoded: {error}") from None
        return np.concatenate([empty, *(_planar(frame.to_ndarray(), self._channels) for frame in frames)])

    def _open(self, head: bytes) -> None:
        if not head.startswith(b"OpusHead") or len(head) < 19:
            raise AudioFormatError(f"the Ogg stream begins with {head[:8]!r}; 'OpusHead' is needed (RFC 7845)")
        channels = head[9]
        if channels != self._channels:
            raise AudioFormatError(f"the stream has {channels} channels; {self._channels} were declared")
        try:
            codec = self._av.CodecContext.create("libopus", "r")
            codec.extradata = head  # it also says how much of the start FFmpeg has to skip
            codec.sample_rate = OPUS_RATE
            codec.layout = "mono" if channels == 1 else "stereo"
            codec.open()
        except (self._av.error.FFmpegError, ValueError) as error:
            raise AudioFormatError(f"the Opus stream cannot be opened: {error}") from None
        self._codec, self._headers = codec, 1


def _planar(frame: np.ndarray[Any, Any], channels: int) -> Samples:
    """[N, channels] in -1..1 of a frame, interleaved [1, N·channels] or planar [channels, N], of any type."""
    interleaved = frame.reshape(-1, channels) if frame.shape[0] == 1 else frame.T
    if interleaved.dtype == np.int16:
        return interleaved.astype(np.float32) / np.float32(32768)
    return interleaved.astype(np.float32)
