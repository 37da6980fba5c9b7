"""One group of ranks that runs the bodies of all tests of a module, one after the other.

    world = World(backend="shm", sizes=(2, 4))

    @world.body
    def sums_are_sums(rank: int) -> None: ...

    test_on_ranks = world.test()

Starting ranks takes longer than most bodies. A world starts them with the first of its tests, and
again after a body that failed, as it may have left its group broken.
"""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.parallel.ranks import Membership, answers, started

BODY_SECONDS = 100.0
"""Time that a body may take."""
Body = Callable[[int], Any]


class World:
    """The bodies of one module, and the ranks that run them."""

    def __init__(self, *, backend: str, sizes: Sequence[int] = (2,)) -> None:
        """
        Args:
            backend: of the default group.
            sizes: the numbers of ranks on which a body runs unless it says otherwise.
        """
        self._backend = backend
        self._sizes = sizes
        self._bodies: dict[str, tuple[Body, Sequence[int]]] = {}
        self._running: tuple[int, ExitStack, list[Connection]] | None = None

    def body(self, function: Body) -> Body:
        """Add a body: every rank calls it with its number."""
        return self.body_on(*self._sizes)(function)

    def body_on(self, *sizes: int) -> Callable[[Body], Body]:
        """Add a body for these numbers of ranks."""

        def add(function: Body) -> Body:
            self._bodies[function.__name__] = (function, sizes)
            return function

        return add

    def test(self) -> Callable[..., None]:
        """The test function of the module, with an id for each body and number of ranks."""
        sizes = sorted({size for _, of_body in self._bodies.values() for size in of_body})
        cases = [
            pytest.param(size, function, id=f"{name}-{size}")
            for size in sizes
            for name, (function, of_body) in self._bodies.items()
            if size in of_body
        ]

        @pytest.mark.parametrize(("size", "body"), cases)
        def test(
            size: int,
            body: Body,
            request: pytest.FixtureRequest,
            tmp_path_factory: pytest.TempPathFactory,
        ) -> None:
            if self._running is None or self._running[0] != size:
                self._stop()
                self._start(size, tmp_path_factory.mktemp("world") / "store")
                request.node.getparent(pytest.Module).addfinalizer(self._stop)
            failures = self._run(body)
            if failures:
                self._stop()
            assert not failures, "\n".join(failures)

        return test

    def _start(self, size: int, store: Path) -> None:
        groups = [Membership(self._backend, str(store), rank, size, 15.0) for rank in range(size)]
        stack = ExitStack()
        pipes = stack.enter_context(
            started(_rank_main, None, groups, leave_seconds=2.0, duplex=True)
        )
        self._running = (size, stack, pipes)

    def _run(self, body: Body) -> list[str]:
        assert self._running is not None
        _, _, pipes = self._running
        for pipe in pipes:
            pipe.send((body.__module__, body.__name__))
        _, failures = answers(pipes, BODY_SECONDS)
        return failures

    def _stop(self) -> None:
        if self._running is not None:
            _, stack, pipes = self._running
            self._running = None
            for pipe in pipes:
                pipe.close()  # at which the ranks end
            stack.close()


def _rank_main(_: None, group: Membership, pipe: Connection) -> None:
    group.join()
    while True:
        try:
            module, name = pipe.recv()
        except EOFError:
            os._exit(0)  # destructors of the group might wait for a rank that failed
        try:
            getattr(importlib.import_module(module), name)(group.rank)
            dist.barrier()
        except BaseException:
            pipe.send((traceback.format_exc(), None))
        else:
            pipe.send((None, None))
