"""What keeping freed memory would gain on this machine, on a small model, in two seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

import torch

from dpbench import architecture as architectures
from dpbench.launch.machine import in_child
from dpbench.measure.allocator import KEPT, keep_freed_memory, reason_to_leave
from dpbench.measure.process_usage import Usage, usage

ARCHITECTURE, BATCH = "mnist_cnn", 64
"""Activations of some megabytes: about the size that glibc gives back after every step."""
WARMUP, STEPS = 4, 12
WORTH = 0.03
"""Share of a step's processor time below which nothing is advised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorGain:
    """Steps of one process before and after it began to keep freed memory."""

    page_faults: float | None
    """In a step, with the system's allocator; None where nothing was measured."""
    page_faults_kept: float | None
    gain: float | None
    """Share of a step's processor time that keeping memory saves."""
    reason: str | None = None
    """Why nothing was measured."""

    @property
    def is_worth_it(self) -> bool:
        return self.gain is not None and self.gain >= WORTH

    @property
    def text(self) -> str:
        """What was found, and what to do about it."""
        if self.gain is None or self.page_faults is None or self.page_faults_kept is None:
            return f"not measured, as {self.reason}"
        found = (
            f"{self.page_faults:,.0f} page faults per step, {self.page_faults_kept:,.0f} where a "
            f"process keeps the memory that it frees ({ARCHITECTURE}, batch {BATCH})"
        )
        if not self.is_worth_it:
            return f"{found}: no gain"
        return f"{found}: --allocator keep saves {100 * self.gain:.0f} % of the processor time"


def allocator_gain() -> AllocatorGain:
    """Times steps in a process of its own, which nobody has told anything of memory."""
    if reason := reason_to_leave():
        return AllocatorGain(page_faults=None, page_faults_kept=None, gain=None, reason=reason)
    return in_child(_measure)


def _measure() -> AllocatorGain:
    """In the child: the same steps twice, as what glibc was told cannot be taken back."""
    torch.set_num_threads(1)
    step = _step()
    before = _steps(step)
    if keep_freed_memory() != KEPT:
        return AllocatorGain(
            page_faults=None, page_faults_kept=None, gain=None, reason="glibc refuses it"
        )
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
    """The usage of each step after some that warm up."""
    for _ in range(WARMUP):
        step()
    marks = [usage()]
    for _ in range(STEPS):
        step()
        marks.append(usage())
    return [later - earlier for earlier, later in pairwise(marks)]
