"""The speed of a rank, from which its share of the samples follows: see `--balance speed`."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import torch

from dpbench.data.batch import sample_count


class ForwardTimer:
    """Times the forward passes of a module in training, without evaluation.

    On a CUDA device each pass waits until the device is idle.
    """

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        self._device = device
        self._begun = 0.0
        self._seconds_per_sample: list[float] = []
        module.register_forward_pre_hook(self._begin)
        module.register_forward_hook(self._end, with_kwargs=True)

    def take_samples_per_second(self) -> float:
        """Speed in the median pass since the last call, of which there is at least one; first
        passes, which include set-up, do not affect it."""
        seconds, self._seconds_per_sample = self._seconds_per_sample, []
        return 1.0 / median(seconds)

    def _begin(self, module: torch.nn.Module, _: Any) -> None:
        if module.training:
            self._begun = self._now()

    def _end(self, module: torch.nn.Module, inputs: Any, keywords: Any, _: Any) -> None:
        if module.training:
            samples = sample_count(inputs=(inputs, keywords))
            self._seconds_per_sample.append((self._now() - self._begun) / samples)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()
