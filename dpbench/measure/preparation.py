"""Changes to a module before it is wrapped: compilation."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from dpbench.specs import WorkloadSpec


def prepare(module: nn.Module, workload: WorkloadSpec) -> nn.Module:
    """Compiles `module` in place as the workload says and returns it; its parameters stay the same
    objects."""
    if workload.compile != "none":
        # In place, so that the names of parameters, the hooks and copies stay the module's.
        mode = None if workload.compile == "default" else workload.compile
        module.compile(mode=mode)
    return module


LISTS = (nn.Sequential, nn.ModuleList)


def members(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost members of every Sequential and ModuleList, in order; neither the lists
    themselves nor lists inside a member."""
    for child in module.children():
        if isinstance(module, LISTS) and not isinstance(child, LISTS):
            yield child
        else:
            yield from members(child)
