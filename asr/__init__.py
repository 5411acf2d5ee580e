"""One recogniser: audio in, words with their times out.

Importing this package loads nothing heavy; `load` and `transcribe` bring PyTorch when they are first used.

    >>> import asr
    >>> model = asr.load("earlybird-en")  # doctest: +SKIP
    >>> asr.transcribe(model, "speech.flac").text  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asr.checkpoint import installed, load, save
    from asr.errors import EarlybirdError
    from asr.files import transcribe_files
    from asr.model import Model
    from asr.results import FileResult
    from asr.transcriber import transcribe
    from asr.words import DecodeStats, Transcript, Word

__all__ = [
    "DecodeStats",
    "EarlybirdError",
    "FileResult",
    "Model",
    "Transcript",
    "Word",
    "installed",
    "load",
    "save",
    "transcribe",
    "transcribe_files",
]

_HOME = {
    "DecodeStats": "asr.words",
    "EarlybirdError": "asr.errors",
    "FileResult": "asr.results",
    "Model": "asr.model",
    "Transcript": "asr.words",
    "Word": "asr.words",
    "installed": "asr.checkpoint",
    "load": "asr.checkpoint",
    "save": "asr.checkpoint",
    "transcribe": "asr.transcriber",
    "transcribe_files": "asr.files",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'asr' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
