"""Settings and fixtures of the whole suite."""

import os
from pathlib import Path

import imageio_ffmpeg
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ffmpeg_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose only file is the ffmpeg executable."""
    folder = tmp_path_factory.mktemp("ffmpeg")
    (folder / "ffmpeg").symlink_to(imageio_ffmpeg.get_ffmpeg_exe())
    return folder


@pytest.fixture
def with_ffmpeg(ffmpeg_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """PATH has ffmpeg; gives its path."""
    monkeypatch.setenv("PATH", f"{ffmpeg_folder}{os.pathsep}{os.environ['PATH']}")
    return str(ffmpeg_folder / "ffmpeg")


@pytest.fixture
def without_ffmpeg(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH has nothing."""
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty_path")))
