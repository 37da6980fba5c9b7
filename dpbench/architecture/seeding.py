"""Global random numbers of a user's code, the same in every process."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

LARGEST_NUMPY_SEED = 2**32 - 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global random numbers of torch, Python and numpy; afterwards they go on as before.

    Generators of GPUs are left alone, as items and batches are made on the CPU. Generators that the
    user's code makes itself, such as numpy's default_rng(), are not seeded.
    """
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=[]):
        try:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed also seeds all GPUs
            random.seed(seed)
            if numpy:
                numpy.random.seed(seed & LARGEST_NUMPY_SEED)
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)
