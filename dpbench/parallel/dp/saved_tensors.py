"""Lets saved-tensors hooks of the caller that depend on order work with replicas in threads.

Non-reentrant activation checkpointing (torch.utils.checkpoint with use_reentrant=False) does not
keep the tensors that a forward saves for its backward. It numbers them, reruns the forward when the
backward asks for the first one, and identifies the new tensors by their numbers. Replicas that save
in threads would get different numbers each time, and so another replica's tensors. And the backward
of a replica, which asks in its worker, would start a forward that waits for that same worker.

So each replica's tensors are held back separately. When all replicas are done they are numbered in
the caller's thread, replica by replica; before the workers begin their backward, the caller's
thread asks for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


class _Slot:
    """Placeholder in a replica's graph for a saved tensor."""

    __slots__ = ("packed", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor | None = tensor
        self.packed: Any = None


class _Hold:
    """The pack hook in a replica's thread."""

    def __init__(self, slots: list[_Slot]) -> None:
        self._slots = slots

    def __call__(self, tensor: Tensor) -> _Slot:
        slot = _Slot(tensor)
        self._slots.append(slot)
        return slot


class SavedInOrder:
    """The tensors that the replicas of one forward save, for hooks that depend on their order."""

    def __init__(self, hooks: Hooks, replicas: int) -> None:
        self._pack, self._unpack = hooks
        self._slots: list[list[_Slot]] = [[] for _ in range(replicas)]

    def entered(self, replica: int) -> AbstractContextManager[Any]:
        """The context for the forward of a replica, to enter in its thread."""
        return saved_tensors_hooks(_Hold(self._slots[replica]), self._taken)

    def pack(self) -> None:
        """Pass all saved tensors to the caller's hooks, after all replicas are done; in the
        caller's thread."""
        for slot in itertools.chain.from_iterable(self._slots):
            assert slot.tensor is not None
            slot.packed, slot.tensor = self._pack(slot.tensor), None

    @contextmanager
    def unpacked(self) -> Iterator[None]:
        """A context for the replicas' backward in which saved tensors are available; in the
        caller's thread."""
        slots = list(itertools.chain.from_iterable(self._slots))
        try:
            for slot in slots:
                slot.tensor = self._unpack(slot.packed)
            yield
        finally:
            for slot in slots:
                slot.tensor = None

    def _taken(self, slot: _Slot) -> Tensor:
        """The unpack hook; it runs outside `unpacked` only for a user's own backward inside a
        replica."""
        return self._unpack(slot.packed) if slot.tensor is None else slot.tensor


def saved_in_order(hooks: Hooks | None, replicas: int) -> SavedInOrder | None:
    """A SavedInOrder; None if there are no hooks, or hooks that may be called in any order and
    thread."""
    if hooks is None:
        return None
    pack = hooks[0]
    # torch does not tell whose hooks they are. Hooks of an outer wrapper pass them on.
    counts = getattr(pack, "__module__", None) == "torch.utils.checkpoint"
    return SavedInOrder(hooks, replicas) if counts or isinstance(pack, _Hold) else None
