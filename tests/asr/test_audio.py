import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from asr.audio import display_path, open_audio, read_audio
from asr.errors import (
    AudioFormatError,
    ConfigError,
    EmptyAudio,
    InvalidSamples,
    NoAudioTrack,
    StreamClosed,
    TruncatedAudio,
    UnknownContainer,
)

LOSSLESS = [
    ("wav", "WAV", "PCM_16", 2**-15),
    ("wav", "WAV", "PCM_24", 2**-23),
    ("wav", "WAV", "PCM_32", 1e-6),
    ("wav", "WAV", "FLOAT", 0.0),
    ("wav", "WAV", "DOUBLE", 0.0),
    ("wav", "WAV", "ULAW", 0.02),
    ("wav", "WAV", "ALAW", 0.02),
    ("flac", "FLAC", "PCM_16", 2**-15),
    ("flac", "FLAC", "PCM_24", 2**-23),
    ("aiff", "AIFF", "PCM_16", 2**-15),
    ("rf64", "RF64", "PCM_16", 2**-15),
]
LOSSY = [("ogg", "OGG", "VORBIS"), ("opus", "OGG", "OPUS"), ("mp3", "MP3", "MPEG_LAYER_III")]


def voice(seconds: float = 1.0, rate: int = 16_000) -> np.ndarray:
    """Harmonics that swell and fade, within ±0.5."""
    t = np.arange(round(seconds * rate)) / rate
    tone = sum(np.sin(2 * np.pi * 150 * k * t) / k for k in range(1, 9))
    return (0.2 * tone * (1 - np.cos(2 * np.pi * 3 * t)) / 2).astype(np.float32)


def similarity(x: np.ndarray, y: np.ndarray) -> float:
    n = min(len(x), len(y))
    return float(np.corrcoef(x[:n], y[:n])[0, 1])


@pytest.mark.parametrize(("suffix", "container", "subtype", "tolerance"), LOSSLESS)
def test_lossless_formats(tmp_path: Path, suffix: str, container: str, subtype: str, tolerance: float) -> None:
    path, x = tmp_path / f"a.{suffix}", voice()
    soundfile.write(path, x, 16_000, format=container, subtype=subtype)
    with open_audio(path) as source:
        y = np.concatenate(list(source.blocks()))
    assert y.dtype == np.float32
    assert source.warnings == []
    np.testing.assert_allclose(y, x, atol=tolerance)


@pytest.mark.parametrize(("suffix", "container", "subtype"), LOSSY)
@pytest.mark.parametrize("rate", [16_000, 48_000])
def test_lossy_formats(tmp_path: Path, suffix: str, container: str, subtype: str, rate: int) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, voice(rate=rate), rate, format=container, subtype=subtype)
    with open_audio(path) as source:
        y = np.concatenate(list(source.blocks()))
    assert source.warnings == []
    assert abs(len(y) - 16_000) <= 16
    assert similarity(y, voice()) > 0.98


@pytest.mark.parametrize(("suffix", "container", "subtype"), [*LOSSY, ("flac", "FLAC", "PCM_16")])
def test_a_compressed_file_read_in_blocks_is_the_file_read_at_once(
    tmp_path: Path, suffix: str, container: str, subtype: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, voice(3.0), 16_000, format=container, subtype=subtype)
    whole, _ = soundfile.read(path, dtype="float32")
    with open_audio(path) as source:
        np.testing.assert_allclose(np.concatenate(list(source.blocks(999))), whole, atol=1e-6)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("block_samples", [1_000, 64_000])
def test_every_rate_comes_out_at_16_khz_in_equal_blocks(tmp_path: Path, rate: int, block_samples: int) -> None:
    x = voice(1.3, rate)
    soundfile.write(tmp_path / "a.wav", x, rate, subtype="FLOAT")
    with open_audio(tmp_path / "a.wav") as source:
        assert source.sample_rate == rate
        blocks = list(source.blocks(block_samples))
    assert {len(block) for block in blocks[:-1]} <= {block_samples}
    assert 0 < len(blocks[-1]) <= block_samples
    wanted = x if rate == 16_000 else soxr.resample(x, rate, 16_000, quality="HQ")
    np.testing.assert_array_equal(np.concatenate(blocks), wanted)


