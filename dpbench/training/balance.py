"""Balance of ranks of unequal speed: forward passes are timed, and samples shared by speed."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import torch

from dpbench.data.batch import sample_count
from dpbench.measure.rank_group import RankGroup
from dpbench.specs.shares import shares_by_speed


class ForwardTimer:
    """Times the forward passes of a module in training; evaluation does not count."""

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._begun: Any = None
        self._passes: list[tuple[int, Any, Any]] = []
        """Number of samples, beginning and end."""
        module.register_forward_pre_hook(self._begin)
        module.register_forward_hook(self._end, with_kwargs=True)

    def take_samples_per_second(self) -> float:
        """Speed in the median pass since the last call, of which there is at least one; first
        passes, which include set-up, do not affect it. This waits for the device."""
        if self._on_cuda:
            torch.cuda.synchronize()
        per_sample = [
            (begun.elapsed_time(ended) / 1000 if self._on_cuda else ended - begun) / samples
            for samples, begun, ended in self._passes
        ]
        self._passes.clear()
        return 1.0 / float(median(per_sample))

    def _begin(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        if module.training:
            self._begun = self._now()

    def _end(
        self,
        module: torch.nn.Module,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        outputs: Any,
    ) -> None:
        if module.training:
            samples = sample_count(inputs=(arguments, keywords))
            self._passes.append((samples, self._begun, self._now()))

    def _now(self) -> Any:
        if not self._on_cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def agreed_shares(samples_per_second: float, ranks: RankGroup) -> tuple[float, ...]:
    """The share of every rank according to its speed, the same on all ranks; a collective."""
    return shares_by_speed([speed for (speed,) in ranks.gather([samples_per_second])])
