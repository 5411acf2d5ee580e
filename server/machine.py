"""What this machine offers to this process."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")


def available_cpus() -> int:
    """Cores that this process may use: its affinity, and no more than a control group's CPU quota pays for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = Path("/proc/self/cgroup")
    quota = cpu_quota(CGROUP_ROOT, own.read_text() if own.exists() else "")
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cpu_quota(root: Path, own_groups: str) -> float | None:
    """The CPU quota in cores, the tightest on the way from the process's own group up to `root`; None if there is none.

    Args:
        root: where control groups are mounted.
        own_groups: the text of /proc/self/cgroup.
    """
    quotas = []
    for line in own_groups.splitlines() or ["0::/"]:
        number, controllers, own = line.split(":", 2)
        version_2 = number == "0" and not controllers
        if not version_2 and "cpu" not in controllers.split(","):
            continue
        top = root if version_2 else root / "cpu"
        group = top / own.strip("/")
        for folder in [group, *group.parents]:
            if folder == top or top in folder.parents:
                quotas.append(_group_quota(folder))
    return min((quota for quota in quotas if quota is not None), default=None)


def _group_quota(folder: Path) -> float | None:
    if (folder / "cpu.max").exists():
        quota, period = (folder / "cpu.max").read_text().split()
    elif (folder / "cpu.cfs_quota_us").exists():
        quota, period = (folder / "cpu.cfs_quota_us").read_text().strip(), (folder / "cpu.cfs_period_us").read_text()
    else:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
