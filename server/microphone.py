"""A microphone of this machine as 16-bit PCM, through PortAudio (the package sounddevice)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from asr.errors import ConfigError
from asr.resample import HIGHEST_RATE, LOWEST_RATE

BLOCK_MS = 20
WAITING_BLOCKS = 500
"""Ten seconds: a microphone does not wait, and memory is bounded."""


@dataclass(frozen=True, kw_only=True)
class InputDevice:
    """One input. Attributes: index: its number; channels: at most; sample_rate: its own; default: whether it is."""

    index: int
    name: str
    channels: int
    sample_rate: int
    default: bool

    def __str__(self) -> str:
        mark = "*" if self.default else " "
        return f"{mark} {self.index}: {self.name} ({self.channels} channels, {self.sample_rate} Hz)"


def sounddevice() -> Any:
    """The package.

    Raises:
        ConfigError: if it or PortAudio is not installed.
    """
    try:
        import sounddevice
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"a microphone needs the package sounddevice and the library PortAudio ({error}): "
            "pip install 'earlybird-asr[mic]', and on Debian apt install libportaudio2"
        ) from None
    return sounddevice


def input_devices(library: Any) -> list[InputDevice]:
    """All inputs that PortAudio knows."""
    default = library.default.device[0]
    return [
        InputDevice(
            index=index,
            name=str(device["name"]),
            channels=int(device["max_input_channels"]),
            sample_rate=int(device["default_samplerate"]),
            default=index == default,
        )
        for index, device in enumerate(library.query_devices())
        if device["max_input_channels"] > 0
    ]


def choose_device(devices: list[InputDevice], wanted: str | None) -> InputDevice:
    """The input of that number, or whose name has that text in it; the default one for None.

    Raises:
        ConfigError: if none or several fit; the message lists what there is.
    """
    listing = "; ".join(str(device) for device in devices) or "none"
    if wanted is None:
        found = [device for device in devices if device.default] or devices[:1]
    elif wanted.isascii() and wanted.isdigit():
        found = [device for device in devices if device.index == int(wanted)]
    else:
        found = [device for device in devices if wanted.lower() in device.name.lower()]
    if len(found) != 1:
        raise ConfigError(f"{len(found)} inputs fit {wanted or 'the default'!r}; there are: {listing}")
    if not LOWEST_RATE <= found[0].sample_rate <= HIGHEST_RATE:
        raise ConfigError(f"{found[0]} cannot be used; {LOWEST_RATE} to {HIGHEST_RATE} Hz are needed")
    return found[0]


@asynccontextmanager
async def recording(library: Any, device: InputDevice) -> AsyncIterator[asyncio.Queue[bytes]]:
    """Records at the device's own rate, mono; the server changes the rate.

    Gives:
        a queue of 20 ms of 16-bit PCM each; the oldest are lost if nobody takes them for ten seconds.
    Raises:
        ConfigError: if it cannot be opened.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue(WAITING_BLOCKS)

    def put(piece: bytes) -> None:
        if pieces.full():
            pieces.get_nowait()
        pieces.put_nowait(piece)

    def heard(piece: Any, frames: int, time: Any, status: Any) -> None:
        loop.call_soon_threadsafe(put, bytes(piece))

    try:
        stream = library.RawInputStream(
            samplerate=device.sample_rate,
            blocksize=device.sample_rate * BLOCK_MS // 1000,
            device=device.index,
            channels=1,
            dtype="int16",
            callback=heard,
        )
    except library.PortAudioError as error:
        raise ConfigError(f"{device} cannot be opened: {error}") from None
    with stream:
        yield pieces
