from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import AudioFormatError, ConfigError, InvalidSamples, StreamClosed
from asr.pcm import CONTAINER_MAGIC, PcmDecoder, PcmEncoding, decode_pcm

ALL_CODES = bytes(range(256))
ENCODINGS: tuple[PcmEncoding, ...] = ("pcm_s16le", "pcm_f32le", "mulaw", "alaw")


@pytest.mark.parametrize(("encoding", "subtype"), [("mulaw", "ULAW"), ("alaw", "ALAW")])
def test_every_telephone_code_decodes_as_libsndfile_decodes_it(
    tmp_path: Path, encoding: PcmEncoding, subtype: str
) -> None:
    (tmp_path / "codes.raw").write_bytes(ALL_CODES)
    wanted, _ = soundfile.read(
        tmp_path / "codes.raw", dtype="float32", samplerate=8_000, channels=1, format="RAW", subtype=subtype
    )
    np.testing.assert_array_equal(decode_pcm(ALL_CODES, encoding, 1)[:, 0], wanted)


def test_known_values() -> None:
    assert decode_pcm(b"\x00\x80\xff\x7f", "pcm_s16le", 2).tolist() == [[-1.0, 32767 / 32768]]
    assert decode_pcm(np.array([0.25, -2.0], "<f4").tobytes(), "pcm_f32le", 1).tolist() == [[0.25], [-2.0]]
    assert decode_pcm(b"\xff\x7f", "mulaw", 1).tolist() == [[0.0], [0.0]]
    assert decode_pcm(b"", "alaw", 3).shape == (0, 3)


def test_a_torn_frame_and_an_unknown_encoding() -> None:
    with pytest.raises(AudioFormatError, match=r"6 bytes of pcm_s16le with 2 channels; a multiple of 4"):
        decode_pcm(bytes(6), "pcm_s16le", 2)
    with pytest.raises(ConfigError, match="'pcm_s24le'; it must be one of pcm_s16le, pcm_f32le, mulaw, alaw"):
        decode_pcm(b"", "pcm_s24le", 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="0 channels"):
        decode_pcm(b"", "alaw", 0)


def decode_in_pieces(data: bytes, sizes: list[int], encoding: PcmEncoding, rate: int, channels: int) -> np.ndarray:
    decoder, position, parts = PcmDecoder(encoding, sample_rate=rate, channels=channels), 0, []
    for size in [*sizes, len(data)]:
        parts.append(decoder.step(data[position : position + size]))
        position += size
    return np.concatenate([*parts, decoder.finish()])


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(
    sizes=st.lists(st.integers(0, 50), max_size=20), channels=st.integers(1, 3), rate=st.sampled_from([16_000, 8_000])
)
def test_any_split_of_the_bytes_gives_the_same_samples(
    encoding: PcmEncoding, sizes: list[int], channels: int, rate: int
) -> None:
    values = np.random.default_rng(1).uniform(-0.5, 0.5, 60 * channels)
    coded = {
        "pcm_s16le": (values * 32_767).astype("<i2").tobytes(),
        "pcm_f32le": values.astype("<f4").tobytes(),
        "mulaw": ALL_CODES[: 60 * channels],
        "alaw": ALL_CODES[: 60 * channels],
    }
    whole = decode_in_pieces(coded[encoding], [], encoding, rate, channels)
    assert len(whole) == 60 * 16_000 // rate
    np.testing.assert_array_equal(decode_in_pieces(coded[encoding], sizes, encoding, rate, channels), whole)


@pytest.mark.parametrize("magic", CONTAINER_MAGIC)
@pytest.mark.parametrize("piece", [1, 3, 100])
def test_a_container_sent_as_pcm_is_an_error(magic: bytes, piece: int) -> None:
    data = magic + bytes(range(64))
    decoder = PcmDecoder("pcm_s16le", sample_rate=16_000)
    pieces = (decoder.step(data[start : start + piece]) for start in range(0, len(data), piece))
    with pytest.raises(AudioFormatError, match="declared as pcm_s16le and begins like a"):
        list(pieces)


def test_the_same_bytes_later_in_the_stream_are_audio() -> None:
    assert len(decode_in_pieces(bytes(4) + b"RIFFfLaC", [4, 4], "pcm_s16le", 16_000, 1)) == 6


def test_a_stream_shorter_than_a_magic_number_is_kept() -> None:
    assert decode_in_pieces(b"\x00\x40", [1], "pcm_s16le", 16_000, 1).tolist() == [0.5]


@pytest.mark.parametrize(("encoding", "data", "count"), [("pcm_s16le", bytes(5), 1), ("pcm_f32le", bytes(7), 3)])
def test_dangling_bytes_at_the_end(encoding: PcmEncoding, data: bytes, count: int) -> None:
    decoder = PcmDecoder(encoding, sample_rate=16_000)
    decoder.step(data)
    with pytest.raises(AudioFormatError, match=f"ended with {count} bytes of an unfinished frame"):
        decoder.finish()


def test_nan_is_named_with_its_place() -> None:
    decoder = PcmDecoder("pcm_f32le", sample_rate=16_000)
    with pytest.raises(InvalidSamples, match="sample 2 is nan"):
        decoder.step(np.array([0, 0, np.nan], "<f4").tobytes())


def test_channels_are_chosen_and_watched() -> None:
    interleaved = np.array([8_192, -8_192] * 10, "<i2").tobytes()
    chosen = PcmDecoder("pcm_s16le", sample_rate=16_000, channels=2, channel=1)
    assert set(chosen.step(interleaved).tolist()) == {-0.25}
    mixed = PcmDecoder("pcm_s16le", sample_rate=16_000, channels=2)
    mixed.step(interleaved)
    assert "opposite phase" in mixed.warnings()[0]


def test_nothing_after_the_end() -> None:
    decoder = PcmDecoder("alaw", sample_rate=8_000)
    assert len(decoder.finish()) == 0
    with pytest.raises(StreamClosed):
        decoder.step(b"")
    with pytest.raises(StreamClosed):
        decoder.finish()
