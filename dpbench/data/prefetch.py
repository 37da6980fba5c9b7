"""Items and batches made ahead, by a thread or by processes: the same order, the same errors."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from dpbench.architecture.user_errors import user_errors_in
from dpbench.data.batch import Samples
from dpbench.data.items import Source
from dpbench.errors import DataError, UsageError

T = TypeVar("T")

JOIN_SECONDS = 0.5
"""Seconds that leaving waits for the thread; a thread that is making an item ends with that
item."""


class Prefetcher(Generic[T]):
    """Iterates once over `items`; a thread makes up to `depth` of them ahead.

    An error of `items` reaches the consumer at the same position, with its traceback. Leaving the
    `with` block, or dropping the last reference, ends the thread, also from within the iteration.

    Arguments:
        items: iterated in the thread, or by the consumer itself if depth is 0.
        depth: number of items made ahead; 0 makes each when it is asked for, without a thread.
        receive: called by the consumer with each item before it gets it.

    Raises:
        UsageError: the depth is below 0.
    """

    def __init__(
        self, items: Iterable[T], depth: int, *, receive: Callable[[T], None] | None = None
    ) -> None:
        if depth < 0:
            raise UsageError(f"prefetch: got {depth}, expected 0 (none) or more items")
        self._receive = receive
        self._waited_seconds = 0.0
        self._end: Callable[[], object] | None = None
        if depth:
            channel: _Channel[T] = _Channel(depth)
            # Neither the thread nor the channel refers to the prefetcher, so it can be collected.
            thread = threading.Thread(
                target=_produce, args=(items, channel), name="dpbench-prefetch", daemon=True
            )
            self._source: Iterator[T] = channel
            # Also called at interpreter exit, before the state that the thread needs is torn down.
            self._end = weakref.finalize(self, _end, channel, thread)
            thread.start()
        else:
            self._source = iter(items)

    @property
    def waited_seconds(self) -> float:
        """Seconds that the consumer has waited for items so far; without a thread, the time to make
        them all."""
        return self._waited_seconds

    def close(self) -> None:
        """End the thread and the iteration; items made ahead are dropped."""
        self._source = iter(())
        if self._end is not None:
            self._end()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        start = time.perf_counter()
        try:
            item = next(self._source)
        finally:
            self._waited_seconds += time.perf_counter() - start
        if self._receive is not None:
            self._receive(item)
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Channel(Generic[T]):
    """A queue of limited length that either side can close; its end is the error, if any."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Wait for room and add an item; returns False if nobody wants items any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._depth)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def finish(self, error: BaseException | None) -> None:
        """End the items; those that wait can still be taken, and `error` is raised after them."""
        with self._changed:
            self._closed, self._error = True, error
            self._changed.notify_all()

    def drop(self) -> None:
        """Stop accepting items."""
        with self._changed:
            self._closed, self._error = True, None
            self._items.clear()
            self._changed.notify_all()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
        raise StopIteration if error is None else error


def _produce(items: Iterable[T], channel: _Channel[T]) -> None:
    error: BaseException | None = None
    try:
        for item in items:
            if not channel.put(item):
                return
    except BaseException as caught:  # also SystemExit: the consumer would wait forever
        error = caught
    channel.finish(error)


def _end(channel: _Channel[T], thread: threading.Thread) -> None:
    channel.drop()
    # The garbage collector may run this in the thread itself.
    if thread is not threading.current_thread():
        thread.join(JOIN_SECONDS)


PR_SET_PDEATHSIG = 1  # of linux/prctl.h

Taken = tuple[torch.Tensor, tuple[Samples, Samples]]
"""The indices of a batch, and its samples in host memory."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error of a worker as text, since its class may not be picklable."""

    words: str
    traceback: str

    def error(self) -> DataError:
        error = DataError(self.words)
        error.add_note(self.traceback)
        return error


class _Batches(Dataset[Any]):
    """The dataset of a worker: loads the samples for the indices of a batch."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitems__(self, indices: list[int]) -> Any:
        wanted = torch.tensor(indices)
        try:
            with user_errors_in("a data worker", "taking samples"):
                return wanted, self._source.take(wanted)
        except UsageError as error:
            return _Failure(str(error), traceback.format_exc())


@contextmanager
def taken_by_workers(
    source: Source, batches: Iterable[torch.Tensor], *, workers: int, prefetch: int, seed: int
) -> Iterator[Iterator[Taken]]:
    """Start `workers` processes that load the samples of `batches`, which may be endless.

    Batches come in order, and each worker loads `prefetch` ahead. A worker computes in one thread,
    and its random numbers depend on `seed` and its number. Enter this in the main thread, which
    gets the signal if a worker is killed; no process is left at the end.

    The iterator raises DataError for a worker's error, with the traceback as a note.
    """
    loader = DataLoader(
        _Batches(source),
        batch_sampler=(indices.tolist() for indices in batches),
        num_workers=workers,
        prefetch_factor=prefetch,
        collate_fn=_as_it_is,
        worker_init_fn=_end_with_parent,
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(seed),
    )
    started = iter(loader)
    try:
        yield _checked(started)
    finally:
        # Explicit, since a traceback may hold a reference that would keep the workers alive.
        started._shutdown_workers()  # type: ignore[attr-defined]


def _checked(answers: Iterator[Taken | _Failure]) -> Iterator[Taken]:
    for answer in answers:
        if isinstance(answer, _Failure):
            raise answer.error()
        yield answer


def _as_it_is(batch: Any) -> Any:
    return batch


def _end_with_parent(number: int) -> None:
    """End this worker with its parent: a killed rank would leave behind a worker that hangs in the
    user's code."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
