"""The verification of gradients on the ranks of a process group that is there already."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from dpbench.data.datasets import Dataset
from dpbench.measure.implementations import wrap
from dpbench.measure.rank_model import RankModel, build_optimizer
from dpbench.measure.step import BenchmarkStepper
from dpbench.measure.verification import checksum, verify
from dpbench.records.trial import Verification
from dpbench.rendezvous.process_group import RankGroup
from dpbench.specs import Configuration
from tests.builders import configuration
from tests.measure.implementations.architectures import Rows

WORLD = 2


def uneven(implementation: str, backend: str, **changes: Any) -> Configuration:
    """Four samples on rank 0, three on rank 1, and two micro-steps."""
    values = {"scaling": "strong", "batch_size": 7, "accumulate": 2, **changes}
    return configuration(implementation=implementation, backend=backend, **values)


def samples(architecture: Rows) -> Dataset:
    inputs, targets = architecture.synthetic_batch(64, torch.Generator().manual_seed(0))
    return Dataset(inputs=inputs, targets=targets)


def ranks_of(backend: str) -> RankGroup:
    """A collective."""
    control = dist.group.WORLD if backend == "gloo" else dist.new_group(backend="gloo")
    return RankGroup(control)


def verified(
    implementation: str, backend: str, architecture: Rows, rank: int, ranks: RankGroup
) -> Verification | str:
    """The verification, or the first line of the error that the implementation raises."""
    settings = uneven(implementation, backend)
    try:
        return verify(settings, architecture, samples(architecture), rank, ranks)
    except (RuntimeError, ValueError) as error:
        return str(error).strip().splitlines()[0]


def trained(
    settings: Configuration, architecture: Rows, rank: int, steps: int
) -> tuple[list[str], int | None]:
    """Checksums of the parameters, before the model is wrapped and after that, and at the end; and
    the bytes that the steps have reduced."""
    torch.manual_seed(0)
    module = architecture.build_model()
    checksums = [checksum(module)]
    parallel = wrap(module, settings, rank)
    checksums.append(checksum(module))
    optimizer = parallel.optimizer(build_optimizer(module, settings))
    model = RankModel(module=module, parallel=parallel, optimizer=optimizer, loss=architecture.loss)
    weight = settings.averaging_weight(rank)
    stepper = BenchmarkStepper(model, samples(architecture).select, weight)
    for step in range(steps):
        batches = torch.arange(16 * step, 16 * step + 16).remainder(64).chunk(2)
        stepper.step([batch[rank::WORLD] for batch in batches])
    return [*checksums, checksum(module)], parallel.reduced_bytes()


def as_torchrun(rank: int) -> None:
    """The variables by which libraries learn which rank they are; nobody listens at the port."""
    number = str(rank)
    os.environ.update(RANK=number, LOCAL_RANK=number, MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    os.environ.update(WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD), OMP_NUM_THREADS="1")
