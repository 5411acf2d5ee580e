import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.errors import AudioFormatError, ConfigError
from server.ogg_opus import PAGE_HEADER, OggOpusDecoder, OggPackets

CLIP = Path(__file__).resolve().parent.parent.parent / "samples" / "audio" / "1034-121119-0000.opus"


def page(payload: list[bytes], *, flags: int = 0, serial: int = 7, version: int = 0) -> bytes:
    """A page with these packets, the last one whole."""
    sizes: list[int] = []
    for packet in payload:
        sizes += [255] * (len(packet) // 255) + [len(packet) % 255]
    return PAGE_HEADER.pack(b"OggS", version, flags, 0, serial, 0, 0, len(sizes)) + bytes(sizes) + b"".join(payload)


def head(channels: int = 1) -> bytes:
    return b"OpusHead" + struct.pack("<BBHIhB", 1, channels, 312, 48_000, 0, 0)


def decode(data: bytes, channels: int = 1, size: int = 1_000) -> np.ndarray:
    decoder = OggOpusDecoder(channels=channels)
    return np.concatenate([decoder.step(data[at : at + size]) for at in range(0, len(data), size)])


def test_it_is_what_libsndfile_makes_of_the_file() -> None:
    reference, rate = soundfile.read(CLIP, dtype="float32")
    samples = soxr.resample(decode(CLIP.read_bytes())[:, 0], 48_000, rate)
    assert 0 <= len(samples) - len(reference) <= 0.02 * rate, "up to a frame of padding at the end"
    assert np.corrcoef(samples[: len(reference)], reference)[0, 1] > 0.99, "and no sample early or late"


@settings(max_examples=10, deadline=None)
@given(size=st.integers(1, 5_000))
def test_any_split_of_the_bytes_gives_the_same_samples(size: int) -> None:
    data = CLIP.read_bytes()[:20_000]
    assert np.array_equal(decode(data, size=size), decode(data, size=20_000))


def test_two_channels(tmp_path: Path) -> None:
    tone = np.sin(np.arange(48_000) * 0.05).astype(np.float32) * 0.5
    soundfile.write(tmp_path / "a.opus", np.stack([tone, 0 * tone], 1), 48_000, format="OGG", subtype="OPUS")
    samples = decode((tmp_path / "a.opus").read_bytes(), channels=2)
    assert np.abs(samples[:, 0]).max() > 0.3
    assert np.abs(samples[:, 1]).max() < 0.05


def test_packets_across_segments_and_pages() -> None:
    long = bytes(range(256)) * 3
    data = page([b"a", b"", long])
    packets = OggPackets()
    assert list(packets.step(data)) == [b"a", b"", long]
    first = PAGE_HEADER.pack(b"OggS", 0, 0, 0, 7, 0, 0, 1) + bytes([255]) + long[:255]
    second = PAGE_HEADER.pack(b"OggS", 0, 1, 0, 7, 1, 0, 1) + bytes([10]) + long[255:265]
    assert list(packets.step(first)) == []
    assert list(packets.step(second)) == [long[:265]]
    assert packets.taken == len(data) + len(first) + len(second)


def test_a_continuation_without_its_beginning_is_left_out() -> None:
    assert list(OggPackets().step(page([b"rest", b"whole"], flags=1))) == [b"whole"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"RIFF" + bytes(30), r"byte 0 of the stream should begin an Ogg page with 'OggS'; it is b'RIFF'"),
        (page([b"x"], version=1), "version 1"),
        (page([head()]) + page([b"x"], serial=8), "stream 8"),
        (page([b"vorbis.." + bytes(20)]), "'OpusHead' is needed"),
        (page([head()[:12]]), "'OpusHead' is needed"),
        (page([head(2)]), "the stream has 2 channels; 1 were declared"),
        (page([head()]) + page([b"NoTags"]), "'OpusTags' is needed"),
        (page([head()]) + page([b"OpusTags"]) + page([b"\xff\xff\xff"]), "an Opus packet of 3 bytes cannot be decoded"),
    ],
)
def test_what_is_no_ogg_opus(data: bytes, says: str) -> None:
    with pytest.raises(AudioFormatError, match=says):
        decode(data)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300), begun=st.booleans())
def test_any_bytes_are_samples_or_a_typed_error(data: bytes, begun: bool) -> None:
    decoder = OggOpusDecoder(channels=1)
    if begun:
        decoder.step(page([head()]) + page([b"OpusTags"]))
        data = page([data])
    try:
        samples = decoder.step(data)
    except AudioFormatError:
        return
    assert samples.shape[1] == 1
    assert np.isfinite(samples).all()


def test_channels_that_ogg_opus_has_not() -> None:
    with pytest.raises(ConfigError, match="ogg-opus with 6 channels"):
        OggOpusDecoder(channels=6)
