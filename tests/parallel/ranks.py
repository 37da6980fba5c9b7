"""Processes that are the ranks of a process group, and call functions of their rank."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dpbench.launch.fork_server import fork_server

Body = Callable[[int], Any]
BODY_SECONDS = 100.0
"""Time that a body of a world may take."""


def run_ranks(
    functions: Callable[..., Any] | Sequence[Callable[..., Any]],
    store: Path,
    world_size: int = 2,
    timeout: float = 40.0,
    *,
    backend: str = "gloo",
) -> list[Any]:
    """Call importable functions of the rank, in order, on every rank, and kill the ranks after
    `timeout` seconds.

    Returns what the last function returned, by rank; raises AssertionError if a rank failed (with
    its traceback), died or was too slow.
    """
    results: list[Any] = []
    deadline = time.monotonic() + timeout
    with closing(Ranks(store, world_size, backend)) as ranks:
        for function in [functions] if callable(functions) else functions:
            results, failures = ranks.call(function, deadline - time.monotonic())
            assert not failures, "\n".join(failures)
    return results


class Ranks:
    """The ranks of one group, until it is closed or one of them has failed."""

    def __init__(self, store: Path, size: int, backend: str) -> None:
        """Start processes that meet through `store`, a path that does not exist yet."""
        self._pipes: list[Connection] = []
        self._processes = []
        context = fork_server()
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (theirs, backend, str(store), rank, size)
            self._processes.append(context.Process(target=_main, args=arguments, daemon=True))
            self._processes[-1].start()
            theirs.close()
            self._pipes.append(ours)

    def call(
        self, function: Callable[..., Any], seconds: float, *, together: bool = True
    ) -> tuple[list[Any], list[str]]:
        """What the ranks return, and a line for each rank that failed, died or was too slow.

        Unless they are together, ranks end after the function, and do not wait for each other.
        """
        for pipe in self._pipes:
            with suppress(OSError):  # it has died; the answer says so
                pipe.send((function, together))
        deadline = time.monotonic() + seconds
        results, failures = [], []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                failures.append(f"rank {rank} was too slow")
                continue
            try:
                error, result = pipe.recv()
            except EOFError:
                error, result = "died", None
            results.append(result)
            if error:
                failures.append(f"rank {rank}: {error}")
        return results, failures

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()  # at which a rank ends that runs no function
        for process in self._processes:
            process.join(timeout=1.0)
            process.kill()
            process.join()
            process.close()


def _main(pipe: Connection, backend: str, path: str, rank: int, size: int) -> None:
    """Join the group and call what comes through the pipe."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TEMP_DIR": str(Path(path).parent)}
    torch.set_num_threads(1)
    store, timeout = dist.FileStore(path, size), timedelta(seconds=20)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    dist.barrier()  # nobody dies while another is still joining
    while True:
        try:
            function, together = pipe.recv()
        except EOFError:
            os._exit(0)  # destructors of the group might wait for the other ranks
        try:
            result = function(rank)
            if together:
                dist.barrier()
            pipe.send((None, result))
            if not together:
                os._exit(0)
        except BaseException:
            pipe.send((traceback.format_exc(), None))
            os._exit(1)


def finish(work: dist.Work | None) -> None:
    """Wait for a collective, which returns None if it is over."""
    if work is not None:
        work.wait()


class World:
    """The bodies of all tests of a module, and one group of ranks that runs them one after another.

        world = World(backend="shm", sizes=(2, 4))

        @world.body
        def sums_are_sums(rank: int) -> None: ...

        test_on_ranks = world.test()

    Starting ranks takes longer than most bodies. A world starts them with the first of its tests,
    and again after a body that failed, as it may have left its group broken.

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
