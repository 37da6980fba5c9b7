"""Asks every reducer, before an optimizer steps, whether the gradients are averaged.

Optimizers do not know the wrapper around their parameters, so this uses torch's global hook, which
runs before each optimizer's step.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpbench.parallel.compilation import not_compiled

if TYPE_CHECKING:
    from dpbench.parallel.ddp.reducer import Reducer


@not_compiled
class _Steps:
    """The steps of all optimizers of this process, and the reducers to call before them."""

    def __init__(self) -> None:
        self._reducers: weakref.WeakSet[Reducer] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._is_hooked = False

    def watch(self, reducer: Reducer) -> None:
        """Call this reducer before every optimizer step from now on, as long as it lives."""
        with self._lock:
            self._reducers.add(reducer)
            if not self._is_hooked:
                register_optimizer_step_pre_hook(self._before)
                self._is_hooked = True

    def _before(self, optimizer: Optimizer, arguments: Any, options: Any) -> None:
        # A copy: a reducer may wait for other ranks, and must not hold the lock meanwhile.
        with self._lock:
            reducers = list(self._reducers)
        if reducers:
            stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for reducer in reducers:
                reducer.before_optimizer(stepped)


optimizer_steps = _Steps()
