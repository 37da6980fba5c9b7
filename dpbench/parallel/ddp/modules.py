"""A module's submodules, parameters and buffers: each once, and watched for changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import is_
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.ddp.broadcast import Message, broadcast_coalesced
from dpbench.parallel.torch_private import not_compiled

T = TypeVar("T")
KEPT_BYTES = 64 * 1024**2
"""Largest message buffer that is kept between steps; larger ones are sent in pieces."""


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


@not_compiled
class Buffers:
    """Finds the buffers of a module and sends them.

    Users may replace buffers and submodules at any time, so both are checked before each step.
    Looking them up would dominate the cost for a model with hundreds of them, so the result is kept
    and compared by identity.
    """

    def __init__(self, module: nn.Module, ignored: Collection[str]) -> None:
        """
        Args:
            module: the module whose buffers are sent.
            ignored: names of buffers that are left alone.
        """
        self._module = module
        self._ignored = ignored
        self._children = Children(module)
        # Not looked up before the first send: buffers that are never sent may be of any kind.
        self._has_looked = False

    def named(self) -> list[tuple[str, Tensor]]:
        """The buffers with their names, each once."""
        return named_once(self._module.named_buffers(remove_duplicate=False), self._ignored)

    def send(self, group: dist.ProcessGroup, source: int) -> int:
        """Overwrite the buffers with those of one rank of the group; a collective.

        Returns:
            The number of bytes of all buffers.
        """
        if not self._has_looked or self._has_changed():
            self._look()
        if self._message is None:
            return broadcast_coalesced(self._tensors, group, source)
        self._message.send(group, source)
        return sum(alias.nbytes for alias in self._aliases)

    def _look(self) -> None:
        self._has_looked = True
        self._held = [child._buffers for child in self._children.look()]
        self._found = [buffer for held in self._held for buffer in held.values()]
        self._tensors = [buffer for _, buffer in self.named()]
        self._aliases = [tensor.detach().data for tensor in self._tensors]
        devices = {tensor.device for tensor in self._tensors}
        nbytes = sum(tensor.nbytes for tensor in self._tensors)
        kept = len(devices) == 1 and nbytes <= KEPT_BYTES
        self._message: Message | None = Message(self._tensors) if kept else None

    def _has_changed(self) -> bool:
        found = [buffer for held in self._held for buffer in held.values()]
        return self._children.have_changed() or not (
            len(found) == len(self._found)
            and all(map(is_, found, self._found))
            # A tensor can get other memory or another shape and stay the same object.
            and all(map(Tensor.is_set_to, self._tensors, self._aliases))
        )
