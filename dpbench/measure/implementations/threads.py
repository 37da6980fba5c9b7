"""Keeps the number of threads from libraries that set their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads_kept() -> Iterator[None]:
    """A context that restores the trial's number of threads per replica, whatever is set inside."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
