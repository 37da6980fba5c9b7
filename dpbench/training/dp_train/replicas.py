"""The replicas of `dp_train`: models that start equal and get the mean of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpbench.parallel.dp.random_streams import ReplicaStreams
from dpbench.parallel.tree import move
from dpbench.training.dp_train.arguments import DpTrainArguments


def make_models(
    make_model: Callable[[], nn.Module], devices: Sequence[torch.device]
) -> list[nn.Module]:
    """Call `make_model` once per device; all models get the parameters and buffers of the first.

    Raises TypeError or ValueError: `make_model` is no function, or does not make modules that have
    parameters of their own with the same names and shapes.
    """
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise TypeError(
            f"got make_model={make_model!r}, expected a function that makes a new model, e.g. "
            "lambda: copy.deepcopy(model)"
        )
    models = [make_model() for _ in devices]
    owners: dict[Tensor, int] = {}
    for index, model in enumerate(models):
        if not isinstance(model, nn.Module):
            raise TypeError(f"make_model made {model!r}, expected a torch.nn.Module")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError("the model has no parameters to train")
        for name, parameter in model.named_parameters():
            if (owner := owners.setdefault(parameter, index)) != index:
                raise ValueError(
                    f"replicas {owner} and {index} share the parameter {name!r}; make_model must "
                    "make a new model in each call"
                )
        try:
            model.to(devices[index]).load_state_dict(models[0].state_dict())
        except RuntimeError as error:
            raise ValueError(f"replica {index} is another model than replica 0: {error}") from None
    copy_state(models[0], models[1:])  # also buffers that are in no state dict
    return models


class ModelReplicas:
    """All replicas in this process, or the one of this rank of a gloo group.

    Every rank gets the mean gradient over all ranks, and so steps its own replica alike.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        arguments: DpTrainArguments,
        *,
        rank: int | None = None,
        mapping: Callable[..., Iterable[float]] = map,
    ) -> None:
        """`rank` is None if all replicas are in this process; `mapping` may use threads."""
        self.models = models
        self.devices = arguments.replica_devices
        self._here = range(len(models)) if rank is None else [rank]
        self._group = None if rank is None else dist.group.WORLD
        self._arguments = arguments
        self._map = mapping
        # One generator for the order of the samples, then one per replica.
        root = torch.Generator().manual_seed(arguments.seed)
        seeds = torch.randint(2**62, (1 + len(self.devices),), generator=root).tolist()
        self.shuffle, *streams = (torch.Generator().manual_seed(seed) for seed in seeds)
        self._streams = ReplicaStreams(streams)

    def backward(self, iteration: int, samples: Sequence[Sequence[int]]) -> list[float]:
        """Compute the gradient of every replica on its samples; returns the losses of all."""
        work = partial(self._backward_of, iteration)
        losses = torch.zeros(len(self.devices), dtype=torch.float64)
        dealt = [samples[replica] for replica in self._here]
        own_losses = self._map(work, self._here, self.models, dealt)
        for replica, loss in zip(self._here, own_losses, strict=True):
            losses[replica] = loss
        if self._group is not None:
            dist.all_reduce(losses)
        return [float(loss) for loss in losses]

    def average(self) -> None:
        """Give replica 0 of this process the mean gradient, and clear the others'."""
        for alike in zip(*(model.parameters() for model in self.models), strict=True):
            gradients = [parameter.grad for parameter in alike]
            for parameter in alike:
                parameter.grad = None
            alike[0].grad = mean(alike[0], gradients, len(self.devices), self._group)

    @torch.no_grad()
    def broadcast(self) -> None:
        """Copy the parameters and buffers of replica 0 to the others."""
        copy_state(self.models[0], self.models[1:])
        if self._group is not None:  # parameters are equal
            for buffer in self.models[0].buffers():
                value = buffer.cpu()
                dist.broadcast(value, src=0)
                buffer.copy_(value)

    def _backward_of(
        self, iteration: int, replica: int, model: nn.Module, samples: Sequence[int]
    ) -> float:
        """Add the gradient of the mean loss of the samples to one model; returns that loss.

        Raises TypeError or ValueError, with iteration, replica and sample, for a loss that is no
        scalar tensor with a gradient.
        """
        task, device, total = self._arguments, self.devices[replica], 0.0
        for index in samples:
            on_cpu = device.type == "cpu"  # random numbers come from the replica's generator
            with self._streams.entered(replica) if on_cpu else nullcontext():
                loss = _loss(task, model, move(task.data[index], device))
            where = f"in iteration {iteration}, replica {replica}, sample {index}"
            if not isinstance(loss, Tensor):
                raise TypeError(f"got the loss {loss!r} {where}, expected a tensor; pass loss_fn?")
            if loss.numel() != 1:
                shape = tuple(loss.shape)
                raise ValueError(f"got a loss of shape {shape} {where}, expected a scalar")
            if not loss.requires_grad:
                raise ValueError(f"got a loss without a gradient {where}")
            (loss / len(samples)).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total / len(samples)


def _loss(task: DpTrainArguments, model: nn.Module, sample: Any) -> Any:
    output = model(sample) if task.forward_fn is None else task.forward_fn(model, sample)
    if task.loss_fn is None:
        return output
    return task.loss_fn(output, sample if task.target_fn is None else task.target_fn(sample))


def state(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers, in the order in which they were registered."""
    return [*model.parameters(), *model.buffers()]


@torch.no_grad()
def copy_state(source: nn.Module, others: Sequence[nn.Module]) -> None:
    """Overwrite the parameters and buffers of `others`."""
    for model in others:
        for target, value in zip(state(model), state(source), strict=True):
            target.copy_(value)


def mean(
    parameter: Tensor,
    gradients: Sequence[Tensor | None],
    replicas: int,
    group: dist.ProcessGroup | None,
) -> Tensor | None:
    """The sum of a parameter's gradients, also those of other ranks, ÷ the number of replicas.

    A replica without a gradient counts as zero; the mean is None if no replica has one.
    """
    found = [gradient.to(parameter.device) for gradient in gradients if gradient is not None]
    if group is None:
        return sum(found[1:], found[0]) / replicas if found else None
    present = torch.tensor(len(found))
    dist.all_reduce(present, group=group)
    total = found[0].cpu() if found else torch.zeros_like(parameter, device="cpu")
    dist.all_reduce(total, group=group)
    return (total / replicas).to(parameter.device) if present else None
