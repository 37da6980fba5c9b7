"""Seconds and bytes that the steps of a DataParallel take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Literal, get_args

import torch
from torch import Tensor

from dpbench.parallel.devices import synchronize

Phase = Literal["scatter", "replicate", "forward", "gather", "backward", "reduce"]
PHASES: tuple[Phase, ...] = get_args(Phase)


class StepMeter:
    """What the steps of a DataParallel have cost since its construction.

    Seconds are those of the calling thread, on the host's clock. "forward" and "backward" last
    until the slowest replica is done.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self.waits = False
        """Whether each phase waits for the CUDA devices at its end, so that it has the time that it
        takes, not the time to queue its work. This makes steps slower."""
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self.reduced_bytes = 0
        """Bytes of dense gradients summed over replicas."""
        self.summed_backwards = 0
        """Backward passes in which gradients were summed."""

    @contextmanager
    def time(self, phase: Phase) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
            if self.waits:
                synchronize(*self._devices)
        finally:
            self.seconds[phase] += perf_counter() - start

    def count(self, total: Sequence[Tensor | None]) -> None:
        """Count a backward in which these gradients were summed."""
        self.summed_backwards += any(gradient is not None for gradient in total)
        self.reduced_bytes += sum(
            g.nbytes for g in total if g is not None and g.layout is torch.strided
        )
