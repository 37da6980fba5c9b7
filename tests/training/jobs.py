"""Small trainings, and models that can be followed with a pencil."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dpbench.rendezvous.process_group import RankGroup
from dpbench.specs import WorkloadSpec
from dpbench.specs.training import TrainingRunOptions, TrainingSpec
from dpbench.specs.workload import WORKLOAD_FIELDS
from dpbench.training.checkpoint import Checkpoint, Position, from_bytes
from dpbench.training.run_folder import TrainingJob, begin_run
from tests.builders import HERE, command

QUIET = TrainingRunOptions(evaluation="off", log_interval=1000)


def training_spec(architecture: str = "Plain", **changes: Any) -> TrainingSpec:
    """ddp on gloo at group size 2, SGD on 46 synthetic samples: 6 steps an epoch, the last of
    them on 6 samples."""
    of_workload = {name: changes.pop(name) for name in changes.keys() & WORKLOAD_FIELDS}
    workload = WorkloadSpec(
        architecture=f"tests.training.jobs:{architecture}",
        dataset="synthetic",
        **{"lr": 0.1, "seed": 3, **of_workload},
    )
    values: dict[str, Any] = {
        "workload": workload,
        "implementation": "ddp",
        "backend": "gloo",
        "group_size": 2,
        "batch_size": 4,
        "threads": 1,
        "epochs": 2,
        "gamma": 0.7,
        "train_samples": 46,
    }
    values.update(changes)
    values.setdefault("devices", ("cpu",) * values["group_size"])
    return TrainingSpec(**values)


def training_job(
    folder: Path, spec: TrainingSpec, run: TrainingRunOptions = QUIET, *, resume: str | None = None
) -> TrainingJob:
    """With a new run folder."""
    job = TrainingJob(spec=spec, run=run, folder=folder, prepared=None)
    begin_run(job, command("train"), HERE)
    return replace(job, resume=resume)


def stored(folder: Path, name: str) -> Checkpoint:
    path = folder / "checkpoints" / name
    return from_bytes(path.read_bytes(), str(path))


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with buffers, and an optimizer that has stepped once."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    module(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    return module, optimizer


def checkpoint(step: int = 7, **changes: Any) -> Checkpoint:
    """Of two processes, in the second epoch."""
    module, optimizer = trained()
    made = Checkpoint(
        spec=training_spec(),
        position=Position(step=step, best_metric=0.75, epoch_loss_sum=1.5),
        model=module.state_dict(),
        optimizers=[optimizer.state_dict()],
        scaler=None,
        random_states=[{"cpu": torch.get_rng_state(), "cuda": {}}] * 2,
        samples_sha256="5a" * 32,
    )
    return replace(made, **changes)


ALONE = RankGroup()


def ranks_here() -> RankGroup:
    """The default group, of gloo, as `rank_group` would give it."""
    return RankGroup(dist.group.WORLD)


class Plain:
    """A classifier in float64, without anything random."""

    name: str = "plain"
    item: str = "rows"
    default_dataset: str = "synthetic"

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            OrderedDict[str, nn.Module](
                widen=Double(), first=nn.Linear(4, 6), tanh=nn.Tanh(), second=nn.Linear(6, 3)
            )
        ).double()

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(n, 4, generator=generator)
        return inputs, inputs[:, :3].argmax(dim=1)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs, targets)

    def count_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(dim=1) == targets).sum()


class Noisy(Plain):
    """In float32, with dropout and with buffers that every rank fills from its own samples."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3)
        )


class Single(Plain):
    """In float32."""

    def build_model(self) -> nn.Module:
        return super().build_model()[1:].float()  # type: ignore[index, no-any-return]


class Double(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.double()


class Counting(Single):
    """Counts its losses in training, from 1."""

    count = 0

    def build_model(self) -> nn.Module:
        self.module = super().build_model()
        return self.module

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.count += outputs.requires_grad
        return super().loss(outputs, targets)


class NanOnRankOne(Counting):
    """In the second epoch's second step."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = super().loss(outputs, targets)
        return loss * float("nan") if self.count == 8 and dist.get_rank() == 1 else loss


class NanGradient(Counting):
    """In the sixth step, of a loss that is finite: the root of 0 is 0, and its slope infinite."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = super().loss(outputs, targets)
        return loss + (outputs * 0.0).sqrt().sum() if self.count == 6 else loss


class DriftsOnRankOne(Counting):
    """In the fifth step, by a weight."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = super().loss(outputs, targets)
        if self.count == 5 and dist.get_rank() == 1:
            with torch.no_grad():
                next(self.module.parameters())[0, 0] += 0.5
        return loss


class OtherSamplesOnRankOne(Plain):
    """As on a host with another release of the data."""

    def synthetic_batch(
        self, n: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().synthetic_batch(n, generator)
        inputs[0, 0] += dist.get_rank()
        return inputs, targets


class SlowOnRankOne(Plain):
    """Takes a millisecond a sample there."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(Slow(), super().build_model())


class Slow(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 1:
            time.sleep(0.001 * len(inputs))
        return inputs
