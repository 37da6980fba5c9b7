"""Libraries that set the number of threads to what they think best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads_kept() -> Iterator[None]:
    """Whatever is set inside, a replica goes on with the threads that the trial gives it."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
