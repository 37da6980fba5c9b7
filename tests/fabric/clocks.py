"""Event loops in real time, and in a time that passes only where everybody waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_real_time(work: Coroutine[Any, Any, T]) -> T:
    """Waits are as long as they say, and a little longer."""
    # Waits to the microsecond, where the default selector waits to the millisecond.
    return _run(asyncio.SelectorEventLoop(selectors.SelectSelector()), work)


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Waits are exactly as long as they say, and take no time."""
    return _run(_VirtualLoop(_Idle()), work)


class _Idle(selectors.SelectSelector):
    """Nothing ever arrives from outside: whoever waits for it waits until the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits for another")
        self.now += timeout
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, idle: _Idle) -> None:
        self._idle = idle
        super().__init__(idle)

    def time(self) -> float:
        return self._idle.now


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
