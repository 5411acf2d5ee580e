"""Readers of audio files: libsndfile first, the ffmpeg executable for every other container."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import tempfile
from io import FileIO
from pathlib import Path
from typing import Protocol

import numpy as np
import soundfile

from asr.errors import AudioFormatError, EmptyAudio, NoAudioTrack, TruncatedAudio, UnknownContainer
from asr.resample import Samples

READ_FRAMES = 1_024
"""Frames per call of libsndfile: what a damaged spot can cost, as a failing call gives nothing."""

_AU_HEADER = struct.Struct(">4s5I")
_DURATION = re.compile(r"Duration: (\d+):(\d\d):(\d\d(?:\.\d+)?)")
_DEMUXER = re.compile(r"Input #0, ([^\s,]+)")


class Reader(Protocol):
    """One open file.

    Attributes:
        sample_rate: Hz.
        channels: how many.
        declared_frames: how many frames the header promises, or None if it does not say.
        problem: why decoding stopped before the end, once it has.
    """

    sample_rate: int
    channels: int
    declared_frames: int | None
    problem: str | None

    def read(self, frames: int) -> Samples:
        """The next [n, channels] with n <= `frames`; n = 0 at the end only."""

    def close(self) -> None:
        """Give back everything that is held."""


def open_reader(path: Path) -> Reader:
    """Open `path` with the first decoder that reads it.

    Raises:
        EmptyAudio: if the file has no bytes.
        NoAudioTrack: if it is a container without an audio track.
        TruncatedAudio: if it is cut so early that nothing can be decoded.
        UnknownContainer: if it is no file, or one that no installed decoder reads.
        AudioFormatError: if it cannot be opened at all.
    """
    if os.path.isdir(path):
        raise UnknownContainer("is a folder; an audio file is needed")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UnknownContainer("is not a regular file; an audio file is needed")
    try:
        file = path.open("rb", buffering=0)  # libsndfile continues where the descriptor stands
    except OSError as error:
        raise AudioFormatError(f"cannot be opened: {error.strerror}") from error
    try:
        if not os.fstat(file.fileno()).st_size:
            raise EmptyAudio("has no bytes")
        return SoundFileReader(file)
    except soundfile.LibsndfileError as error:
        file.close()
        return FfmpegReader(path, refusal=error.error_string.strip())
    except AudioFormatError:
        file.close()
        raise


class _ForwardSoundFile(soundfile.SoundFile):  # type: ignore[misc] # soundfile has no types
    """A sound file that is only read forwards.

    A seekable one seeks to where it stands after every read, which makes the MP3 decoder lose its bit reservoir: the
    first frames of each block come out wrong.
    """

    def seekable(self) -> bool:
        return False


class SoundFileReader:
    """A file that libsndfile reads. Takes over `file` and closes it.

    Raises:
        soundfile.LibsndfileError: if libsndfile does not read it.
        TruncatedAudio: if the header promises no samples and bytes follow.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file
        declared_bytes, present_bytes = _riff_data_bytes(file)
        file.seek(0)
        # By descriptor, not by name: any name works, and its ending does not matter.
        self._sound = _ForwardSoundFile(file.fileno(), closefd=False)
        self.sample_rate: int = self._sound.samplerate
        self.channels: int = self._sound.channels
        self.problem: str | None = None
        self.declared_frames: int | None = self._sound.frames
        if declared_bytes == 0 and present_bytes:
            self._sound.close()
            raise TruncatedAudio(
                f"its header promises no samples and {present_bytes} bytes follow (a recording that was cut off?); "
                "write the header anew, for example with ffmpeg"
            )
        if declared_bytes is not None and present_bytes:
            # libsndfile silently corrects the length of a cut file; the promise is the news.
            self.declared_frames = self._sound.frames * declared_bytes // present_bytes

    def read(self, frames: int) -> Samples:
        """See `Reader.read`."""
        parts: list[Samples] = []
        missing = frames
        while missing and self.problem is None:
            try:
                part: Samples = self._sound.read(min(missing, READ_FRAMES), dtype="float32", always_2d=True)
            except soundfile.LibsndfileError as error:
                self.problem = f"libsndfile: {error.error_string.strip()}"
                break
            if not len(part):
                break
            parts.append(part)
            missing -= len(part)
        return np.concatenate(parts) if parts else np.zeros((0, self.channels), dtype=np.float32)

    def close(self) -> None:
        """See `Reader.close`."""
        self._sound.close()
        self._file.close()


