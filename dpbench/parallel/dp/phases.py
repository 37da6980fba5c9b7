"""Time that each phase of a data-parallel step costs the calling thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Literal, get_args

import torch

Phase = Literal["scatter", "replicate", "forward", "gather", "backward", "reduce"]
PHASES: tuple[Phase, ...] = get_args(Phase)


class PhaseClock:
    """Running totals of seconds per phase, on the host's clock: unless `waits` is set, CUDA work
    may still be running when a phase ends.

    "forward" and "backward" last until the slowest replica is done.
    """

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self._on_cuda = [device for device in devices if device.type == "cuda"]
        self.waits = False
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)

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
