"""Items and batches made ahead, by a thread or by processes: the same order, the same errors."""

from __future__ import annotations

import ctypes
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from dpbench.architecture.user_errors import user_errors_in
from dpbench.data.batch import Samples
from dpbench.data.items import Source
from dpbench.errors import DataError, UsageError

T = TypeVar("T")


class _End:
    """Stands for the end of the items."""


class Prefetcher(Generic[T]):
    """Iterates once over `items`; a thread makes up to `depth` of them ahead.

    An error of `items` reaches the consumer at the same position, with its traceback. Leaving the
    `with` block, or dropping the last reference, ends the thread after the item that it is making.

    Arguments:
        items: iterated in the thread, or by the consumer itself if depth is 0.
        depth: number of items made ahead; 0 makes each when it is asked for, without a thread.
    """

    def __init__(self, items: Iterable[T], depth: int) -> None:
        self.waited_seconds = 0.0
        """Seconds that the consumer has waited for items so far; without a thread, the time to make
        them all."""
        self._items = iter(items)
        self._thread = ThreadPoolExecutor(1, "dpbench-prefetch") if depth else None
        self._ahead: deque[Future[T | _End]] = deque()
        for _ in range(depth):
            self._make_one()

    def _make_one(self) -> None:
        if self._thread is not None:
            self._ahead.append(self._thread.submit(next, self._items, _End()))

    def close(self) -> None:
        """End the thread and the iteration; items made ahead are dropped."""
        self._items = iter(())
        self._ahead.clear()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        start = time.perf_counter()
        try:
            item = self._ahead.popleft().result() if self._ahead else next(self._items, _End())
        finally:
            self.waited_seconds += time.perf_counter() - start
        if isinstance(item, _End):
            self.close()
            raise StopIteration
        self._make_one()
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


PR_SET_PDEATHSIG = 1  # of linux/prctl.h

Taken = tuple[Samples, Samples]
"""Inputs and targets of a batch, in host memory."""


class _Batches(Dataset[Any]):
    """The dataset of a worker: loads the samples for the indices of a batch."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitems__(self, indices: list[int]) -> Taken | str:
        """The samples, or the words of an error, whose class may not be picklable."""
        try:
            with user_errors_in("a data worker", "taking samples"):
                return self._source.take(torch.tensor(indices))
        except UsageError as error:
            return str(error)


@contextmanager
def taken_by_workers(
    source: Source, batches: Iterable[torch.Tensor], *, workers: int, prefetch: int, seed: int
) -> Iterator[Iterator[Taken]]:
    """Start `workers` processes that load the samples of `batches`, which may be endless.

    Batches come in order, and each worker loads `prefetch` ahead. A worker computes in one thread,
    and its random numbers depend on `seed` and its number. Enter this in the main thread, which
    gets the signal if a worker is killed; no process is left at the end.

    The iterator raises DataError for a worker's error, with its place in the user's code.
    """
    loader = DataLoader(
        _Batches(source),
        batch_sampler=(indices.tolist() for indices in batches),
        num_workers=workers,
        prefetch_factor=prefetch,
        collate_fn=lambda batch: batch,
        worker_init_fn=_end_with_parent,
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(seed),
    )
    started = iter(loader)
    try:
        yield map(_checked, started)
    finally:
        # Explicit, since a traceback may hold a reference that would keep the workers alive.
        started.__del__()  # type: ignore[attr-defined]


def _checked(answer: Taken | str) -> Taken:
    if isinstance(answer, str):
        raise DataError(answer)
    return answer


def _end_with_parent(number: int) -> None:
    """End this worker with its parent: a killed rank would leave behind a worker that hangs in the
    user's code."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