@pytest.mark.parametrize("rate", [4_000, 96_000])
def test_other_rates_are_refused_with_the_bounds(tmp_path: Path, rate: int) -> None:
    soundfile.write(tmp_path / "a.wav", voice(0.1), rate)
    with pytest.raises(AudioFormatError, match=rf"a\.wav: has {rate} Hz; 8000 to 48000 Hz"):
        open_audio(tmp_path / "a.wav")


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_channels_are_mixed_or_chosen(tmp_path: Path, channels: int) -> None:
    x = np.stack([voice() * (k + 1) / channels for k in range(channels)], axis=1)
    soundfile.write(tmp_path / "a.wav", x, 16_000, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(tmp_path / "a.wav"), x.mean(axis=1), atol=1e-6)
    for channel in range(channels):
        np.testing.assert_array_equal(read_audio(tmp_path / "a.wav", channel=channel), x[:, channel])
    with pytest.raises(ConfigError, match=rf"a\.wav: channel {channels} was asked for; there are {channels}"):
        open_audio(tmp_path / "a.wav", channel=channels)


def test_speech_on_the_right_side_only_survives_the_mix(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.stack([0 * voice(), voice()], axis=1), 16_000, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(tmp_path / "a.wav"), voice() / 2, atol=1e-6)


def test_opposite_phase_is_warned_about(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.stack([voice(), -voice()], axis=1), 16_000, subtype="FLOAT")
    with open_audio(tmp_path / "a.wav") as source:
        list(source.blocks())
    assert ["opposite phase" in warning for warning in source.warnings] == [True]


def test_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    with pytest.raises(EmptyAudio, match=r"a\.wav: has no bytes"):
        open_audio(tmp_path / "a.wav")


@pytest.mark.parametrize(("suffix", "container"), [("wav", "WAV"), ("w64", "W64"), ("aiff", "AIFF")])
def test_a_header_and_no_samples(tmp_path: Path, suffix: str, container: str) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, np.zeros(0, dtype=np.float32), 16_000, format=container)
    with pytest.raises(EmptyAudio, match="has a header and no samples"):
        read_audio(path)


def cut(path: Path, kept_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:kept_bytes])


@pytest.mark.parametrize(("suffix", "container"), [("wav", "WAV"), ("flac", "FLAC"), ("mp3", "MP3")])
def test_a_cut_file_is_kept_as_far_as_it_goes_with_a_warning(tmp_path: Path, suffix: str, container: str) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, voice(6.0), 16_000, format=container)
    whole = read_audio(path)
    cut(path, path.stat().st_size // 2)
    with open_audio(path) as source:
        half = np.concatenate(list(source.blocks()))
    assert "header promised 6.0 s, " in source.warnings[0]
    assert 1.5 * 16_000 < len(half) < 4.5 * 16_000
    np.testing.assert_allclose(half[:16_000], whole[:16_000], atol=1e-4)


@pytest.mark.parametrize(("suffix", "container", "kept"), [("wav", "WAV", 44), ("flac", "FLAC", 300)])
def test_a_cut_right_after_the_header(tmp_path: Path, suffix: str, container: str, kept: int) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, voice(), 16_000, format=container)
    cut(path, kept)
    with pytest.raises((TruncatedAudio, EmptyAudio), match=r"a\.\w+: "):
        read_audio(path)


@pytest.mark.parametrize("lost", [0.05, 0.2])
def test_a_loss_below_a_tenth_is_no_news(tmp_path: Path, lost: float) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, voice(2.0), 16_000)
    cut(path, round(path.stat().st_size * (1 - lost)))
    with open_audio(path) as source:
        list(source.blocks())
    assert len(source.warnings) == (1 if lost > 0.1 else 0)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF])
def test_a_wav_written_to_a_pipe_promises_nothing(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, voice(), 16_000)
    data = bytearray(path.read_bytes())
    data[4:8] = data[40:44] = struct.pack("<I", size)
    path.write_bytes(data)
    with open_audio(path) as source:
        assert sum(map(len, source.blocks())) == 16_000
    assert source.warnings == []


