"""Backends are chosen by name, reported, and never replaced by another."""

from __future__ import annotations

import pytest

import asr.errors
from kernels import dispatch as registry
from kernels.dispatch import KernelUnavailable, available, dispatch, register, register_lazy


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaders", {name: dict(b) for name, b in registry._loaders.items()})


def test_the_chosen_backend_runs_and_says_its_name() -> None:
    register("toy", "reference", lambda x: x + 1)
    register("toy", "fast", lambda x: x + 2)
    kernel = dispatch("toy", "fast")
    assert (kernel.name, kernel.backend, kernel(40)) == ("toy", "fast", 42)
    assert dispatch("toy", "reference")(40) == 41
    assert available("toy") == ("fast", "reference")


def test_unknown_kernel_and_backend_name_what_there_is() -> None:
    register("toy", "reference", lambda: None)
    with pytest.raises(KernelUnavailable, match=r"kernel 'toy' has no backend 'cuda'; it has reference"):
        dispatch("toy", "cuda")
    with pytest.raises(KernelUnavailable, match=r"no kernel 'nonsense'; there are .*toy"):
        dispatch("nonsense", "reference")
    with pytest.raises(KernelUnavailable, match=r"no kernel 'no_such_module\.thing'"):
        dispatch("no_such_module.thing", "reference")


def test_a_backend_that_cannot_be_imported_is_an_error_not_a_fallback() -> None:
    def load() -> object:
        raise ImportError("No module named 'warp'")

    register("toy", "reference", lambda: None)
    register_lazy("toy", "warp", load)  # type: ignore[arg-type]
    with pytest.raises(KernelUnavailable, match=r"backend 'warp' of kernel 'toy' cannot be loaded: No module named"):
        dispatch("toy", "warp")


def test_a_name_is_taken_once() -> None:
    register("toy", "reference", lambda: None)
    with pytest.raises(ValueError, match="already has a backend 'reference'"):
        register("toy", "reference", lambda: None)


def test_dotted_names_import_their_module(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []

    def import_module(name: str) -> None:
        imported.append(name)
        register("toys.car", "reference", lambda: None)

    monkeypatch.setattr("kernels.dispatch.importlib.import_module", import_module)
    assert available("toys.car") == ("reference",)
    assert available("toys.car") == ("reference",)
    assert imported == ["kernels.toys"]


def test_a_module_that_lacks_what_it_needs_is_not_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("kernels.dispatch.importlib.import_module", import_module)
    with pytest.raises(ModuleNotFoundError, match="torch"):
        dispatch("toys.car", "reference")


def test_the_projects_error_is_caught_as_either() -> None:
    assert issubclass(asr.errors.KernelUnavailable, KernelUnavailable)
    assert issubclass(asr.errors.KernelUnavailable, asr.errors.EarlybirdError)
