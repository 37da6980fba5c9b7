"""Samples that are loaded ahead, by a thread or by processes, and copied to a device.

A step gets the same samples in the same order as without, and the same errors.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from dpbench.architecture.user_errors import user_errors_in
from dpbench.data.batch import Samples
from dpbench.data.datasets import Dataset, UserDataset
from dpbench.errors import UsageError
from dpbench.parallel import devices
from dpbench.parallel.tree import map_tensors, tensors
from dpbench.parent_death import end_with

T = TypeVar("T")


def to_device(samples: T, device: torch.device) -> T:
    """The samples on a device: to CUDA from pinned memory, on a stream of its own that the
    computation waits for."""
    return _wait_for_copy(_start_copy(samples, device), device)


def _start_copy(samples: T, device: torch.device) -> tuple[T, torch.Event | None]:
    """The samples on the device, and the end of the copy if it may still be running."""
    if device.type != "cuda":
        return map_tensors(lambda tensor: tensor.to(device), samples), None
    stream = devices.side_stream(device)
    # The context also makes the device current in the thread: otherwise pinning would make a
    # context on the first GPU for every rank.
    with devices.cuda.stream(stream):
        on_device = map_tensors(
            lambda tensor: tensor.pin_memory().to(device, non_blocking=True), samples
        )
        return on_device, stream.record_event()


def _wait_for_copy(copy: tuple[T, torch.Event | None], device: torch.device) -> T:
    samples, end = copy
    if end is not None:
        stream = devices.cuda.current_stream(device)
        stream.wait_event(end)
        for tensor in tensors(samples):
            tensor.record_stream(stream)  # keeps its memory until the computation is done
    return samples


@contextmanager
def loaded_ahead(items: Iterable[T], depth: int, device: torch.device) -> Iterator[Iterator[T]]:
    """The items, on a device; a thread makes up to `depth` of them ahead.

    An error of `items` comes at the same position, with its traceback. At the end of the context
    the thread ends after the item that it is making, and items made ahead are dropped.

    Args:
        items: trees of tensors; iterated in the thread, or by the consumer if depth is 0.
        depth: number of items made ahead; 0 makes each when it is asked for, without a thread.
        device: to which the tensors are copied.
    """
    started = map(partial(_start_copy, device=device), items)
    if not depth:
        yield (_wait_for_copy(copy, device) for copy in started)
        return
    thread = ThreadPoolExecutor(1, "dpbench-prefetch")
    ahead = deque(thread.submit(next, started, None) for _ in range(depth))

    def in_order() -> Iterator[T]:
        while (copy := ahead.popleft().result()) is not None:
            ahead.append(thread.submit(next, started, None))
            yield _wait_for_copy(copy, device)

    try:
        yield in_order()
    finally:
        thread.shutdown(cancel_futures=True)


def _select(
    dataset: Dataset | UserDataset, indices: Sequence[int]
) -> tuple[Samples, Samples] | str:
    """The samples at some indices, or the words of an error, whose class may not be picklable."""
    try:
        with user_errors_in("a data worker", "taking samples"):
            return dataset.select(torch.tensor(indices))
    except UsageError as error:
        return str(error)


@contextmanager
def loaded_by_workers(
    dataset: Dataset | UserDataset,
    batches: Iterable[torch.Tensor],
    *,
    workers: int,
    prefetch: int,
    seed: int,
) -> Iterator[Iterator[tuple[Samples, Samples]]]:
    """Start `workers` processes that load the samples of `batches`, which may be endless.

    Batches come in order, in host memory, and each worker loads `prefetch` ahead. A worker computes
    in one thread, and its random numbers depend on `seed` and its number. Enter this in the main
    thread, which gets the signal if a worker is killed; no process is left at the end.

    The iterator raises UsageError for a worker's error, with its place in the user's code.
    """
    this_process = os.getpid()
    loader: DataLoader[Any] = DataLoader(
        range(len(dataset)),  # type: ignore[arg-type]
        batch_sampler=(indices.tolist() for indices in batches),
        num_workers=workers,
        prefetch_factor=prefetch,
        collate_fn=partial(_select, dataset),
        # A killed rank would leave behind a worker that hangs in the user's code.
        worker_init_fn=lambda _: end_with(this_process),
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(seed),
    )

    with closing(_checked(iter(loader))) as answers:
        yield answers


def _checked(answers: Iterator[Any]) -> Generator[tuple[Samples, Samples], None, None]:
    """The answers up to the first error. The workers end with the last reference to `answers`, so
    no frame of a traceback may keep one."""
    try:
        for answer in answers:
            if isinstance(answer, str):
                raise UsageError(answer)
            yield answer
    except Exception as error:
        raise error.with_traceback(None)  # noqa: B904
    finally:
        del answers
