"""Choose a kernel's backend by name, report it, and never fall back silently.

A kernel's name is `<module>.<function>`: `dispatch("ctc.greedy_collapse", backend="numba")` imports `kernels.ctc`,
which registers its backends. Every kernel has a backend called "reference", in plain PyTorch; the others have its
signature and its results.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class KernelUnavailable(Exception):
    """A kernel or backend that was asked for by name and is not there; the message says what is, and why.

    `asr.errors.KernelUnavailable` derives from it, because this package imports nothing of the project.
    """


@dataclass(frozen=True)
class Kernel:
    """A chosen backend of a kernel; call it as the function it holds.

    Attributes:
        name: the kernel's name.
        backend: the backend that runs, for logs and reports.
        fn: the function.
    """

    name: str
    backend: str
    fn: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the backend."""
        return self.fn(*args, **kwargs)


_loaders: dict[str, dict[str, Callable[[], Callable[..., Any]]]] = {}


def register(kernel: str, backend: str, fn: Callable[..., Any]) -> None:
    """Make `fn` the implementation of `kernel` called `backend`.

    Raises:
        ValueError: if there is one already: two implementations of one name would depend on the order of imports.
    """
    register_lazy(kernel, backend, lambda: fn)


def register_lazy(kernel: str, backend: str, load: Callable[[], Callable[..., Any]]) -> None:
    """As `register`, for a backend whose imports are heavy or optional.

    Args:
        load: returns the implementation; called by each `dispatch` of it. An ImportError that it raises is reported as
            KernelUnavailable.
    """
    backends = _loaders.setdefault(kernel, {})
    if backend in backends:
        raise ValueError(f"kernel {kernel!r} already has a backend {backend!r}")
    backends[backend] = load


def available(kernel: str) -> tuple[str, ...]:
    """Registered backends of `kernel`, sorted; empty if there is no such kernel.

    >>> "reference" in available("ctc.greedy_collapse")
    True
    """
    _import_home(kernel)
    return tuple(sorted(_loaders.get(kernel, {})))


def dispatch(kernel: str, backend: str) -> Kernel:
    """The implementation of `kernel` called `backend`.

    Raises:
        KernelUnavailable: if the kernel or the backend is unknown, or what the backend needs is not installed.
    """
    names = available(kernel)
    if not names:
        raise KernelUnavailable(f"no kernel {kernel!r}; there are {', '.join(sorted(_loaders)) or 'none'}")
    if backend not in names:
        raise KernelUnavailable(f"kernel {kernel!r} has no backend {backend!r}; it has {', '.join(names)}")
    try:
        fn = _loaders[kernel][backend]()
    except ImportError as error:
        raise KernelUnavailable(f"backend {backend!r} of kernel {kernel!r} cannot be loaded: {error}") from error
    return Kernel(kernel, backend, fn)


def _import_home(kernel: str) -> None:
    module, dot, _ = kernel.partition(".")
    if not dot or kernel in _loaders:
        return
    home = f"kernels.{module}"
    try:
        importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name != home:
            raise  # the module is there, and something that it needs is not: not an unknown name
