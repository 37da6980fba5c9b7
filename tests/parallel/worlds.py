"""One group of ranks that runs the bodies of all tests of a module, one after the other.

    world = World(backend="shm", sizes=(2, 4))

    @world.body
    def sums_are_sums(rank: int) -> None: ...

    test_on_ranks = world.test()

Starting ranks takes longer than most bodies. A world starts them with the first of its tests, and
again after a body that failed, as it may have left its group broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.parallel.ranks import Ranks

BODY_SECONDS = 100.0
"""Time that a body may take."""
Body = Callable[[int], Any]


class World:
    """The bodies of one module, and the ranks that run them.

    Args:
        backend: of the default group.
        sizes: the numbers of ranks on which a body runs unless it says otherwise.
    """

    def __init__(self, *, backend: str, sizes: Sequence[int] = (2,)) -> None:
        self._backend = backend
        self._sizes = sizes
        self._cases: list[tuple[int, str, Body]] = []
        self._running: tuple[int, Ranks] | None = None

    def add(self, name: str, body: Body, *sizes: int) -> None:
        """Add a body, which every rank calls with its number, for these numbers of ranks."""
        self._cases += [(size, name, body) for size in sizes or self._sizes]

    def body(self, function: Body) -> Body:
        """Add a body, as a decorator."""
        return self.body_on()(function)

    def body_on(self, *sizes: int) -> Callable[[Body], Body]:
        """Add a body for these numbers of ranks, as a decorator."""

        def add(function: Body) -> Body:
            self.add(function.__name__, function, *sizes)
            return function

        return add

    def test(self) -> Callable[..., None]:
        """The test function of the module, with an id for each body and number of ranks."""
        by_size = sorted(self._cases, key=lambda case: case[0])
        cases = [pytest.param(size, body, id=f"{name}-{size}") for size, name, body in by_size]

        @pytest.mark.parametrize(("size", "body"), cases)
        def test(
            size: int,
            body: Body,
            request: pytest.FixtureRequest,
            tmp_path_factory: pytest.TempPathFactory,
        ) -> None:
            if self._running is None or self._running[0] != size:
                self._stop()
                store = tmp_path_factory.mktemp("world") / "store"
                self._running = (size, Ranks(store, size, self._backend))
                request.node.getparent(pytest.Module).addfinalizer(self._stop)
            _, failures = self._running[1].call(body, BODY_SECONDS)
            if failures:
                self._stop()
            assert not failures, "\n".join(failures)

        return test

    def _stop(self) -> None:
        if self._running is not None:
            self._running[1].close()
            self._running = None
