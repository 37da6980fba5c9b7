"""What torchrun leaves in a process that goes on: signal handlers, and files for the collector."""

from __future__ import annotations

import gc
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from dpbench.launch.signals import ENDING


@contextmanager
def after_torchrun() -> Iterator[None]:
    """Puts it right at the end, so that no other test has to."""
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
