"""Replicas in separate processes: one rank each, on gloo.

In each step the ranks send their gradients to rank 0, which adds them up in rank order, so that the
sum has the same bits as in the other modes, and sends its weights to all.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.launch.agent import run_ranks
from dpbench.measure.device import load_vector_math
from dpbench.rendezvous.process_group import process_group
from dpbench.temporary import temporary_folder
from dpbench.training.dp_train.arguments import DpTrainArguments, Task
from dpbench.training.dp_train.loop import generators, round_robin, train
from dpbench.training.dp_train.models import set_mean, state, take_gradients
from dpbench.training.dp_train.replicas import DefaultGeneratorStream, TrainedReplica
from dpbench.training.dp_train.result import History, Indices, NonFinite

JOB = "job.pickle"


@dataclass(frozen=True, slots=True)
class _Job:
    """The input of every rank."""

    model: nn.Module
    arguments: DpTrainArguments
    task: Task
    threads: int


@dataclass(frozen=True, slots=True)
class _Report:
    """The result of rank 0, with tensors as bytes: as tensors they would be in shared memory."""

    history: History | None
    failure: NonFinite | None
    state: bytes


def train_in_processes(model: nn.Module, arguments: DpTrainArguments, task: Task) -> History:
    """Train in one process per device of the arguments; the weights come back into `model`.

    Raises:
        TypeError: something cannot be pickled.
        NonFinite: see `train`.
        RanksFailed: a rank raised, died or took too long; with the first cause.
    """
    ranks = len(arguments.devices)
    job = _Job(model, arguments, task, max(1, torch.get_num_threads() // ranks))
    with temporary_folder() as scratch:
        (scratch / JOB).write_bytes(_pickled(job))
        work = partial(_run_rank, scratch / JOB)
        report, *_ = run_ranks(work, ranks, scratch, arguments.time_limit_seconds)
    assert report is not None
    _unpack(torch.frombuffer(bytearray(report.state), dtype=torch.uint8), state(model))
    if report.failure is not None:
        raise report.failure
    assert report.history is not None
    return report.history


def _pickled(job: _Job) -> bytes:
    try:
        return pickle.dumps(job)
    except Exception as error:
        raise TypeError(
            "mode='processes' sends the model, the data and the functions to other processes, "
            f"but {error}; define functions at the top of a module, or use mode='threads'"
        ) from error


def _run_rank(job_file: Path, rank: int) -> _Report | None:
    job: _Job = pickle.loads(job_file.read_bytes())
    torch.set_num_threads(job.threads)
    load_vector_math()  # all modes promise the same bits
    ranks = len(job.arguments.devices)
    shuffle, *streams = generators(job.arguments.seed, ranks)
    steps = round_robin(len(job.task.data), ranks, job.arguments.batch_per_replica, shuffle)
    limit = timedelta(seconds=job.arguments.time_limit_seconds)
    with process_group("gloo", timeout=limit, device="cpu"):
        group = Processes(rank, job.model, job.arguments, job.task, streams[rank])
        history, failure = None, None
        try:
            history = train(job.arguments, group, steps)
        except NonFinite as error:
            group.give_up()
            failure = error
        return (
            _Report(history, failure, _pack(state(job.model)).numpy().tobytes())
            if rank == 0
            else None
        )


class Processes:
    """The group as one of its ranks sees it."""

    def __init__(
        self,
        rank: int,
        model: nn.Module,
        arguments: DpTrainArguments,
        task: Task,
        generator: torch.Generator,
    ) -> None:
        device = arguments.devices[rank]
        model.to(device)
        self.leads = rank == 0
        self.models: Sequence[nn.Module] = [model]
        self._count = len(arguments.devices)
        self._replica = TrainedReplica(rank, model, device, DefaultGeneratorStream(generator), task)
        self._gathered: list[list[Tensor | None]] = []

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        """Compute this rank's gradients, and gather all losses and gradients on rank 0."""
        replica = self._replica
        loss = replica.backward(iteration, samples[replica.index])
        [model] = self.models
        _refuse_sparse(model)
        found = take_gradients(model)
        likes = list(model.parameters())
        values = [
            torch.zeros_like(p) if g is None else g for p, g in zip(likes, found, strict=True)
        ]
        header = torch.tensor([loss, *(g is not None for g in found)], dtype=torch.float64)
        message = _pack([header, *values])
        messages = [torch.empty_like(message) for _ in range(self._count)] if self.leads else None
        dist.gather(message, messages)
        losses, self._gathered = [], []
        for received in messages or []:
            gradients = [torch.empty_like(parameter) for parameter in likes]
            _unpack(received, [header, *gradients])
            loss, *present = header.tolist()
            losses.append(loss)
            self._gathered.append(
                [g if p else None for g, p in zip(gradients, present, strict=True)]
            )
        return losses

    def reduce(self) -> None:
        set_mean(self.models[0], self._gathered)

    def broadcast(self) -> bool:
        return self._send(goes_on=True)

    def give_up(self) -> None:
        """End the loops of the other ranks, which wait for weights."""
        self._send(goes_on=False)

    def _send(self, *, goes_on: bool) -> bool:
        flag = torch.tensor([goes_on])
        values = [flag, *state(self.models[0])]
        message = _pack(values)
        dist.broadcast(message, src=0)
        if not self.leads:
            _unpack(message, values)
        return bool(flag)

    def close(self) -> None:
        """Do nothing: the process group is closed where it was made."""


def _refuse_sparse(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise TypeError(
                f"the gradient of {name!r} is sparse, and mode='processes' sends dense ones only; "
                "use mode='threads'"
            )


def _pack(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of all tensors, on the CPU."""
    flat = [tensor.detach().cpu().contiguous().reshape(-1) for tensor in tensors]
    return torch.cat([tensor.view(torch.uint8) for tensor in flat])


def _unpack(message: Tensor, targets: Sequence[Tensor]) -> None:
    """Overwrite the targets with the tensors that `_pack` packed."""
    with torch.no_grad():
        parts = torch.split(message, [tensor.nbytes for tensor in targets])
        for target, part in zip(targets, parts, strict=True):
            # Cloned, because a view of wider elements must be aligned to them.
            target.copy_(part.clone().view(target.dtype).view(target.shape))