def _riff_data_bytes(file: FileIO) -> tuple[int | None, int]:
    """Size of a WAV file's data chunk: (as declared, as present up to that), or (None, 0) where nothing is declared."""
    head = file.read(12)
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return None, 0
    end = os.fstat(file.fileno()).st_size
    position = 12
    while position + 8 <= end:
        file.seek(position)
        name, size = struct.unpack("<4sI", file.read(8))
        position += 8
        if name == b"data":
            if size >= 0x7FFFF000:  # what writers to a pipe put for "unknown"
                return None, 0
            return size, end - position if size == 0 else min(size, end - position)
        position += size + size % 2
    return None, 0


class FfmpegReader:
    """The first audio track of any container, decoded by the ffmpeg executable through a pipe.

    Args:
        path: a file.
        refusal: why libsndfile did not read it, for messages.

    Raises:
        NoAudioTrack, TruncatedAudio, UnknownContainer: as `open_reader` says.
    """

    def __init__(self, path: Path, *, refusal: str) -> None:
        executable = shutil.which("ffmpeg")
        if executable is None:
            raise UnknownContainer(
                f"libsndfile does not read it ({refusal}) and ffmpeg, which reads most other containers, "
                "is not installed (no ffmpeg on PATH)"
            )
        # The "file:" prefix makes any name a name, also one that begins with "-" or looks like an address; from a file,
        # ffmpeg follows no links to other protocols.
        command = [executable, "-nostdin", "-hide_banner", "-nostats", "-loglevel", "info"]
        command += ["-i", f"file:{path}"]
        command += ["-map", "0:a:0", "-c:a", "pcm_f32be", "-f", "au", "pipe:1"]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log)
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        self.problem: str | None = None
        self.declared_frames: int | None = None
        try:
            self._read_header(refusal)
        except AudioFormatError:
            self.close()
            raise

    def _read_header(self, refusal: str) -> None:
        head = self._pipe.read(_AU_HEADER.size)
        if len(head) < _AU_HEADER.size:
            self._process.wait()
            self._raise_refusal(refusal)
        magic, offset, _size, _encoding, self.sample_rate, self.channels = _AU_HEADER.unpack(head)
        if magic != b".snd":
            raise AudioFormatError(f"ffmpeg gave {magic!r} where an AU header was expected")
        self._pipe.read(offset - _AU_HEADER.size)
        duration = _DURATION.search(self._messages())
        if duration:
            hours, minutes, seconds = duration.groups()
            self.declared_frames = round((int(hours) * 3600 + int(minutes) * 60 + float(seconds)) * self.sample_rate)

    def read(self, frames: int) -> Samples:
        """See `Reader.read`."""
        frame_bytes = 4 * self.channels
        data = self._pipe.read(frames * frame_bytes)
        if len(data) < frames * frame_bytes and self._process.wait() and self.problem is None:
            self.problem = f"ffmpeg: {self._last_message()}"
        whole = data[: len(data) - len(data) % frame_bytes]
        samples: Samples = np.frombuffer(whole, dtype=">f4").astype(np.float32).reshape(-1, self.channels)
        return samples

    def close(self) -> None:
        """See `Reader.close`. Ends ffmpeg if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._log.close()

    def _messages(self) -> str:
        # pread: the offset of this file is ffmpeg's, which may still write.
        descriptor = self._log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")

    def _last_message(self) -> str:
        lines = [line.strip() for line in self._messages().splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self._process.returncode} without a message"

    def _raise_refusal(self, refusal: str) -> None:
        messages = self._messages()
        demuxer = _DEMUXER.search(messages)
        if demuxer is not None and demuxer[1] != "tty":  # "tty" is ffmpeg's name for any text file
            if "Audio:" not in messages:
                raise NoAudioTrack(f"is a {demuxer[1]} file without an audio track")
            raise TruncatedAudio(f"no audio can be decoded from it: ffmpeg: {self._last_message()}")
        if "moov atom not found" in messages:
            raise TruncatedAudio("is an MP4 file cut before its index (ffmpeg: moov atom not found)")
        raise UnknownContainer(
            f"neither libsndfile ({refusal}) nor ffmpeg ({self._last_message()}) reads it; an audio file is needed"
        )
