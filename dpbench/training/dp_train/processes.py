"""The replicas of `dp_train` in separate processes: one gloo rank each.

Gradients are averaged by one all-reduce per step, so every rank steps its own replica alike.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.launch.fork_world import fork_world
from dpbench.rendezvous.process_group import process_group
from dpbench.training.dp_train.arguments import DpTrainArguments
from dpbench.training.dp_train.loop import generators, train
from dpbench.training.dp_train.replicas import LocalReplicas, state
from dpbench.training.dp_train.result import History, Indices, NonFinite

Outcome = tuple[History | NonFinite, list[Tensor]]
"""What happened in a rank, and the parameters and buffers at its end."""


def train_in_processes(
    model: nn.Module, arguments: DpTrainArguments, devices: Sequence[torch.device]
) -> History:
    """Train in one process per device; the weights come back into `model`.

    Raises:
        TypeError: something cannot be pickled.
        NonFinite: see `train`.
        WorldFailed: a rank raised, died or took too long; with the first cause.
    """
    ranks = len(devices)
    threads = max(1, torch.get_num_threads() // ranks)
    try:
        # As bytes, since tensors would be sent to the ranks in shared memory.
        content = pickle.dumps((model, arguments, devices, threads))
    except Exception as error:
        raise TypeError(
            "mode='processes' sends the model, the data and the functions to other processes, "
            f"but {error}; define functions at the top of a module, or use mode='threads'"
        ) from error
    limit = timedelta(seconds=arguments.time_limit_seconds)
    (happened, values), *_ = fork_world(partial(_train_rank, content), ranks, timeout=limit)
    with torch.no_grad():
        for target, value in zip(state(model), values, strict=True):
            target.copy_(value)
    if isinstance(happened, NonFinite):
        raise happened
    return happened


def _train_rank(content: bytes, rank: int) -> Outcome:
    model, arguments, devices, threads = pickle.loads(content)
    torch.set_num_threads(threads)
    model.to(devices[rank])
    limit = timedelta(seconds=arguments.time_limit_seconds)
    shuffle, *streams = generators(arguments.seed, len(devices))
    with process_group("gloo", timeout=limit, device="cpu"):
        replica = RankReplica([model], devices, arguments, streams)
        happened: History | NonFinite
        try:
            happened = train(arguments, replica, shuffle)
        except NonFinite as error:  # on all ranks alike, as they have the same losses
            happened = error
    return happened, [tensor.detach().cpu() for tensor in state(model)] if rank == 0 else []


class RankReplica(LocalReplicas):
    """The replica of this rank, with the interface of all replicas in one process."""

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        rank = dist.get_rank()
        return [self.backward_of(iteration, rank, self.models[0], samples[rank])]

    def average(self, losses: list[float]) -> list[float]:
        parameters = [*self.models[0].parameters()]
        everyones = torch.zeros(self.count, dtype=torch.float64)
        everyones[dist.get_rank()] = losses[0]
        present = torch.tensor([float(p.grad is not None) for p in parameters]).double()
        gradients = [
            torch.zeros(p.numel()) if p.grad is None else p.grad.to_dense().flatten().cpu()
            for p in parameters
        ]
        message = torch.cat([everyones, present, *gradients])  # in float64, the largest dtype
        dist.all_reduce(message)
        sizes = [self.count, len(parameters), *map(torch.numel, parameters)]
        everyones, present, *sums = torch.split(message, sizes)
        for parameter, count, total in zip(parameters, present.tolist(), sums, strict=True):
            mean = (total / self.count).view(parameter.shape)
            parameter.grad = mean.to(parameter) if count else None
        return [float(loss) for loss in everyones]

    def broadcast(self) -> None:
        """Copy the buffers of replica 0; the parameters are already equal."""
        with torch.no_grad():
            for buffer in self.models[0].buffers():
                value = buffer.cpu()
                dist.broadcast(value, src=0)
                buffer.copy_(value)
