"""The time at which each gradient of a step is ready: the input for simulating overlap.

A traced step reads the clock in a hook of every parameter and at both ends of the backward pass.
Every traced step is paired with an untraced one, in the order A B B A, so that drift affects both
alike and the cost of tracing shows. A step takes one micro-batch, whatever the trial accumulates:
the simulation combines micro-steps itself.

DistributedDataParallel, torch's and dpbench's, handles gradients after the hooks used here. At
group size 1 it waits for nobody, but its copies into buckets are in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch

from dpbench.measure.feed import StepBatches
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.step import StepPhase, Trainer
from dpbench.measure.window import between_barriers, synchronize
from dpbench.records.trial import GradientTrace

ClockReading = Any
"""A clock reading; only the seconds between two of them have a meaning."""


class HostTraceClock:
    """The CPU's monotonic clock."""

    now = staticmethod(perf_counter)

    def seconds(self, start: float, end: float) -> float:
        return end - start


class CudaTraceClock:
    """Events of the current stream, which in a hook is that of the backward pass; read when the
    device is idle, so that the host may run ahead as it does in training."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) / 1e3


TraceClock = HostTraceClock | CudaTraceClock


class TracedStep:
    """The readings of one step."""

    def __init__(self, clock: TraceClock, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.ready: list[ClockReading | None] = [None] * len(parameters)
        """Reading per parameter; None if it got no gradient."""
        self.start: ClockReading = None
        self.end: ClockReading = None
        self.backward_start: ClockReading = None
        self.backward_end: ClockReading = None
        self._clock = clock
        self._parameters = parameters

    def run(self, trainer: Trainer, indices: torch.Tensor) -> None:
        """Run one step; hooks are added and removed outside of it."""
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(self._parameters)
        ]
        self.start = self._clock.now()
        trainer.step([indices], enter=self._enter)
        self.end = self._clock.now()
        for hook in hooks:
            hook.remove()

    def seconds(self, reading: ClockReading) -> float:
        """Seconds from the start of the step to `reading`."""
        return self._clock.seconds(self.start, reading)

    def _enter(self, phase: StepPhase | None) -> None:
        if phase == "backward" and self.backward_start is None:
            self.backward_start = self._clock.now()
        elif phase == "optimizer":  # the last time counts: the first zeroes the gradients
            self.backward_end = self._clock.now()

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        ready, now = self.ready, self._clock.now

        def hook(_: torch.Tensor) -> None:
            ready[number] = now()

        return hook


def trace_gradients(
    trainer: Trainer,
    module: torch.nn.Module,
    batches: Sequence[StepBatches],
    device: torch.device,
    ranks: RankGroup,
) -> GradientTrace | None:
    """Train on the first micro-batch of each of `batches`, and trace every other step.

    `module` is the module that the implementation wraps. Returns None if no parameter gets a
    gradient in every step.
    """
    clock: TraceClock = HostTraceClock() if device.type == "cpu" else CudaTraceClock()
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    traced: list[TracedStep] = []
    untraced: list[tuple[ClockReading, ClockReading]] = []
    with between_barriers(device, ranks):
        for number, (indices, *_) in enumerate(batches):
            if number % 4 in (1, 2):
                step = TracedStep(clock, list(named.values()))
                step.run(trainer, indices)
                traced.append(step)
            else:
                start = clock.now()
                trainer.step([indices])
                untraced.append((start, clock.now()))
        synchronize(device)
    trainer.take_losses()
    untraced_seconds = tuple(clock.seconds(start, end) for start, end in untraced)
    return _gradient_trace(module, named, traced, untraced_seconds)


def _gradient_trace(
    module: torch.nn.Module,
    named: Mapping[str, torch.nn.Parameter],
    traced: Sequence[TracedStep],
    untraced_step_seconds: tuple[float, ...],
) -> GradientTrace | None:
    found = {
        name: number
        for number, name in enumerate(named)
        if all(step.ready[number] is not None for step in traced)
    }
    if not found:
        return None
    return GradientTrace(
        parameters=tuple(found),
        # A sparse gradient counts as a dense one: an upper bound of the bytes to send.
        gradient_bytes=tuple(named[name].nbytes for name in found),
        gradient_dtypes=tuple(str(named[name].dtype).removeprefix("torch.") for name in found),
        ready_seconds=tuple(
            tuple(step.seconds(step.ready[number]) for number in found.values()) for step in traced
        ),
        backward_start_seconds=tuple(step.seconds(step.backward_start) for step in traced),
        backward_end_seconds=tuple(step.seconds(step.backward_end) for step in traced),
        step_seconds=tuple(step.seconds(step.end) for step in traced),
        untraced_step_seconds=untraced_step_seconds,
        buffer_bytes=sum(buffer.nbytes for buffer in module.buffers()),
    )
