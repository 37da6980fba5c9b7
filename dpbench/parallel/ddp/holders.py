"""Other references to a gradient, because of which it must not be overwritten or replaced.

A gradient that only its parameter refers to may become a view of a bucket. One that the user has
kept (as gradient surgery does) or allocated (to have all gradients in one tensor) may not: torch's
DistributedDataParallel leaves both alone.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary


def views_of(storage: torch.UntypedStorage) -> int:
    """The number of tensors in a storage, plus one for each reference to the storage itself."""
    # Private, but the only way to ask; torch's CUDA graphs use it to find live tensors.
    return torch._C._storage_Use_Count(storage._cdata)


def is_held_elsewhere(gradients: Sequence[Tensor | None], place: int) -> bool:
    """Whether anything except its parameter and the list refers to this gradient or its memory.

    Args:
        gradients: a list, since passing the gradient itself would add a reference.
        place: the gradient's position in the list.
    """
    gradient = gradients[place]
    assert gradient is not None
    # The gradient itself, and the storage object made for this call.
    if gradient.layout == torch.strided and views_of(gradient.untyped_storage()) > 2:
        return True
    del gradient
    return sys.getrefcount(gradients[place]) > _references_of_an_unheld_gradient()


@cache
def _references_of_an_unheld_gradient() -> int:
    """The number of references to a gradient that only its parameter holds; measured, since it
    differs between torch versions."""
    parameter = nn.Parameter(torch.zeros(1, device="cpu"))
    parameter.grad = torch.zeros(1, device="cpu")
    gradients = [parameter.grad]
    return sys.getrefcount(gradients[0])


class _Reducers:
    """The number of live reducers that average the gradient of each parameter in this process.

    Attributes:
        changes: goes up when a reducer comes or goes.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._numbers = itertools.count(1)
        # Keyed by identity, since == on tensors compares element by element.
        self._counts: Any = WeakIdKeyDictionary()
        self._lock = threading.Lock()
        self._left: deque[Sequence[weakref.ref[nn.Parameter]]] = deque()

    def enter(self, parameters: Sequence[nn.Parameter]) -> None:
        """Count a new reducer for these parameters."""
        with self._lock:
            self._settle()
            for parameter in parameters:
                self._counts[parameter] = self._counts.get(parameter, 0) + 1
        self.changes = next(self._numbers)

    def leave(self, parameters: Sequence[weakref.ref[nn.Parameter]]) -> None:
        """Note that a reducer has ended; the next query uncounts it.

        The garbage collector may call this at any point of any thread, even one that holds the
        lock, so this must not wait for the lock.
        """
        self._left.append(parameters)
        self.changes = next(self._numbers)

    def share(self, parameter: nn.Parameter) -> bool:
        """Whether several reducers average the gradient of this parameter."""
        if self._left:
            with self._lock:
                self._settle()
        return bool(self._counts.get(parameter, 0) > 1)

    def _settle(self) -> None:
        """Uncount the reducers that have ended; the caller holds the lock."""
        while self._left:
            for ref in self._left.popleft():
                if (parameter := ref()) is not None:
                    self._counts[parameter] = self._counts.get(parameter, 0) - 1


reducers = _Reducers()
"""All reducers of this process, since a parameter may be in several wrapped modules."""
