"""One rank's model with all state that changes while it learns, which is what a checkpoint
holds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from dpbench.architecture import Architecture
from dpbench.data.loader import Batch
from dpbench.measure.implementations import wrap
from dpbench.measure.precision import Numbers
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.step import (
    accumulate_gradients,
    build_optimizer,
    clip_gradients,
    prepare,
)
from dpbench.parallel.ddp.broadcast import broadcast_coalesced
from dpbench.parallel.groups import LONGEST_MESSAGE_BYTES
from dpbench.specs.training import TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.training import random_state
from dpbench.training.checkpoint import Checkpoint

T = TypeVar("T")

LARGEST_OPTIMIZER = 8
"""Upper limit of the bytes of an optimizer's state for each byte of the model: Adam has two, with
amsgrad three, in float32 beside bfloat16 twice as many."""


@dataclass(frozen=True, slots=True, eq=False)
class StepOutcome:
    """Results that a step leaves on the device, to be read later."""

    loss_sum: Tensor
    """Sum of the loss over this rank's samples of the window; float64, 0-dimensional."""
    samples: int
    """Number of samples on this rank."""
    gradient_norm: Tensor | None
    """Gradient norm before clipping; None without clipping."""


class Learner:
    """Makes optimizer steps. Construction, `step` and the rest are collectives.

    Initial parameters depend only on the seed and are the same everywhere; each rank has its own
    random numbers for training, as in dropout.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        ranks: RankGroup,
        architecture: Architecture,
        device: torch.device,
        steps_per_epoch: int,
    ) -> None:
        self.spec = spec
        self.device = device
        self.updates = 0
        """Number of steps since construction that were not skipped."""
        self._rank = ranks.rank
        self._steps_per_epoch = steps_per_epoch
        self._ranks = ranks
        self._loss = architecture.loss
        alone = spec.process_count == 1
        self._devices = [*map(torch.device, spec.devices)] if alone else [device]
        self._local = IMPLEMENTATIONS[spec.implementation].averages_parameters
        random_state.seed_all(spec.workload.seed)
        self.module = prepare(architecture.build_model().to(device), spec.workload)
        self.model = wrap(self.module, spec, self._rank)
        random_state.seed_all(spec.workload.seed + 1 + self._rank)
        self.optimizer = self.model.optimizer(build_optimizer(self.module, spec))
        self.optimizer.register_step_post_hook(self._count)
        self.schedule = build_schedule(self.optimizer, spec, steps_per_epoch)
        voters = dist.group.WORLD if self._local else None
        self.numbers = Numbers(device, spec.dtype, voters)

    def largest_parameter(self) -> Tensor:
        """The largest magnitude on this rank, NaN if a parameter is; it stays on the device."""
        return torch.nn.utils.get_total_norm(self.module.parameters(), math.inf)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def rehearse(self, batch: Batch) -> None:
        """Make forward and backward passes that leave nothing behind, as many as the model needs.

        After resuming from a checkpoint, the wrapper's first passes take the place of later ones.
        If they added gradients in another order, rounding would differ from the uninterrupted
        training.
        """
        buffers = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        with random_state.preserved(*self._devices):
            for _ in range(self.model.rehearsals):
                self._accumulate([batch])
        self.optimizer.zero_grad()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)

    def step(self, batches: Sequence[Batch]) -> StepOutcome:
        """Make one optimizer step on the micro-batches of a window, with one reduction in the
        last."""
        self.optimizer.zero_grad()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch, loss in zip(batches, self._accumulate(batches), strict=True):
            loss_sum += loss.double() * batch.samples
        norm = self._clip()
        self.numbers.step(self.optimizer)
        self._advance_schedule()
        self.model.after_step(self.schedule.last_epoch)
        return StepOutcome(loss_sum, sum(batch.samples for batch in batches), norm)

    def _accumulate(self, batches: Sequence[Batch]) -> list[Tensor]:
        """The reduced gradients of all batches; returns the mean loss of each."""
        micro_steps = ((batch.inputs, batch.targets, batch.weight) for batch in batches)
        return accumulate_gradients(self.model, self._loss, micro_steps, len(batches), self.numbers)

    def _clip(self) -> Tensor | None:
        """Clip the gradients once per step, after their reduction and without the loss scale."""
        self.numbers.scaler.unscale_(self.optimizer)
        if self.spec.max_norm is None:
            return None
        return clip_gradients(self.optimizer, self.spec.max_norm)

    def _advance_schedule(self) -> None:
        """Advance the schedule, also after a skipped step: the rate follows the windows."""
        with warnings.catch_warnings() if self.updates == 0 else nullcontext():
            if self.updates == 0:  # torch would warn of a mistake
                warnings.simplefilter("ignore", UserWarning)
            self.schedule.step()

    def _count(self, *_: object) -> None:
        self.updates += 1

    def synchronize(self) -> None:
        """Make all ranks one model: average parameters that were trained apart, and take rank 0's
        buffers, which ranks that average gradients have each filled from their own samples."""
        self.model.settle()
        if not self._local and self._ranks.size > 1:
            assert dist.group.WORLD is not None
            broadcast_coalesced(self.module.buffers(), dist.group.WORLD)

    def state(self) -> dict[str, Any] | None:
        """This object's fields of a Checkpoint, with live tensors; None on ranks other than 0."""
        optimizer = self.optimizer.state_dict()
        optimizers = self._of_all(optimizer) if self._local else [optimizer]
        random_states = self._of_all(random_state.take(*self._devices))
        if optimizers is None or random_states is None:
            return None
        enabled = self.numbers.scaler.is_enabled()
        return {
            "model": dict(self.module.state_dict()),
            "optimizers": optimizers,
            "scaler": self.numbers.scaler.state_dict() if enabled else None,
            "random_states": random_states,
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of the same spec; its tensors may be changed from then on."""
        self.module.load_state_dict(checkpoint.model)
        saved = checkpoint.optimizers[self._rank if self._local else 0]
        options = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": saved["state"], "param_groups": options})
        self.schedule = build_schedule(
            self.optimizer, self.spec, self._steps_per_epoch, done=checkpoint.step
        )
        if checkpoint.scaler is not None:
            self.numbers.scaler.load_state_dict(checkpoint.scaler)
        random_state.restore(checkpoint.random_states[self._rank])

    def _of_all(self, value: T) -> list[T] | None:
        """The values of all ranks on rank 0; None elsewhere."""
        model_bytes = sum(parameter.nbytes for parameter in self.module.parameters())
        limit_bytes = LARGEST_OPTIMIZER * model_bytes + LONGEST_MESSAGE_BYTES
        return self._ranks.gather_on_first(value, limit_bytes)


def rate_factor(
    step: int, *, steps_per_epoch: int, gamma: float, warmup_steps: int = 0, start: float = 1.0
) -> float:
    """The factor on the learning rate for optimizer step `step`, counted from 0.

    It is `gamma` to the power of the epoch, as in torch's StepLR. The first `warmup_steps` also
    have the gradual warm-up of Goyal et al. 2017, arXiv:1706.02677, section 2.2: a straight line
    from `start` to 1, which step `warmup_steps` is the first to reach.
    """
    decay = gamma ** (step // steps_per_epoch)
    if step >= warmup_steps:
        return decay
    return decay * (start + (1.0 - start) * step / warmup_steps)


def build_schedule(
    optimizer: Optimizer, spec: TrainingSpec, steps_per_epoch: int, *, done: int = 0
) -> LambdaLR:
    """Set the learning rate for the step after the first `done`; step the schedule after each
    optimizer step.

    The warm-up begins at the workload's own rate, before it is scaled with the batch; if they are
    equal there is no warm-up.
    """
    factor = partial(
        rate_factor,
        steps_per_epoch=steps_per_epoch,
        gamma=spec.gamma,
        warmup_steps=spec.warmup_steps,
        start=spec.workload.learning_rate / spec.learning_rate,
    )
    for group in optimizer.param_groups:
        group["initial_lr"] = spec.learning_rate
    return LambdaLR(optimizer, factor, last_epoch=done - 1)
