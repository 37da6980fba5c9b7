"""Processes that load the items of batches, like the workers of torch's DataLoader.

They are forked, as DataLoader does by default on Linux: in milliseconds, without pickling a dataset
that may hold anything, and with its file already imported. Start them before the process group, so
that they inherit neither a peer's socket nor a lock that one of its threads holds. (The fork server
of the ranks cannot start them: Python lets only the process that started a server use it.)
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
            with blamed("a data worker", "taking samples"):
                return wanted, self._source.take(wanted)
        except UsageError as error:
            return Failure(str(error), traceback.format_exc())


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


def _checked(answers: Iterator[Taken | Failure]) -> Iterator[Taken]:
    for answer in answers:
        if isinstance(answer, Failure):
            raise answer.error()
        yield answer


def _as_it_is(batch: Any) -> Any:
    return batch


def _end_with_parent(number: int) -> None:
    """End this worker with its parent: a killed rank would leave behind a worker that hangs in the
    user's code."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
