"""Is everything here that a transcription needs, and does a tiny one work?"""

from __future__ import annotations

import contextlib
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from asr.errors import ConfigError, EarlybirdError
from asr.units import SAMPLE_RATE, STEP_MS
from server.engine import installed_models, load_model, transcribe_jobs
from server.machine import available_cpus

NEEDED = ("torch", "numpy", "numba", "soundfile", "soxr", "safetensors", "tokenizers", "sentencepiece")
OPTIONAL = ("torchaudio", "jiwer", "whisper-normalizer", "websockets", "prometheus-client", "av", "sounddevice")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
        subject: what was looked at.
        found: what was there.
        ok: False if a transcription cannot work like that.
    """

    subject: str
    found: str
    ok: bool = True

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'FAIL'} {self.subject}: {self.found}"


def examine(*, model_name: str, device: str, delay_ms: int, chunk_ms: int) -> Iterator[Finding]:
    """Look at this machine, one finding after the other; the last one is a tiny decode."""
    yield Finding(subject="system", found=f"Python {platform.python_version()} on {platform.platform()}")
    yield Finding(subject="cores", found=str(available_cpus()))
    for package in ("earlybird-asr", *NEEDED, *OPTIONAL):
        try:
            yield Finding(subject=package, found=version(package))
        except PackageNotFoundError:
            yield Finding(subject=package, found="not installed", ok=package not in NEEDED)
    yield _libsndfile()
    yield _ffmpeg()
    yield _accelerators()
    yield _microphones()
    names = installed_models()
    yield Finding(subject="models", found=", ".join(names) or "none installed")
    with contextlib.suppress(EarlybirdError):  # what is wrong with the model, the tiny decode says
        yield _step_time(model_name, device=device, delay_ms=delay_ms, chunk_ms=chunk_ms)
    yield _tiny_decode(model_name, device=device, delay_ms=delay_ms, chunk_ms=chunk_ms)


def _microphones() -> Finding:
    from server.microphone import input_devices, sounddevice

    try:
        found = [str(device).strip() for device in input_devices(sounddevice())]
    except ConfigError as error:
        return Finding(subject="microphones", found=f"none can be used: {error}")
    return Finding(subject="microphones", found="; ".join(found) or "none")


def _step_time(model_name: str, *, device: str, delay_ms: int, chunk_ms: int) -> Finding:
    from server import capacity

    cost = capacity.measure(load_model(model_name, device=device, threads=1), delay_ms=delay_ms, chunk_ms=chunk_ms)
    return Finding(
        subject=f"live sessions of {model_name} on {device} with one thread",
        found=f"{cost}, of which {STEP_MS} may pass; a server here would take {cost.sessions}",
        ok=cost.keeps_up,
    )


def _libsndfile() -> Finding:
    import soundfile

    formats = soundfile.available_formats()
    missing = [name for name in ("WAV", "FLAC", "OGG", "MP3") if name not in formats]
    found = soundfile.__libsndfile_version__ + (f", without {', '.join(missing)}" if missing else "")
    return Finding(subject="libsndfile", found=found)


def _ffmpeg() -> Finding:
    executable = shutil.which("ffmpeg")
    if executable is None:
        return Finding(subject="ffmpeg", found="not installed: WAV, FLAC, Ogg and MP3 work, MP4, M4A and WebM do not")
    run = subprocess.run([executable, "-version"], capture_output=True, text=True, check=False)
    first = (run.stdout or run.stderr).partition("\n")[0]
    return Finding(subject="ffmpeg", found=f"{executable}: {first}", ok=run.returncode == 0)


def _accelerators() -> Finding:
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return Finding(subject="accelerators", found=f"{', '.join(names) or 'none'} ({cuda})")


def _tiny_decode(model_name: str, *, device: str, delay_ms: int, chunk_ms: int) -> Finding:
    subject = f"one second of silence through {model_name} on {device}"
    started = time.perf_counter()
    try:
        model = load_model(model_name, device=device, threads=available_cpus())
        loaded = time.perf_counter()
        job = ("silence", iter([np.zeros(SAMPLE_RATE, dtype=np.float32)]))
        ((_, result),) = transcribe_jobs(model, [job], delay_ms=delay_ms, chunk_ms=chunk_ms, batch_size=1)
    except EarlybirdError as error:
        return Finding(subject=subject, found=f"{type(error).__name__}: {error}", ok=False)
    if isinstance(result, EarlybirdError):
        return Finding(subject=subject, found=f"{type(result).__name__}: {result}", ok=False)
    found = f"loaded in {loaded - started:.1f} s, decoded in {time.perf_counter() - loaded:.2f} s"
    if result.words:
        return Finding(subject=subject, found=f"{found}, but it heard {result.text!r}", ok=False)
    return Finding(subject=subject, found=found)
