"""A model that notes what a step asks of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from dpbench.measure.implementations import Plain


class Recorded(Plain):
    """The plain module; `events` has every call in order, and ")" at the end of a context."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.events: list[str] = []

    def forward(self, inputs: Any) -> Any:
        self.events.append("forward")
        return super().forward(inputs)

    def backward(self, loss: torch.Tensor) -> None:
        self.events.append("backward")
        super().backward(loss)

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        self.events.append(f"{name}(")
        yield
        self.events.append(")")

    def no_sync(self) -> AbstractContextManager[None]:
        return self._noted("no_sync")

    def without_sync(self) -> AbstractContextManager[None]:
        return self._noted("without_sync")

    def after_step(self, steps: int) -> None:
        self.events.append("after_step")
