"""A module may import only from its own package or a package above it (docs/design.md §4)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = {"kernels": 0, "asr": 1, "lm_fusion": 2, "streaming": 3, "server": 4, "recipes": 4}
NOT_FOR_MODULES = {"tests", "samples"}


def imported_packages(source: str) -> Iterator[tuple[int, str]]:
    """(line, first part) of every absolute import, wherever in the module it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            names = [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
            yield from ((node.lineno, str(name).partition(".")[0]) for name in names)


def violations(package: str, source: str) -> list[str]:
    """The imports of a module of `package` that go down or across."""
    found = []
    for line, imported in imported_packages(source):
        above = imported in LAYERS and LAYERS[imported] < LAYERS[package]
        ours = imported in LAYERS or imported in NOT_FOR_MODULES
        if ours and imported != package and not above:
            found.append(f"line {line}: {package} imports {imported}")
    return found


MODULES = sorted(path for package in LAYERS for path in (ROOT / package).rglob("*.py"))


def test_every_package_is_looked_at() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(LAYERS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_its_package_or_above(path: Path) -> None:
    assert violations(path.relative_to(ROOT).parts[0], path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_enough_to_read(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 500
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    too_long = {f.name for f in functions if (f.end_lineno or 0) - f.lineno + 1 > 90}
    assert too_long == set()


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("kernels", "import asr"),
        ("kernels", "from asr.words import Word"),
        ("asr", "import numpy, streaming.session"),
        ("asr", "def late():\n    from lm_fusion.ngram import Automaton"),
        ("lm_fusion", "if True:\n    import streaming as s"),
        ("streaming", "import server.cli"),
        ("server", "from recipes import data"),
        ("recipes", "from server import batch"),
        ("server", "from tests.conftest import x"),
        ("asr", "import importlib\nimportlib.import_module('server.cli')"),
        ("asr", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import recipes"),
    ],
)
def test_the_checker_sees_a_wrong_import(package: str, source: str) -> None:
    assert len(violations(package, source)) == 1


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("asr", "import kernels.ctc, asr.words, torch"),
        ("streaming", "from asr.words import Word\nfrom lm_fusion import ngram\nfrom kernels import dispatch"),
        ("server", "from streaming.session import Session"),
        ("recipes", "import asr, streaming"),
        ("asr", "from . import words\n# import server\ntext = 'import server'"),
        ("asr", "import server_side_thing"),
    ],
)
def test_the_checker_lets_a_right_import_pass(package: str, source: str) -> None:
    assert violations(package, source) == []
