"""One rank's model, with all that its steps need.

A sweep and a training build it alike and take the same `step`, so that what is measured is what
trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler

from dpbench.architecture import Architecture
from dpbench.data.batch import Batch
from dpbench.measure.device import autocast, loss_scaler
from dpbench.measure.implementations import ParallelModel, wrap
from dpbench.parallel.phase_clock import PhaseClock
from dpbench.specs import ParallelSpec, WorkloadSpec
from dpbench.specs.workload import GRAPHED_MODES, OPTIMIZER_CLASSES

LossFunction = Callable[[Any, Any], torch.Tensor]
"""The mean loss of outputs and targets."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankModel:
    """The model that one process trains, which may have several replicas (dp)."""

    module: torch.nn.Module
    """The bare module, which has the parameters."""
    parallel: ParallelModel
    """The module as the implementation spreads it over replicas."""
    optimizer: torch.optim.Optimizer
    loss: LossFunction
    autocast: AbstractContextManager[object] = field(default_factory=nullcontext)
    """For each forward pass and its loss, entered again and again."""
    scaler: GradScaler = field(default_factory=partial(GradScaler, "cpu", enabled=False))
    """Scales the loss; without effect except for float16."""
    clock: PhaseClock = field(default_factory=PhaseClock)
    """Notes the phases of instrumented steps."""

    def step(
        self,
        batches: Iterable[Batch],
        number: int,
        *,
        micro_steps: int,
        max_norm: float | None = None,
        unsynced: bool = False,
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Take optimizer step `number`, counted from 0, on its micro-batches, of which there are
        `micro_steps`; a collective.

        Gradients are reduced with the last micro-batch, and clipped to `max_norm` after that. Under
        float16 a step whose gradients overflow changes no parameter, and the scaler's scale falls.
        If `unsynced`, nothing is exchanged with other ranks, and the gradients are wrong.

        Returns the mean loss of each micro-batch, and the norm of the gradients before they were
        clipped, if they are: on the device, without waiting for it.
        """
        clock, parallel = self.clock, self.parallel
        losses: list[torch.Tensor] = []
        clock.enter("optimizer")
        self.optimizer.zero_grad()
        for micro_step, batch in enumerate(batches, start=1):
            if unsynced:
                reduction = parallel.unsynced()
            elif micro_step < micro_steps:
                reduction = parallel.accumulate_only()
            else:
                reduction = nullcontext()
            with reduction:
                clock.enter("forward")
                with self.autocast:
                    loss = self.loss(parallel.forward(batch.inputs), batch.targets)
                weighted = loss if batch.weight == 1.0 else loss * batch.weight
                clock.enter("backward")
                parallel.backward(self.scaler.scale(weighted))
            losses.append(loss.detach())
        clock.enter("optimizer")
        # An optimizer that unscales in its own kernel would not ask the ranks that decide together.
        if max_norm is not None or type(self.scaler) is not GradScaler:
            self.scaler.unscale_(self.optimizer)
        norm = None if max_norm is None else parallel.clip_gradients(max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not unsynced:
            clock.enter("backward")  # where communication is counted, see measure.instruments
            parallel.after_step(number + 1)
        clock.enter(None)
        return losses, norm


def build_rank_model(
    architecture: Architecture, spec: ParallelSpec, rank: int, device: torch.device
) -> RankModel:
    """Make a module from the workload's seed, compile it as the workload says, and wrap it, which
    gives it the parameters of rank 0 if ranks communicate; a collective.

    From here on random numbers, such as dropout masks, differ between ranks.
    """
    workload = spec.workload
    torch.manual_seed(workload.seed)
    module = compile_module(architecture.build_model().to(device), workload)
    parallel = wrap(module, spec, rank)
    # Ranks with gradients of their own must skip a step of float16 together.
    has_local_state = spec.traits.has_local_state
    deciding = dist.group.WORLD if has_local_state else None
    torch.manual_seed(workload.seed + 1 + rank)
    return RankModel(
        module=module,
        parallel=parallel,
        optimizer=parallel.optimizer(build_optimizer(module, spec)),
        loss=loss_of(architecture, workload),
        autocast=autocast(device, workload.dtype),
        scaler=loss_scaler(device, workload.dtype, deciding),
    )


def compile_module(module: torch.nn.Module, workload: WorkloadSpec) -> torch.nn.Module:
    """Compile `module` as the workload says, before it is wrapped, and return it.

    It is compiled in place, so that names of parameters, hooks and copies stay the module's.
    """
    if workload.compile != "none":
        module.compile(mode=None if workload.compile == "default" else workload.compile)
    return module


def loss_of(architecture: Architecture, workload: WorkloadSpec) -> LossFunction:
    """The architecture's loss; a copy of it where the model runs in CUDA graphs, as the loss may be
    an output of the model, which the next step overwrites."""
    if workload.compile not in GRAPHED_MODES:
        return architecture.loss
    return lambda outputs, targets: architecture.loss(outputs, targets).clone()


def build_optimizer(module: torch.nn.Module, spec: ParallelSpec) -> torch.optim.Optimizer:
    """Build the workload's optimizer over all parameters, at torch's defaults."""
    name, _, kernels = spec.workload.optimizer.partition("-")
    kind: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, OPTIMIZER_CLASSES[name])
    chosen: dict[str, Any] = {kernels: True} if kernels else {}
    return kind([*module.parameters()], lr=spec.scaled_lr, **chosen)
