"""Settings of a run from a YAML file into a frozen dataclass of numbers."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from asr.errors import ConfigError

__all__ = ["read_settings"]

C = TypeVar("C")
EXPONENT = re.compile(r"[-+]?\d+e[-+]?\d+", re.IGNORECASE)
"""5e-6: a number in YAML 1.2, text in the 1.1 that PyYAML reads, which wants 5.0e-6."""


def read_settings(kind: type[C], path: Path) -> C:
    """The settings in a YAML file; those it leaves out have their defaults.

    Args:
        kind: a dataclass whose fields are all int, float or bool, with defaults.

    Raises:
        ConfigError: for a missing or unreadable file, unknown settings or values that cannot work.
    """
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(f"training needs pyyaml: pip install 'earlybird-asr[train]' ({error})") from error
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    known = {field.name: type(field.default) for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, dict) or not set(values) <= set(known):
        raise ConfigError(f"{path} must hold settings among {sorted(known)}; got {values!r}")
    for name, value in values.items():
        if known[name] is float and isinstance(value, str) and EXPONENT.fullmatch(value):
            value = values[name] = float(value)
        fits = isinstance(value, int) or (known[name] is float and isinstance(value, float))
        if not fits or isinstance(value, bool) != (known[name] is bool):
            raise ConfigError(f"{path}: {name} is {value!r}; {known[name].__name__} is needed")
    return kind(**values)
