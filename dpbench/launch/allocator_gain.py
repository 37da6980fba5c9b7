"""The gain of keeping freed memory on this machine, measured with some training steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import torch

from dpbench import architecture as architectures
from dpbench.launch.machine import in_child
from dpbench.measure.allocator import KEPT, keep_freed_memory, reason_to_leave
from dpbench.measure.window import Usage, usage

ARCHITECTURE, BATCH = "mnist_cnn", 64
"""A model with activations of some megabytes: about the size that glibc returns to the kernel after
every step."""
WARMUP, STEPS = 4, 12
WORTH_ADVICE = 0.03
"""Smallest share of a step's processor time that is worth advice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorGain:
    """Steps of one process before and after it began to keep freed memory."""

    page_faults: float | None = None
    """Page faults per step with the system's allocator; None if not measured."""
    page_faults_kept: float | None = None
    gain: float | None = None
    """Share of a step's processor time that keeping memory saves."""
    reason: str | None = None
    """Reason why nothing was measured."""

    @property
    def is_worth_it(self) -> bool:
        return self.gain is not None and self.gain >= WORTH_ADVICE

    @property
    def text(self) -> str:
        """The result in words, with advice."""
        if self.gain is None or self.page_faults is None or self.page_faults_kept is None:
            return f"not measured, as {self.reason}"
        found = (
            f"{self.page_faults:,.0f} page faults per step, {self.page_faults_kept:,.0f} where a "
            f"process keeps the memory that it frees ({ARCHITECTURE}, batch {BATCH})"
        )
        if not self.is_worth_it:
            return f"{found}: no gain"
        return f"{found}: --allocator keep saves {100 * self.gain:.0f} % of the processor time"


def measure_allocator_gain() -> AllocatorGain:
    """Time steps in a separate process, with none of the memory settings of this one."""
    if reason := reason_to_leave():
        return AllocatorGain(reason=reason)
    return in_child(_measure)


def _measure() -> AllocatorGain:
    """Run the same steps twice in the child, as glibc's settings cannot be reverted."""
    torch.set_num_threads(1)
    step = _step()
    before = _steps(step)
    if keep_freed_memory() != KEPT:
        return AllocatorGain(reason="glibc refuses it")
    after = _steps(step)
    saved = 1 - median(one.cpu_seconds for one in after) / median(one.cpu_seconds for one in before)
    return AllocatorGain(
        page_faults=fmean(one.page_faults for one in before),
        page_faults_kept=fmean(one.page_faults for one in after),
        gain=saved,
    )


def _step() -> Callable[[], None]:
    """A training step of the model, always on the same samples."""
    architecture = architectures.load(ARCHITECTURE)
    model = architecture.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = architecture.synthetic_batch(BATCH, torch.Generator().manual_seed(0))

    def step() -> None:
        optimizer.zero_grad()
        loss = architecture.loss(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _steps(step: Callable[[], None]) -> list[Usage]:
    """The usage of each step, after some warm-up steps."""
    for _ in range(WARMUP):
        step()
    marks = [usage()]
    for _ in range(STEPS):
        step()
        marks.append(usage())
    return [later - earlier for earlier, later in pairwise(marks)]