def test_a_recording_that_was_cut_off_before_its_header_was_completed(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, voice(), 16_000)
    data = bytearray(path.read_bytes())
    data[40:44] = bytes(4)
    path.write_bytes(data)
    with pytest.raises(TruncatedAudio, match="promises no samples and 32000 bytes follow"):
        open_audio(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_named_with_their_place(tmp_path: Path, bad: float) -> None:
    x = voice(6.0, 8_000)
    x[40_000] = bad
    soundfile.write(tmp_path / "a.wav", x, 8_000, subtype="FLOAT")
    with pytest.raises(InvalidSamples, match=rf"a\.wav: sample 40000 is {bad}"):
        read_audio(tmp_path / "a.wav")


@pytest.mark.usefixtures("without_ffmpeg")
@pytest.mark.parametrize("name", ["a.txt", "a.wav", "a.mp3", "a.raw", "a.ogg"])
def test_text_is_no_audio_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("the quick brown fox\n" * 200)
    with pytest.raises(UnknownContainer, match="ffmpeg, which reads most other containers, is not installed"):
        open_audio(tmp_path / name)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UnknownContainer, match="is a folder"):
        open_audio(tmp_path)
    with pytest.raises(AudioFormatError, match="cannot be opened: No such file"):
        open_audio(tmp_path / "missing.wav")
    os.mkfifo(tmp_path / "pipe.wav")
    with pytest.raises(UnknownContainer, match="not a regular file"):
        open_audio(tmp_path / "pipe.wav")


ODD_NAMES = [
    "it's.wav",
    "a  b.wav",
    "-x.wav",
    "日本 é.wav",
    "e\u0301.wav",
    "a\nb.wav",
    "c:d.wav",
    'q"$(x).wav',
    "%20.wav",
]


