"""The parts of a model that are layers of the same kind in a row, as models write them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

LISTS = (nn.Sequential, nn.ModuleList)


def members(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost members of every Sequential and ModuleList, in order: not the lists
    themselves, and no list inside of a member."""
    for child in module.children():
        if isinstance(module, LISTS) and not isinstance(child, LISTS):
            yield child
        else:
            yield from members(child)
