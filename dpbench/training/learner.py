"""One rank's model with all that changes while it learns, which is what a checkpoint holds."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.architecture import Architecture
from dpbench.data.loader import Batch
from dpbench.measure.implementations import wrap
from dpbench.measure.precision import autocast, loss_scaler
from dpbench.measure.preparation import prepare
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.training import build_optimizer
from dpbench.parallel.ddp.broadcast import broadcast_coalesced
from dpbench.parallel.groups import LONGEST_MESSAGE_BYTES
from dpbench.training import random_state
from dpbench.training.checkpoint import Checkpoint
from dpbench.training.schedule import build_schedule
from dpbench.training_spec import TrainingSpec
from dpbench.traits import IMPLEMENTATIONS

T = TypeVar("T")

LARGEST_OPTIMIZER = 8
"""Bytes of an optimizer's state for each byte of the model that no optimizer exceeds: Adam has
two, with amsgrad three, in float32 beside bfloat16 twice as many."""


@dataclass(frozen=True, slots=True, eq=False)
class StepOutcome:
    """What a step leaves on the device, to be read when there is time."""

    loss_sum: Tensor
    """Over this rank's samples of the window; float64, 0-dimensional."""
    samples: int
    """Of this rank."""
    gradient_norm: Tensor | None
    """Before clipping; None without it."""


class Learner:
    """Makes optimizer steps. Construction, `step` and the rest are collectives.

    Initial parameters come from the seed alone and are the same everywhere; the random numbers of
    training, as in dropout, are each rank's own.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        rank: int,
        ranks: RankGroup,
        architecture: Architecture,
        device: torch.device,
        steps_per_epoch: int,
    ) -> None:
        self.spec = spec
        self.device = device
        self.updates = 0
        """Steps since construction that were not left out."""
        self._rank = rank
        self._steps_per_epoch = steps_per_epoch
        self._ranks = ranks
        self._loss = architecture.loss
        alone = spec.process_count == 1
        self._devices = [*map(torch.device, spec.devices)] if alone else [device]
        self._local = IMPLEMENTATIONS[spec.implementation].averages_parameters
        _seed(spec.workload.seed)
        self.module = prepare(architecture.build_model().to(device), spec.workload)
        self.model = wrap(self.module, spec, rank)
        _seed(spec.workload.seed + 1 + rank)
        self.optimizer = build_optimizer(self.module, spec)
        self.optimizer.register_step_post_hook(self._count)
        self.schedule = build_schedule(self.optimizer, spec, steps_per_epoch)
        self.scaler = loss_scaler(device, spec.dtype, dist.group.WORLD if self._local else None)

    def largest_parameter(self) -> Tensor:
        """The largest magnitude on this rank, NaN if a parameter is; it stays on the device."""
        return torch.nn.utils.get_total_norm(self.module.parameters(), math.inf)

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def rehearse(self, batch: Batch) -> None:
        """Forward and backward passes of which nothing stays, as many as the model needs.

        A training that goes on from a checkpoint has first passes where the uninterrupted one has
        just others. If gradients were added up in another order there, they would be rounded apart.
        """
        buffers = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        with random_state.preserved(*self._devices):
            for _ in range(self.model.rehearsals):
                self._backward(batch)
                self.model.finish()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)

    def step(self, batches: Sequence[Batch]) -> StepOutcome:
        """One optimizer step on the micro-batches of a window, with one reduction in the last."""
        self.optimizer.zero_grad()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        for number, batch in enumerate(batches, start=1):
            with nullcontext() if number == len(batches) else self.model.no_sync():
                loss_sum += self._backward(batch).double() * batch.samples
        self.model.finish()
        norm = self._clip()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._advance_schedule()
        self.model.after_step()
        return StepOutcome(loss_sum, sum(batch.samples for batch in batches), norm)

    def _backward(self, batch: Batch) -> Tensor:
        """Adds to the gradients; returns the mean loss."""
        with autocast(self.device, self.spec.dtype):
            loss = self._loss(self.model.forward(batch.inputs), batch.targets)
        self.model.backward(self.scaler.scale(loss * batch.weight))
        return loss.detach()

    def _clip(self) -> Tensor | None:
        """Once a step, on reduced gradients in their true size."""
        self.scaler.unscale_(self.optimizer)
        if self.spec.max_norm is None:
            return None
        return torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.spec.max_norm)

    def _advance_schedule(self) -> None:
        """Also after a step that was left out: the rate follows the windows."""
        with warnings.catch_warnings() if self.updates == 0 else nullcontext():
            if self.updates == 0:  # torch would take it for a mistake
                warnings.simplefilter("ignore", UserWarning)
            self.schedule.step()

    def _count(self, *_: object) -> None:
        self.updates += 1

    def settle(self) -> None:
        """Makes all ranks one model: averages what was trained apart, and takes rank 0's buffers,
        which ranks that average gradients have each filled from their own samples."""
        self.model.settle()
        if not self._local and self._ranks.size > 1:
            assert dist.group.WORLD is not None
            broadcast_coalesced(self.module.buffers(), dist.group.WORLD)

    def state(self) -> dict[str, Any] | None:
        """The fields of a Checkpoint that are this object's; None but on rank 0.

        Their tensors are the living ones, where those of other ranks need not come.
        """
        optimizer = self.optimizer.state_dict()
        optimizers = self._of_all(optimizer) if self._local else [optimizer]
        random_states = self._of_all(random_state.take(*self._devices))
        if optimizers is None or random_states is None:
            return None
        enabled = self.scaler.is_enabled()
        return {
            "model": dict(self.module.state_dict()),
            "optimizers": optimizers,
            "scaler": self.scaler.state_dict() if enabled else None,
            "random_states": random_states,
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes on from a checkpoint of the same spec, whose tensors it may change from then on."""
        self.module.load_state_dict(checkpoint.model)
        saved = checkpoint.optimizers[self._rank if self._local else 0]
        options = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": saved["state"], "param_groups": options})
        self.schedule = build_schedule(
            self.optimizer, self.spec, self._steps_per_epoch, done=checkpoint.step
        )
        if checkpoint.scaler is not None:
            self.scaler.load_state_dict(checkpoint.scaler)
        self.model.continue_from(checkpoint.step)
        random_state.restore(checkpoint.random_states[self._rank])

    def _of_all(self, value: T) -> list[T] | None:
        """The values of all ranks on rank 0; None elsewhere."""
        model_bytes = sum(parameter.nbytes for parameter in self.module.parameters())
        limit_bytes = LARGEST_OPTIMIZER * model_bytes + LONGEST_MESSAGE_BYTES
        return self._ranks.gather_on_first(value, limit_bytes)


def _seed(seed: int) -> None:
    """Of all generators that a checkpoint holds."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
