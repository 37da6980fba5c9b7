"""Makes `torch.distributed` know the backends "shm" and "shm+gloo", whichever is imported first.

`import dpbench` must not import torch, which takes seconds. So if torch.distributed is not there
yet, the registration waits for its import.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_AWAITED = "torch.distributed"
_PACKAGES = {"shm": "dpbench.parallel.shm", "shm+gloo": "dpbench.parallel.hosts"}


def register_shm() -> None:
    """Now, or as soon as torch.distributed is imported; once is enough."""
    if _AWAITED in sys.modules:
        _register(sys.modules[_AWAITED])
    else:
        sys.meta_path.insert(0, _Finder())


def _register(distributed: Any) -> None:
    # torch can be built without it, and its import can be under way.
    if hasattr(distributed, "Backend"):
        for name, package in _PACKAGES.items():
            distributed.Backend.register_backend(
                name, partial(_create, package), extended_api=True, devices=["cpu", "cuda"]
            )


def _create(package: str, options: Any, backend_options: Any) -> Any:
    """Create a new group for torch; only now is the backend itself imported."""
    return importlib.import_module(package).create(options, backend_options)


class _Finder(MetaPathFinder):
    """Leaves finding to the usual finder, and has its loader call us at the end; once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _AWAITED:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


class _Registering(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Tools that look for a module's source ask its loader.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register(module)
