import numpy as np
import pytest

from asr.channels import ChannelMixer
from asr.errors import ConfigError, InvalidSamples


def frames(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


def test_mix_is_the_mean_and_a_channel_is_itself() -> None:
    x = frames((0.5, -0.1), (0.25, 0.75))
    np.testing.assert_allclose(ChannelMixer(channels=2).step(x), [0.2, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(ChannelMixer(channels=2, channel=1).step(x), x[:, 1])


@pytest.mark.parametrize("channel", [2, -1])
def test_a_channel_that_is_not_there(channel: int) -> None:
    with pytest.raises(ConfigError, match=rf"channel {channel} was asked for; there are 2"):
        ChannelMixer(channels=2, channel=channel)


def test_no_channels() -> None:
    with pytest.raises(ConfigError, match="0 channels"):
        ChannelMixer(channels=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_place_of_an_invalid_sample_counts_from_the_start_of_the_stream(bad: float) -> None:
    mixer = ChannelMixer(channels=1)
    mixer.step(frames((0.1,), (0.2,), (0.3,)))
    mixer.step(frames((0.1,)))
    with pytest.raises(InvalidSamples, match=rf"sample 5 is {bad}"):
        mixer.step(frames((0.1,), (bad,), (0.3,)))


def test_an_invalid_sample_of_another_channel_does_no_harm() -> None:
    assert ChannelMixer(channels=2, channel=0).step(frames((0.5, np.nan))).tolist() == [0.5]


def warnings_of(x: np.ndarray, **settings: object) -> list[str]:
    mixer = ChannelMixer(channels=x.shape[1], **settings)  # type: ignore[arg-type]
    for block in np.array_split(x, 3):
        mixer.step(block)
    return mixer.warnings()


def test_opposite_phase_warns_when_mixed_only() -> None:
    voice = np.sin(np.arange(3_000) / 7).astype(np.float32) * 0.3
    opposite = np.stack([voice, -voice], axis=1)
    assert ["opposite phase" in w for w in warnings_of(opposite)] == [True]
    assert warnings_of(opposite, channel=0) == []
    assert warnings_of(np.stack([voice, voice], axis=1)) == []
    assert warnings_of(np.stack([0 * voice, voice], axis=1)) == [], "speech on one side only is no cancellation"


def test_clipping_and_odd_scales_warn() -> None:
    voice = np.sin(np.arange(3_000) / 7).astype(np.float32)[:, None]
    assert warnings_of(voice * 0.9) == []
    assert "clipped" in warnings_of(np.clip(voice * 2, -1, 1))[0]
    assert "samples reach 3.2" in warnings_of(voice * 32_000)[0]


def test_silence_and_nothing_are_not_suspicious() -> None:
    assert warnings_of(np.zeros((30, 2), dtype=np.float32)) == []
    mixer = ChannelMixer(channels=2)
    assert mixer.step(np.zeros((0, 2), dtype=np.float32)).shape == (0,)
    assert (mixer.warnings(), mixer.frames) == ([], 0)
