"""What the project promises outside its code: names, commands, licence, a build that can run."""

import os
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.test_layers import LAYERS, MODULES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=~!;\s]", requirement, maxsplit=1)[0].lower()


def test_names() -> None:
    project = PROJECT["project"]
    assert project["name"] == "earlybird-asr"
    assert project["scripts"] == {"earlybird": "server.cli:main"}
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"
    assert {"train", "server", "mic", "dev"} <= set(project["optional-dependencies"])


def test_the_core_needs_neither_torchaudio_nor_a_microphone_nor_training_tools() -> None:
    core = {name_of(requirement) for requirement in PROJECT["project"]["dependencies"]}
    assert core.isdisjoint({"torchaudio", "torchcodec", "sounddevice", "lhotse", "pocketsphinx", "websockets", "jiwer"})


def installed_files(package: str) -> list[str]:
    setuptools = PROJECT["tool"]["setuptools"]
    patterns = setuptools["package-data"].get("*", []) + setuptools["package-data"].get(package, [])
    files = [path.relative_to(ROOT / package) for path in (ROOT / package).rglob("*") if path.is_file()]
    return [str(file) for file in files if any(fnmatch(str(file), pattern) for pattern in patterns)]


@pytest.mark.parametrize("package", LAYERS)
def test_every_package_is_installed_with_its_types(package: str) -> None:
    assert package in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert "py.typed" in installed_files(package)
    assert package in PROJECT["tool"]["mypy"]["packages"]


def test_a_checkpoint_in_the_package_is_installed() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["asr"]
    for file in ("config.json", "model.safetensors", "MODEL_CARD.md"):
        assert any(fnmatch(f"checkpoints/earlybird-en/{file}", pattern) for pattern in patterns)


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "9. Accepting Warranty or Additional Liability" in text


def test_the_changelog_knows_this_version_or_calls_it_unreleased() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text or f"## [{PROJECT['project']['version']}]" in text


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_every_make_command_in_the_documents_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    commands = re.findall(r"\bmake((?: [a-z][a-z-]*)+)(?=`|\n|$|\s*#)", text)
    named = {target for command in commands for target in command.split()}
    assert named, "it names none"
    assert named <= TARGETS


def test_the_readme_has_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


def test_the_ci_script_can_run_and_ends_with_the_test_command() -> None:
    path = ROOT / ".ci" / "run"
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert "set -euo pipefail" in lines
    assert lines[-1] == "make test"


@pytest.mark.parametrize("target", ["setup", "demo", "test", "check"])
def test_make_knows_what_to_do(target: str) -> None:
    run = subprocess.run(["make", "-n", "-C", str(ROOT), target], capture_output=True, text=True, check=True)
    assert (".venv/bin/" in run.stdout) or target == "setup"


def test_fast_tests_leave_out_the_slow_ones() -> None:
    options = PROJECT["tool"]["pytest"]["ini_options"]
    assert "-m 'not slow and not nightly'" in options["addopts"]
    assert [marker.partition(":")[0] for marker in options["markers"]] == ["slow", "nightly"]


def test_there_is_enough_test_code() -> None:
    def lines(paths: list[Path]) -> int:
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)

    source, tests = lines(MODULES), lines(sorted((ROOT / "tests").rglob("*.py")))
    assert tests >= 0.8 * source, f"{tests} lines of tests for {source} lines of source"