@pytest.mark.parametrize("name", [*ODD_NAMES, "x" * 251 + ".wav", os.fsdecode(b"\xff\xfe.wav")])
def test_odd_names(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open(name, "wb") as file:
        soundfile.write(file, voice(), 16_000, format="WAV")
    assert len(read_audio(name)) == 16_000
    assert display_path(name).isprintable()


def test_a_file_is_read_once_and_errors_close_it(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", voice(), 16_000)
    with open_audio(tmp_path / "a.wav") as source, pytest.raises(ConfigError, match="block_samples is 0"):
        list(source.blocks(0))
    with open_audio(tmp_path / "a.wav") as source:
        list(source.blocks())
        with pytest.raises(StreamClosed, match="was read already"):
            list(source.blocks())


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", voice(), 16_000)
    (tmp_path / "b.wav").write_text("no audio")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        read_audio(tmp_path / "a.wav")
        with pytest.raises(UnknownContainer):
            read_audio(tmp_path / "b.wav")
        with pytest.raises(ConfigError):
            read_audio(tmp_path / "a.wav", channel=7)
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_does_not_grow_with_the_length(tmp_path: Path) -> None:
    """Ten minutes are read in blocks of a second; the samples alone would need 38 MB."""
    with soundfile.SoundFile(tmp_path / "a.wav", "w", 16_000, 1) as file:
        for _ in range(600):
            file.write(voice())
    program = (
        "import resource, sys; from asr.audio import open_audio\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "source = open_audio(sys.argv[1]); blocks = source.blocks(16_000); next(blocks); before = peak()\n"
        "assert sum(map(len, blocks)) == 599 * 16_000; print(peak() - before)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "a.wav")], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 8_000, f"grew by {run.stdout} KiB"


# Containers that only ffmpeg reads. A real ffmpeg makes them and reads them.


def make(ffmpeg: str, path: Path, *arguments: str, seconds: float = 2.0, rate: int = 16_000) -> Path:
    wav = path.with_name("source_of_the_track.wav")
    soundfile.write(wav, voice(seconds, rate), rate)
    command = [ffmpeg, "-nostdin", "-v", "error", "-y", "-i", str(wav), *arguments, f"file:{path}"]
    subprocess.run(command, check=True)
    wav.unlink()
    return path


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("a.m4a", ["-c:a", "aac"]),
        ("a.webm", ["-c:a", "libopus"]),
        ("a.mkv", ["-c:a", "flac"]),
        ("-it's 日本:a\nb.m4a", ["-c:a", "aac"]),
        ("http:x.m4a", ["-c:a", "aac"]),
        ("stereo.m4a", ["-c:a", "aac", "-ac", "2"]),
        ("wide.m4a", ["-c:a", "aac", "-ar", "44100"]),
    ],
)
def test_other_containers_through_ffmpeg(
    tmp_path: Path, with_ffmpeg: str, name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(with_ffmpeg, tmp_path / name, *arguments)
    monkeypatch.chdir(tmp_path)
    with open_audio(name) as source:
        y = np.concatenate(list(source.blocks(5_000)))
    assert source.warnings == []
    assert abs(len(y) - 32_000) <= 2_048  # an AAC frame may be padded
    assert similarity(y, voice(2.0)) > 0.95


def test_a_streamed_webm_has_no_duration_and_is_read(tmp_path: Path, with_ffmpeg: str) -> None:
    path = make(with_ffmpeg, tmp_path / "a.webm", "-c:a", "libopus", "-live", "1", "-f", "webm")
    with open_audio(path) as source:
        assert source.declared_seconds is None
        assert abs(sum(map(len, source.blocks())) - 32_000) < 1_000
    assert source.warnings == []


def test_a_cut_webm_is_not_passed_off_as_whole(tmp_path: Path, with_ffmpeg: str) -> None:
    path = make(with_ffmpeg, tmp_path / "a.webm", "-c:a", "libopus", seconds=20.0)
    cut(path, path.stat().st_size // 2)
    with open_audio(path) as source:
        decoded = sum(map(len, source.blocks())) / 16_000
    assert 5 < decoded < 15
    assert f"header promised 20.0 s, {decoded:.1f} s decoded" in source.warnings


def test_a_video_without_sound(tmp_path: Path, with_ffmpeg: str) -> None:
    video = ["-f", "lavfi", "-i", "color=size=64x64:duration=1", "-map", "1:v", "-c:v", "mpeg4"]
    path = make(with_ffmpeg, tmp_path / "a.mp4", *video)
    with pytest.raises(NoAudioTrack, match=r"a\.mp4: is a mov file without an audio track"):
        open_audio(path)


def test_an_mp4_cut_before_its_index(tmp_path: Path, with_ffmpeg: str) -> None:
    path = make(with_ffmpeg, tmp_path / "a.m4a", "-c:a", "aac")
    cut(path, path.stat().st_size // 2)
    with pytest.raises(TruncatedAudio, match="cut before its index"):
        open_audio(path)


@pytest.mark.usefixtures("with_ffmpeg")
@pytest.mark.parametrize("name", ["a.txt", "a.wav", "a"])
def test_text_is_no_audio_for_ffmpeg_either(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("the quick brown fox\n" * 200)
    with pytest.raises(UnknownContainer, match=r"neither libsndfile .* nor ffmpeg .* reads it"):
        open_audio(tmp_path / name)


@pytest.mark.usefixtures("with_ffmpeg")
def test_a_playlist_makes_no_connection(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/x.ts"
        playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{address}\n#EXT-X-ENDLIST\n"
        (tmp_path / "a.m3u8").write_text(playlist)
        with pytest.raises(AudioFormatError):
            open_audio(tmp_path / "a.m3u8")
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.usefixtures("without_ffmpeg")
def test_a_container_that_needs_ffmpeg_says_so(
    tmp_path: Path, ffmpeg_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(str(ffmpeg_folder / "ffmpeg"), tmp_path / "a.m4a", "-c:a", "aac")
    with pytest.raises(UnknownContainer, match=r"a\.m4a: .* is not installed \(no ffmpeg on PATH\)"):
        open_audio(path)
    monkeypatch.setenv("PATH", str(ffmpeg_folder))
    assert len(read_audio(path)) > 30_000


def test_an_ffmpeg_that_is_abandoned_is_ended(tmp_path: Path, with_ffmpeg: str) -> None:
    path = make(with_ffmpeg, tmp_path / "a.m4a", "-c:a", "aac", seconds=60.0)
    with open_audio(path) as source:
        next(source.blocks(100))
        process = source._reader._process  # type: ignore[attr-defined]
    assert process.returncode is not None
