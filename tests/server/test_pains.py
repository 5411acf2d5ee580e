"""docs/pains.md names tests; they must be there."""

import ast
import re
from functools import cache

import pytest

from tests.test_layers import ROOT

NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs" / "pains.md").read_text("utf-8"))))


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_it_names_many() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in names_in(path)
