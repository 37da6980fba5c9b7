"""Processes that take the items of batches one by one, as those of torch's DataLoader do.

They are forked, the default of DataLoader on Linux: in milliseconds, without pickling a dataset
that may hold anything, and its file is imported already. Start them before the process group: they
inherit no socket of a peer then, nor a lock that one of its threads holds. (The fork server that
the ranks come from cannot start them: Python lets only the process that started it use it.)
"""

from __future__ import annotations

import ctypes
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from dpbench.architecture.user_errors import blamed
from dpbench.data.batch import Samples
from dpbench.data.items import Source
from dpbench.errors import DataError, UsageError

PR_SET_PDEATHSIG = 1  # of linux/prctl.h

Taken = tuple[torch.Tensor, tuple[Samples, Samples]]
"""The indices of a batch, and its samples in host memory."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of a worker, in words: it may be of a class that cannot be sent."""

    words: str
    traceback: str

    def error(self) -> DataError:
        error = DataError(self.words)
        error.add_note(self.traceback)
        return error


class _Batches(Dataset[Any]):
    """What a worker does with the indices of a batch."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitems__(self, indices: list[int]) -> Any:
        wanted = torch.tensor(indices)
        try:
            with blamed("a data worker", "taking samples"):
                return wanted, self._source.take(wanted)
        except UsageError as error:
            return Failure(str(error), traceback.format_exc())


@contextmanager
def taken_by_workers(
    source: Source, batches: Iterable[torch.Tensor], *, workers: int, prefetch: int, seed: int
) -> Iterator[Iterator[Taken]]:
    """Starts `workers` processes that take the samples of `batches`, which may be endless.

    Batches come in their order, `prefetch` for each worker are taken ahead. A worker computes in
    one thread, and its random numbers follow from `seed` and its number. To be entered in the main
    thread, which hears of a worker that was killed; at the end no process is left.

    The iterator raises DataError, with the traceback as a note, for what a worker raised.
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
        # What dropping the last reference does; a traceback may hold one.
        started._shutdown_workers()  # type: ignore[attr-defined]


def _checked(answers: Iterator[Taken | Failure]) -> Iterator[Taken]:
    for answer in answers:
        if isinstance(answer, Failure):
            raise answer.error()
        yield answer


def _as_it_is(batch: Any) -> Any:
    return batch


def _end_with_parent(number: int) -> None:
    """A rank that is killed would leave a worker behind that hangs in the user's code."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
