"""Who else can see a gradient: what its owner may overwrite, or replace, without anyone noticing.

A gradient that only the parameter has may become a view of a bucket. One that the user has kept
(as gradient surgery does), or made (to have all gradients in one tensor), may not: torch's
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
    """How many tensors lie in a storage, plus one for each time that it is kept itself."""
    # Underscored; the only way to ask, by which torch's CUDA graphs know what is alive.
    return torch._C._storage_Use_Count(storage._cdata)


def is_held_elsewhere(gradients: Sequence[Tensor | None], place: int) -> bool:
    """Whether anyone but its parameter and the list has this gradient, or part of its memory.

    Args:
        gradients: a list, which is asked for so that no further reference is needed.
        place: of a gradient in it.
    """
    gradient = gradients[place]
    assert gradient is not None
    # Itself, and the storage that is asked.
    if gradient.layout == torch.strided and views_of(gradient.untyped_storage()) > 2:
        return True
    del gradient
    return sys.getrefcount(gradients[place]) > _references_of_an_unheld_gradient()


@cache
def _references_of_an_unheld_gradient() -> int:
    """Measured, as versions of torch differ in whether the parameter's own reference counts."""
    parameter = nn.Parameter(torch.zeros(1, device="cpu"))
    parameter.grad = torch.zeros(1, device="cpu")
    gradients = [parameter.grad]
    return sys.getrefcount(gradients[0])


class _Reducers:
    """How many live reducers average the gradient of each parameter in this process.

    Attributes:
        changes: goes up when a reducer comes or goes.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._numbers = itertools.count(1)
        # By identity, as tensors compare element by element.
        self._counts: Any = WeakIdKeyDictionary()
        self._lock = threading.Lock()
        self._left: deque[Sequence[weakref.ref[nn.Parameter]]] = deque()

    def enter(self, parameters: Sequence[nn.Parameter]) -> None:
        """A reducer begins to average their gradients."""
        with self._lock:
            self._settle()
            for parameter in parameters:
                self._counts[parameter] = self._counts.get(parameter, 0) + 1
        self.changes = next(self._numbers)

    def leave(self, parameters: Sequence[weakref.ref[nn.Parameter]]) -> None:
        """A reducer has ended; it is counted out by whoever asks next.

        The garbage collector may call this at any point of any thread, also of one that has the
        lock, so that it must not be waited for here.
        """
        self._left.append(parameters)
        self.changes = next(self._numbers)

    def share(self, parameter: nn.Parameter) -> bool:
        """Whether several reducers average its gradient."""
        if self._left:
            with self._lock:
                self._settle()
        return bool(self._counts.get(parameter, 0) > 1)

    def _settle(self) -> None:
        """Count out the reducers that have ended; the lock is held."""
        while self._left:
            for ref in self._left.popleft():
                if (parameter := ref()) is not None:
                    self._counts[parameter] = self._counts.get(parameter, 0) - 1


reducers = _Reducers()
"""All of this process, as a parameter may be in several wrapped modules."""
