"""Add up what the replicas computed for each parameter, and count it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Reduction:
    """Sums gradients over replicas onto one device.

    Attributes:
        device: where the sums are, that of the original parameters.
        reduced_bytes: bytes of gradients that were results of a sum, since construction.
        reductions: backward passes in which there was one.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.reduced_bytes = 0
        self.reductions = 0

    def add(self, replicas: Sequence[Sequence[Tensor | None]]) -> list[Tensor | None]:
        """Σ over the replicas of each gradient; None where no replica has one."""
        total = list(replicas[0])
        for others in replicas[1:]:
            self._add_to(total, others)
        summed = sum(gradient.nbytes for gradient in total if gradient is not None)
        if summed:
            self.reductions += 1
            self.reduced_bytes += summed
        return total

    def _add_to(self, total: list[Tensor | None], others: Sequence[Tensor | None]) -> None:
        places: list[int] = []
        left: list[Tensor] = []
        right: list[Tensor] = []
        for i, (one, other) in enumerate(zip(total, others, strict=True)):
            if other is None:
                continue
            other = other.to(self.device)
            if one is None:
                total[i] = other
                continue
            places.append(i)
            left.append(one)
            right.append(other)
        if not places:
            return
        # Not in place: autograd may give the same memory as the gradient of two parameters. The
        # function is underscored, but it is what torch's own documentation of foreach names.
        for i, result in zip(places, torch._foreach_add(left, right), strict=True):
            total[i] = result
