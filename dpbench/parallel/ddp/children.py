"""A module's tensors by name, and whether its submodules have changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import is_
from typing import TypeVar

from torch import nn

T = TypeVar("T")


def named_once(named: Iterable[tuple[str, T]], ignored: Collection[str]) -> list[tuple[str, T]]:
    """Parameters or buffers that are not ignored, each once, under its first name that is not
    ignored.

    Args:
        named: tensors with all their names: one of a shared tensor's names may be ignored.
        ignored: names to leave out.
    """
    first: dict[int, tuple[str, T]] = {}
    for name, tensor in named:
        if name not in ignored:
            first.setdefault(id(tensor), (name, tensor))
    return list(first.values())


class Children:
    """All submodules of a module; they are compared by identity, at some 30 ns each."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.look()

    def look(self) -> list[nn.Module]:
        """Record the submodules as they are now; returns the module and all of them, each once."""
        modules = list(self._module.modules())
        self._held = [child._modules for child in modules]
        self._found = self._here()
        return modules

    def have_changed(self) -> bool:
        """Whether a submodule was added, removed or replaced since `look`."""
        here = self._here()
        return len(here) != len(self._found) or not all(map(is_, here, self._found))

    def _here(self) -> list[nn.Module | None]:
        return [child for held in self._held for child in held.values()]
