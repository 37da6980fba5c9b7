"""One rank's model with all state that changes while it learns, which is what a checkpoint
holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.architecture import Architecture
from dpbench.data.loader import Batch
from dpbench.errors import UsageError
from dpbench.measure.implementations import wrap
from dpbench.measure.precision import Numbers
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.step import (
    accumulate_gradients,
    build_optimizer,
    clip_gradients,
    prepare,
)
from dpbench.parallel.torch_private import broadcast_coalesced
from dpbench.specs.training import TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.training.checkpoint import Checkpoint
from dpbench.training.progress import StepOutcome


class Learner:
    """Makes optimizer steps. Construction, `step` and the rest are collectives.

    Initial parameters depend only on the seed and are the same everywhere; each rank has its own
    random numbers for training, as in dropout. Only torch's generators are seeded and restored, not
    those of Python and NumPy.
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
        self._ranks = ranks
        self._steps_per_epoch = steps_per_epoch
        self._loss = architecture.loss
        devices = spec.devices if spec.process_count == 1 else [str(device)]
        self._cuda = [name for name in devices if name.startswith("cuda")]
        self._local = IMPLEMENTATIONS[spec.implementation].averages_parameters
        torch.manual_seed(spec.workload.seed)
        self.module = prepare(architecture.build_model().to(device), spec.workload)
        self.model = wrap(self.module, spec, ranks.rank)
        torch.manual_seed(spec.workload.seed + 1 + ranks.rank)
        self.optimizer = self.model.optimizer(build_optimizer(self.module, spec))
        group = dist.group.WORLD if self._local else None
        self.numbers = Numbers(device, spec.workload.dtype, group)

    def largest_parameter(self) -> Tensor:
        """The largest magnitude on this rank, NaN if a parameter is; it stays on the device."""
        return torch.nn.utils.get_total_norm(self.module.parameters(), math.inf)

    def step(self, batches: Sequence[Batch], number: int) -> StepOutcome:
        """Make optimizer step `number`, counted from 0, on the micro-batches of a window, with one
        reduction in the last."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.spec, number, self._steps_per_epoch)
        self.optimizer.zero_grad()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        micro_steps = ((batch.inputs, batch.targets, batch.weight) for batch in batches)
        losses = accumulate_gradients(
            self.model, self._loss, micro_steps, len(batches), self.numbers
        )
        for batch, loss in zip(batches, losses, strict=True):
            loss_sum += loss.double() * batch.samples
        scaler = self.numbers.scaler
        scaler.unscale_(self.optimizer)
        norm = None
        if self.spec.max_norm is not None:  # after the reduction, once per step
            norm = clip_gradients(self.optimizer, self.spec.max_norm)
        scale = scaler.get_scale()
        self.numbers.step(self.optimizer)
        self.model.after_step(number + 1)
        # The scale falls if a gradient overflowed and the step was skipped.
        skipped = scaler.get_scale() < scale
        return StepOutcome(loss_sum, norm, skipped)

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
        optimizers = self._ranks.gather_on_first(optimizer) if self._local else [optimizer]
        random_state = {
            "cpu": torch.get_rng_state(),
            "cuda": {device: torch.cuda.get_rng_state(device) for device in self._cuda},
        }
        random_states = self._ranks.gather_on_first(random_state)
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
        """Continue from a checkpoint of the same spec; its tensors may be changed from then on.

        Raises UsageError if something in it does not fit.
        """
        try:
            self.module.load_state_dict(checkpoint.model)
            saved = checkpoint.optimizers[self._ranks.rank if self._local else 0]
            options = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": saved["state"], "param_groups": options})
            if checkpoint.scaler is not None:
                self.numbers.scaler.load_state_dict(checkpoint.scaler)
            random_state = checkpoint.random_states[self._ranks.rank]
            torch.set_rng_state(random_state["cpu"])
            for device, state in random_state["cuda"].items():
                torch.cuda.set_rng_state(state, device)
        except Exception as error:  # an unexpected part of a file may raise any
            reason = " ".join(str(error).split())
            raise UsageError(
                f"{checkpoint.source}: it does not fit this training: "
                f"{type(error).__name__}: {reason}"
            ) from error


def learning_rate(spec: TrainingSpec, step: int, steps_per_epoch: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0.

    It falls by the factor `gamma` after each epoch, as with torch's StepLR. Over the first
    `warmup_steps` it also rises in a straight line from the workload's own rate, before scaling
    with the batch: the gradual warm-up of Goyal et al. 2017, arXiv:1706.02677, section 2.2. Step
    `warmup_steps` is the first at the scaled rate.
    """
    rate, begin = spec.learning_rate, spec.workload.learning_rate
    if step < spec.warmup_steps:
        rate = begin + (rate - begin) * step / spec.warmup_steps
    return rate * spec.gamma ** (step // steps_per_epoch)
