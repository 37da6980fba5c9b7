"""Cost of the steps of a data-parallel wrapper: seconds by phase, and gradients summed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Literal, get_args

import torch

Phase = Literal["scatter", "replicate", "forward", "gather", "backward", "reduce"]
PHASES: tuple[Phase, ...] = get_args(Phase)


class StepMeter:
    """Running totals since the construction of a wrapper.

    Seconds are those of the calling thread, on the host's clock. "forward" and "backward" last
    until the slowest replica is done.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._on_cuda = [device for device in devices if device.type == "cuda"]
        self.waits = False
        """Whether each phase waits for the CUDA devices at its end, so that it has the time that it
        takes, not the time to queue its work. This makes steps slower."""
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self.reduced_bytes = 0
        """Bytes of dense gradients summed over replicas."""
        self.reductions = 0
        """Backward passes in which gradients were summed."""

    @contextmanager
    def time(self, phase: Phase) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
            if self.waits:
                for device in self._on_cuda:
                    torch.cuda.synchronize(device)
        finally:
            self.seconds[phase] += perf_counter() - start
