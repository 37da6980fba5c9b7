"""The optimizer steps of a training, and the state that they change, which a checkpoint holds."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.architecture import Architecture
from dpbench.data.batch import Batch, sample_count
from dpbench.errors import UsageError
from dpbench.measure.device import random_states, set_random_states
from dpbench.measure.rank_model import build_module, build_rank_model
from dpbench.parallel.devices import synchronize
from dpbench.parallel.torch_private import broadcast_coalesced
from dpbench.rendezvous.process_group import RankGroup
from dpbench.specs.training import TrainingSpec
from dpbench.training.checkpoint import Checkpoint, Progress


class StepResult(NamedTuple):
    """Results of a step; tensors stay on the device, to be read later."""

    loss_sum: Tensor
    """Sum of the loss over this rank's samples of the step; float64, 0-dimensional."""
    gradient_norm: Tensor | None
    """Gradient norm before clipping; None without clipping."""
    skipped: bool = False
    """Whether the optimizer left the parameters alone, as a gradient overflowed in float16."""


class TrainingStepper:
    """Takes a training's optimizer steps with one rank's model; saves and restores their state.

    Construction and all methods are collectives.

    Initial parameters depend only on the seed and are the same everywhere; each rank has its own
    random numbers for training, as in dropout. Only torch's generators are seeded and restored, not
    those of Python and NumPy.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        ranks: RankGroup,
        architecture: Architecture,
        devices: Sequence[torch.device],
        steps_per_epoch: int,
    ) -> None:
        self.spec = spec
        self._ranks = ranks
        self._devices = devices
        self._steps_per_epoch = steps_per_epoch
        self.learning_rate = spec.scaled_learning_rate
        """Learning rate of the last step."""
        module = build_module(architecture, spec.workload, devices[0])
        self.model = build_rank_model(module, architecture, spec, ranks.rank, devices[0])
        self._local = spec.traits.has_local_state

    def step(self, batches: Sequence[Batch], number: int) -> StepResult:
        """Make optimizer step `number`, counted from 0, on its micro-batches, with one reduction in
        the last."""
        self.learning_rate = learning_rate(self.spec, number, self._steps_per_epoch)
        optimizer, scaler = self.model.optimizer, self.model.scaler
        for group in optimizer.param_groups:
            group["lr"] = self.learning_rate
        optimizer.zero_grad()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._devices[0])
        losses = self.model.accumulate_gradients(batches, len(batches))
        for batch, loss in zip(batches, losses, strict=True):
            loss_sum += loss.double() * batch.sample_count
        scaler.unscale_(optimizer)
        norm = None
        if self.spec.max_norm is not None:  # after the reduction, once per step
            norm = self.model.parallel.clip_gradients(self.spec.max_norm)
        scale = scaler.get_scale()
        self.model.step_optimizer()
        self.model.parallel.after_step(number + 1)
        # The scale falls if a gradient overflowed and the step was skipped.
        return StepResult(loss_sum, norm, skipped=scaler.get_scale() < scale)

    def sync_parameters(self) -> None:
        """Make all ranks one model: average parameters that each rank trained alone, and take rank
        0's buffers, which ranks that average gradients have each filled from their own samples."""
        self.model.parallel.sync_parameters()
        if not self._local and self._ranks.size > 1:
            assert dist.group.WORLD is not None
            broadcast_coalesced(self.model.module.buffers(), dist.group.WORLD)

    def checkpoint(self, progress: Progress, samples_sha256: str) -> Checkpoint | None:
        """The state of the training, with live tensors; None on ranks other than 0."""
        optimizer = self.model.optimizer.state_dict()
        optimizers = self._ranks.gather_on_first(optimizer) if self._local else [optimizer]
        states = self._ranks.gather_on_first(random_states(*self._devices))
        if optimizers is None or states is None:
            return None
        return Checkpoint(
            spec=self.spec,
            progress=progress,
            model=dict(self.model.module.state_dict()),
            optimizers=optimizers,
            scaler=self.model.scaler.state_dict() or None,
            random_states=states,
            samples_sha256=samples_sha256,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of the same spec; its tensors may be changed from then on.

        Raises UsageError if something in it does not fit.
        """
        try:
            self.model.module.load_state_dict(checkpoint.model)
            saved = checkpoint.optimizers[self._ranks.rank if self._local else 0]
            optimizer = self.model.optimizer
            pairs = zip(optimizer.param_groups, saved["param_groups"], strict=True)
            options = [{**now, "params": before["params"]} for now, before in pairs]
            optimizer.load_state_dict({"state": saved["state"], "param_groups": options})
            if checkpoint.scaler is not None:
                self.model.scaler.load_state_dict(checkpoint.scaler)
            set_random_states(checkpoint.random_states[self._ranks.rank])
        except Exception as error:  # an unexpected part of a file may raise any
            reason = " ".join(str(error).split())
            raise UsageError(
                f"{checkpoint.source}: it does not fit this training: "
                f"{type(error).__name__}: {reason}"
            ) from error


def learning_rate(spec: TrainingSpec, step: int, steps_per_epoch: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0.

    It falls by the factor `gamma` after each epoch, as with torch's StepLR. Over the first
    `learning_rate_warmup_steps` it also rises in a straight line from the workload's own rate,
    before scaling with the batch: the gradual warm-up of Goyal et al. 2017, arXiv:1706.02677,
    section 2.2. Step `learning_rate_warmup_steps` is the first at the scaled rate.
    """
    rate, begin = spec.scaled_learning_rate, spec.workload.learning_rate
    if step < spec.learning_rate_warmup_steps:
        rate = begin + (rate - begin) * step / spec.learning_rate_warmup_steps
    return rate * spec.gamma ** (step // steps_per_epoch)


def time_forward(module: torch.nn.Module, device: torch.device) -> list[float]:
    """Let each forward pass in training add its samples per second to the list that is returned.

    On a CUDA device each pass waits until the device is idle.
    """
    speeds, begun = list[float](), 0.0

    def begin(*_: Any) -> None:
        nonlocal begun
        synchronize(device)
        begun = perf_counter()

    def end(_: Any, inputs: Any, keywords: Any, outputs: Any) -> None:
        synchronize(device)
        if module.training:
            count = sample_count(inputs=(inputs, keywords))
            speeds.append(count / (perf_counter() - begun))

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end, with_kwargs=True)
    return speeds
