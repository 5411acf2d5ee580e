"""KenLM's `lmplz`, built from the source package on PyPI, to hold the estimator against."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from lm_fusion.arpa import NGrams, read_arpa

VERSION = "0.3.0"
_BOOST = ("program_options", "system", "thread", "unit_test_framework")


def find_or_build(folder: Path) -> Path:
    """The executable: what the variable LMPLZ or the path names, or one built in `folder`.

    Skips the test, saying why, where it cannot be built.
    """
    if (found := os.environ.get("LMPLZ") or shutil.which("lmplz")) is not None:
        return Path(found)
    for tool in ("cmake", "g++", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"lmplz cannot be built: there is no {tool}")
    if not any(Path(root, "include/boost/program_options.hpp").exists() for root in ("/usr", "/usr/local")):
        pytest.skip(f"lmplz cannot be built: there are no Boost headers (libboost-dev, {', '.join(_BOOST)})")
    pip = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation"]
    fetched = subprocess.run(
        [*pip, f"kenlm=={VERSION}", "-d", str(folder)], capture_output=True, text=True, check=False
    )
    if fetched.returncode:
        pytest.skip(f"lmplz cannot be built: its source is not to be had: {fetched.stderr[-200:]}")
    with tarfile.open(folder / f"kenlm-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    build = folder / "build"
    build.mkdir()
    for command in (
        ["cmake", str(folder / f"kenlm-{VERSION}"), "-DCMAKE_BUILD_TYPE=Release", "-DFORCE_STATIC=ON"],
        ["make", "lmplz"],
    ):
        run = subprocess.run(command, cwd=build, capture_output=True, text=True, check=False)
        if run.returncode:
            pytest.skip(f"lmplz cannot be built: {command[0]} failed: {run.stderr[-300:]}")
    return build / "bin" / "lmplz"


def run(executable: Path, lines: list[str], folder: Path, *, order: int, prune: tuple[int, ...]) -> NGrams:
    """The model that `lmplz` makes of sentences."""
    command = [str(executable), "-o", str(order), "--discount_fallback", "-S", "1G", "-T", str(folder)]
    command += ["--prune", *map(str, prune)] if prune else []
    text = "".join(line + "\n" for line in lines)
    made = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    assert made.returncode == 0, made.stderr[-500:]
    path = folder / "lmplz.arpa"
    path.write_bytes(made.stdout)
    return read_arpa(path)


def random_lines(rng: np.random.Generator) -> list[str]:
    """Sentences of few and common words, from one word in all to some hundred."""
    words = int(rng.integers(2, 40))
    sizes = rng.integers(1, 12, size=int(rng.integers(1, 80)))
    return [" ".join(f"w{word % words}" for word in rng.zipf(1.5, size=size)) for size in sizes]
