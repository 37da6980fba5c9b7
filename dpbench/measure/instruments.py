"""Instrumented steps, which are slower and never timed: phases and gradients.

Phases: steps that synchronize at every change of phase. In a step with synchronization, the
backward phase includes the exposed communication: gradients are reduced in it (in dp, summed over
the replicas), and local-sgd's parameter average is counted there too, so that for every
implementation the communication is backward with synchronization minus backward without. Broadcasts
of buffers by torch-ddp or ddp belong to forward. An implementation that drives all replicas from
one process also reports the phases within.

Gradients: the time at which each gradient of a step is ready, the input for simulating overlap. The
clock is read in a hook of every parameter. DistributedDataParallel, torch's and dpbench's, handles
gradients after these hooks. At group size 1 it waits for nobody, but its copies into buckets are in
the trace.

Operations: the floating-point operations of the plain model, counted without timing anything.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any, get_args

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dpbench.architecture import Architecture, items_per_sample
from dpbench.data.batch import call
from dpbench.data.datasets import Dataset, UserDataset
from dpbench.measure.device import clock_of, seconds_between
from dpbench.measure.step import BenchmarkStepper
from dpbench.measure.window import between_barriers
from dpbench.parallel.devices import synchronize
from dpbench.parallel.phase_clock import Mark, seconds_by_phase
from dpbench.records.trial import GradientTrace, Mode, Phase, ReplicaPhase

PHASE_STEPS = 5
"""Steps whose phases are timed."""
TRACED_STEPS = 10
"""Steps in which it is noted when each gradient is ready."""
COUNTED_SAMPLES = 2

Seconds = tuple[float, ...]
"""Seconds of a phase in each step."""


def time_phases(
    stepper: BenchmarkStepper, steps: Sequence[Sequence[torch.Tensor]], mode: Mode
) -> tuple[dict[Phase, Seconds], dict[ReplicaPhase, Seconds]]:
    """Take `steps`; the second result is of the phases within an implementation that drives all
    replicas, and empty for others."""

    def now() -> float:
        synchronize(*stepper.devices)
        return perf_counter()

    model = stepper.model
    seconds, replicas = list[Counter[str]](), list[Counter[str]]()
    with between_barriers(stepper.devices, stepper.ranks):
        for indices in steps:
            with model.clock.running(now) as marks, model.parallel.clock.running(now) as within:
                stepper.step(indices, unsynced=mode == "unsynced")
            seconds.append(seconds_by_phase(marks))
            replicas.append(seconds_by_phase(within))

    def by_phase(names: tuple[Any, ...], steps: Sequence[Counter[str]]) -> dict[Any, Seconds]:
        return {name: tuple(float(step[name]) for step in steps) for name in names if any(steps)}

    return by_phase(get_args(Phase), seconds), by_phase(get_args(ReplicaPhase), replicas)


def trace_gradients(
    stepper: BenchmarkStepper, steps: Sequence[Sequence[torch.Tensor]]
) -> GradientTrace | None:
    """Take `steps`, and note when each gradient is ready.

    Returns None if no parameter gets a gradient in every step.
    """
    now, module = clock_of(stepper.devices[0]), stepper.model.module
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    ready: list[dict[str, Any]] = []
    marks: list[Sequence[Mark]] = []

    def note(name: str, _: torch.Tensor) -> None:
        ready[-1][name] = now()

    hooks = [
        parameter.register_post_accumulate_grad_hook(partial(note, name))  # type: ignore[no-untyped-call]
        for name, parameter in parameters.items()
    ]
    with between_barriers(stepper.devices, stepper.ranks):
        for indices in steps:
            ready.append({})
            with stepper.model.clock.running(now) as step_marks:
                stepper.step(indices)
            marks.append(step_marks)
        synchronize(*stepper.devices)
    for hook in hooks:
        hook.remove()
    names = [name for name in parameters if all(name in step for step in ready)]
    if not names:
        return None
    return GradientTrace(
        parameters=tuple(names),
        # A sparse gradient counts as a dense one: an upper bound of the bytes to send.
        gradient_bytes=tuple(parameters[name].nbytes for name in names),
        ready_seconds=tuple(
            tuple(seconds_between(step[0][1], gradients[name]) for name in names)
            for step, gradients in zip(marks, ready, strict=True)
        ),
        # The optimizer is entered last after the backward pass, and earlier to zero gradients.
        backward_end_seconds=tuple(
            seconds_between(
                step[0][1], next(time for phase, time in step[::-1] if phase == "optimizer")
            )
            for step in marks
        ),
        step_seconds=tuple(seconds_between(step[0][1], step[-1][1]) for step in marks),
        buffer_bytes=sum(buffer.nbytes for buffer in module.buffers()),
    )


def flops_per_item(
    architecture: Architecture, source: Dataset | UserDataset, device: torch.device
) -> float | None:
    """Count the operations of forward and backward of the plain model for one item, 2 per
    multiply-add; None, with a message on stderr, for a model that cannot run as the count needs.

    Matrix products, convolutions and attention count, as torch's FlopCounterMode sees them run. The
    gradient of the model's input, which a step does not compute, is left out; attention is split
    into its products, because the counter does not know the CPU's fused kernel.
    """
    inputs, targets = source.select(torch.arange(min(COUNTED_SAMPLES, len(source))))
    batch = Dataset(inputs=inputs, targets=targets)
    reason = ""
    # On meta tensors first: computing a large model takes seconds and gigabytes, and only a model
    # that reads values needs real ones.
    for place in (torch.device("meta"), device):
        try:
            with place:
                module = architecture.build_model().to(place).eval()  # batch norm accepts one item
            inputs, targets = batch.to(place).select(slice(None))
            with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
                architecture.loss(call(module, inputs), targets).backward()  # type: ignore[no-untyped-call]
            items = len(batch) * items_per_sample(architecture)
            return int(counter.get_total_flops()) / items
        except Exception as error:
            reason = str(error)
    print(f"floating-point operations were not counted: {reason}", file=sys.stderr)
    return None
