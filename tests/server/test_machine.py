import os
from pathlib import Path

import pytest

from server import machine
from server.machine import available_cpus, cpu_quota


def group(folder: Path, quota: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(quota)


def test_the_tightest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    group(tmp_path / "outer", "150000 100000\n")
    group(tmp_path / "outer/inner", "400000 100000\n")
    group(tmp_path / "elsewhere", "10000 100000\n")
    assert cpu_quota(tmp_path, "0::/outer/inner\n") == 1.5


def test_no_quota(tmp_path: Path) -> None:
    group(tmp_path, "max 100000\n")
    assert cpu_quota(tmp_path, "0::/\n") is None
    assert cpu_quota(tmp_path / "not_mounted", "") is None


def test_the_older_layout(tmp_path: Path) -> None:
    files = {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}
    (tmp_path / "cpu" / "job").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "cpu" / "job" / name).write_text(text)
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(tmp_path, "3:memory:/job\n2:cpuacct,cpu:/job\n") == 0.5


@pytest.mark.parametrize(("quota", "cpus"), [(None, 5), (2.5, 3), (0.1, 1), (64.0, 5)])
def test_cores_are_bounded_by_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    monkeypatch.setattr(machine, "cpu_quota", lambda *_: quota)
    assert available_cpus() == cpus
