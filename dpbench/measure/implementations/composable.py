"""Modules changed in place by torch's composable parallelism: the module itself is still called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from dpbench.measure.implementations.model import Communication, Plain


class Composable(Plain):
    """A module that got a switch for the reduction of its gradients."""

    def no_sync(self) -> AbstractContextManager[None]:
        return self._unreduced()

    @contextmanager
    def _unreduced(self) -> Iterator[None]:
        self.module.set_requires_gradient_sync(False)  # type: ignore[operator]
        try:
            yield
        finally:
            self.module.set_requires_gradient_sync(True)  # type: ignore[operator]

    def communication(self) -> Communication | None:
        return None
