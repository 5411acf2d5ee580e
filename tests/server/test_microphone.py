import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asr.errors import ConfigError
from server import microphone
from server.microphone import InputDevice, choose_device, input_devices, recording, sounddevice


class FakePortAudio:
    """What of sounddevice is used, with a device that gives 20 ms of ones at a time."""

    class PortAudioError(Exception):
        pass

    class default:  # noqa: N801 - as sounddevice has it
        device = (2, 0)

    def __init__(self) -> None:
        self.opened: dict[str, Any] = {}
        self.fails = False

    def query_devices(self) -> list[dict[str, Any]]:
        return [
            {"name": "Speakers", "max_input_channels": 0, "default_samplerate": 48_000.0},
            {"name": "USB Microphone", "max_input_channels": 1, "default_samplerate": 44_100.0},
            {"name": "Built-in Microphone", "max_input_channels": 2, "default_samplerate": 48_000.0},
            {"name": "Studio", "max_input_channels": 2, "default_samplerate": 192_000.0},
        ]

    def RawInputStream(self, *, callback: Callable[..., None], **options: Any) -> Any:  # noqa: N802
        if self.fails:
            raise self.PortAudioError("Device unavailable")
        self.opened = options
        return FakeStream(callback, options["blocksize"])


class FakeStream:
    def __init__(self, callback: Callable[..., None], frames: int) -> None:
        self._callback, self._frames = callback, frames

    def __enter__(self) -> None:
        for _ in range(microphone.WAITING_BLOCKS + 3):
            self._callback(b"\x01\x00" * self._frames, self._frames, None, None)

    def __exit__(self, *error: object) -> None:
        pass


def test_inputs_are_listed_with_their_rates() -> None:
    devices = input_devices(FakePortAudio())
    assert [str(device) for device in devices] == [
        "  1: USB Microphone (1 channels, 44100 Hz)",
        "* 2: Built-in Microphone (2 channels, 48000 Hz)",
        "  3: Studio (2 channels, 192000 Hz)",
    ]


def test_an_input_is_chosen_by_default_number_or_name() -> None:
    devices = input_devices(FakePortAudio())
    assert choose_device(devices, None).index == 2
    assert choose_device(devices, "1").index == 1
    assert choose_device(devices, "usb").index == 1


@pytest.mark.parametrize(
    ("wanted", "says"), [("microphone", "2 inputs fit"), ("0", "0 inputs fit"), ("x", "0 inputs"), ("3", "192000 Hz")]
)
def test_inputs_that_cannot_be(wanted: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        choose_device(input_devices(FakePortAudio()), wanted)
    assert "Studio" in str(caught.value)


def test_a_microphone_records_at_its_own_rate() -> None:
    library = FakePortAudio()
    device = choose_device(input_devices(library), "usb")

    async def scenario() -> list[bytes]:
        async with recording(library, device) as pieces:
            await asyncio.sleep(0.05)
            return [pieces.get_nowait() for _ in range(pieces.qsize())]

    pieces = asyncio.run(scenario())
    assert {len(piece) for piece in pieces} == {2 * 882}
    assert len(pieces) == microphone.WAITING_BLOCKS, "the oldest are lost, memory is bounded"
    assert (library.opened["samplerate"], library.opened["channels"], library.opened["dtype"]) == (44_100, 1, "int16")


def test_a_microphone_that_does_not_open() -> None:
    library = FakePortAudio()
    library.fails = True
    device = InputDevice(index=1, name="USB", channels=1, sample_rate=48_000, default=True)

    async def scenario() -> None:
        async with recording(library, device):
            pass

    with pytest.raises(ConfigError, match=r"USB .* cannot be opened: Device unavailable"):
        asyncio.run(scenario())


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sounddevice", None)
    with pytest.raises(ConfigError, match=r"pip install 'earlybird-asr\[mic\]'.*libportaudio2"):
        sounddevice()
