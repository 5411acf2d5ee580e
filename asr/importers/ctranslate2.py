"""CTranslate2's `model.bin`: a flat little-endian list of named arrays (layout: ctranslate2/specs/model_spec.py)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from asr.errors import CheckpointError

_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


class _Cursor:
    def __init__(self, path: Path) -> None:
        self.path, self.data, self.at = path, path.read_bytes(), 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise CheckpointError(f"{self.path} ends at byte {len(self.data)}, {self.at + count} were needed")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, kind: str) -> int:
        return int(struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind)))[0])

    def string(self) -> str:
        return self.take(self.number("H"))[:-1].decode()


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """Every variable of a CTranslate2 model by name, int8 and int16 weights scaled back to float32.

    Raises:
        CheckpointError: if the file is no CTranslate2 model of binary version 4 to 6, or is cut short.
    """
    cursor = _Cursor(path)
    version = cursor.number("I")
    if not 4 <= version <= 6:
        raise CheckpointError(f"{path} has binary version {version}; CTranslate2 versions 4 to 6 can be read")
    cursor.string()
    cursor.number("I")
    raw: dict[str, np.ndarray] = {}
    for _ in range(cursor.number("I")):
        name = cursor.string()
        shape = [cursor.number("I") for _ in range(cursor.number("B"))]
        dtype, size = cursor.number("B"), cursor.number("I")
        if dtype not in _DTYPES:
            raise CheckpointError(f"{path}: {name} has data type {dtype}; {sorted(_DTYPES)} can be read")
        raw[name] = np.frombuffer(cursor.take(size), _DTYPES[dtype]).reshape(shape)
    return {name: _dequantised(name, value, raw) for name, value in raw.items() if not name.endswith("_scale")}


def _dequantised(name: str, value: np.ndarray, raw: dict[str, np.ndarray]) -> np.ndarray:
    scale = raw.get(name + "_scale")
    if scale is None:
        return value.astype(np.float32) if value.ndim else value
    rows = scale.reshape(-1, *([1] * (value.ndim - 1))) if scale.ndim else scale
    values: np.ndarray = (value.astype(np.float32) / rows).astype(np.float32)
    return values
