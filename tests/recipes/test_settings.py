"""Settings from YAML: defaults, kinds, and what is refused."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from asr.errors import ConfigError
from recipes.grpo import GrpoConfig
from recipes.settings import read_settings
from recipes.sft import SftConfig
from recipes.tune import TuneConfig


@dataclass(frozen=True, kw_only=True)
class Some:
    count: int = 3
    rate: float = 0.5
    loud: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"count is {self.count}; it must be at least 1")


def written(folder: Path, text: str) -> Path:
    path = folder / "some.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Some()),
        ("count: 4\n", Some(count=4)),
        ("rate: 2\n", Some(rate=2)),
        ("rate: 1.0e-4 # x\n", Some(rate=1e-4)),
        ("rate: 5e-06", Some(rate=5e-6)),
        ("rate: -1E2", Some(rate=-100.0)),
        ("loud: true", Some(loud=True)),
    ],
)
def test_what_a_file_leaves_out_has_its_default(tmp_path: Path, text: str, expected: Some) -> None:
    assert read_settings(Some, written(tmp_path, text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("counts: 4", r"among \['count', 'loud', 'rate'\]; got {'counts': 4}"),
        ("- 1", r"got \[1\]"),
        ("count: 4.5", "count is 4.5; int is needed"),
        ("count: true", "count is True; int is needed"),
        ("loud: 1", "loud is 1; bool is needed"),
        ("count: 1e2", "count is '1e2'; int is needed"),
        ("rate: fast", "rate is 'fast'; float is needed"),
        ("count: 0", "it must be at least 1"),
        ("count: [", "cannot be read"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(Some, written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read"):
        read_settings(Some, tmp_path / "none.yaml")


SHIPPED: dict[str, type[Any]] = {"grpo": GrpoConfig, "sft": SftConfig, "tune": TuneConfig}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_files_state_every_setting(name: str) -> None:
    path = Path(__file__).parents[2] / "recipes" / "configs" / f"{name}.yaml"
    stated = {line.split(":")[0] for line in path.read_text(encoding="utf-8").splitlines() if line[:1].isalpha()}
    assert stated == set(asdict(read_settings(SHIPPED[name], path)))
