"""The replicas of `dp_train`: their models, their part of a step, and the loop over all steps.

In this process a group runs one replica after the other, or each in a thread; `ranks` runs them in
separate processes. The loop is the same in every mode: backward, reduce, clip, step, broadcast. All
modes sum gradients in the order of the replicas, so that they give the same bits. The samples are
shuffled for each pass and dealt round-robin to the replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dpbench.parallel.dp.random_streams import ReplicaStreams
from dpbench.parallel.dp.workers import WorkerPool
from dpbench.training.settings import History, Indices, NonFinite, Settings, Task


def take_gradients(model: nn.Module) -> list[Tensor | None]:
    """The gradients of all parameters in order, None for those without; clears them."""
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return found


def set_mean(model: nn.Module, gradients: Sequence[Sequence[Tensor | None]]) -> None:
    """Set the gradients of `model` to Σ of the replicas' gradients, in their order, ÷ their number.

    A replica without a gradient counts as zero; if no replica has one, the parameter gets none.
    """
    for parameter, column in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
        found = [gradient.to(parameter.device) for gradient in column if gradient is not None]
        if found:
            parameter.grad = sum(found[1:], found[0]) / len(column)


def make_models(
    make_model: Callable[[], nn.Module], devices: Sequence[torch.device]
) -> list[nn.Module]:
    """One model per device, all with the parameters and buffers of the first.

    Calls `make_model` once per device.

    Raises:
        TypeError: `make_model` is no function, or does not make modules.
        ValueError: models that share parameters, or differ in names, shapes or dtypes, or have no
            parameters.
    """
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise TypeError(
            f"got make_model={make_model!r}, expected a function that makes a new model, e.g. "
            "lambda: copy.deepcopy(model)"
        )
    models = [make_model() for _ in devices]
    for model in models:
        if not isinstance(model, nn.Module):
            raise TypeError(f"make_model made {model!r}, expected a torch.nn.Module")
    _check_same_structure(models)
    for model, device in zip(models, devices, strict=True):
        model.to(device)
    copy_state(models[0], models[1:])
    return models


def state(model: nn.Module) -> list[Tensor]:
    """All parameters and buffers, in the order of their names' registration."""
    return [*model.parameters(), *model.buffers()]


def copy_state(source: nn.Module, others: Iterable[nn.Module]) -> None:
    """Overwrite the parameters and buffers of `others`."""
    values = state(source)
    with torch.no_grad():
        for model in others:
            for target, value in zip(state(model), values, strict=True):
                target.copy_(value)


def _check_same_structure(models: Sequence[nn.Module]) -> None:
    if not any(parameter.requires_grad for parameter in models[0].parameters()):
        raise ValueError("the model has no parameters to train")
    owners: dict[int, int] = {}
    first = _structure(models[0])
    for index, model in enumerate(models):
        for name, parameter in model.named_parameters():
            owner = owners.setdefault(id(parameter), index)
            if owner != index:
                raise ValueError(
                    f"replicas {owner} and {index} share the parameter {name!r}; make_model must "
                    "make a new model in each call"
                )
        own = _structure(model)
        for name in [*first, *own]:
            if first.get(name) != own.get(name):
                raise ValueError(
                    f"make_model made different models: {name!r} is {first.get(name, 'missing')} "
                    f"in replica 0 and {own.get(name, 'missing')} in replica {index}"
                )


def _structure(model: nn.Module) -> dict[str, Any]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: (tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in named}


class _Stream(Protocol):
    """The random numbers of one replica: contexts for its forward and its backward."""

    def forward(self) -> AbstractContextManager[Any]: ...

    def backward(self) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """Random numbers for replicas that do not run at the same time: each gets the default generator
    in turn."""

    generator: torch.Generator

    def forward(self) -> AbstractContextManager[None]:
        return _lent_to(self.generator)

    backward = forward


@dataclass(frozen=True, slots=True)
class _OwnThread:
    """Random numbers for replicas that run at the same time."""

    streams: ReplicaStreams
    replica: int

    def forward(self) -> AbstractContextManager[Any]:
        return self.streams.entered(self.replica)

    def backward(self) -> AbstractContextManager[Any]:
        return self.streams.entered_backward()


@dataclass(frozen=True, slots=True)
class Replica:
    """A model, its device, and its source of random numbers."""

    index: int
    model: nn.Module
    device: torch.device
    stream: _Stream
    task: Task

    def backward(self, iteration: int, samples: tuple[int, ...]) -> float:
        """Add the gradient of the mean loss of the samples; returns that loss.

        Raises:
            ValueError, TypeError: a loss is no scalar tensor with a gradient; the message has the
                iteration, replica and sample.
        """
        total = 0.0
        for sample in samples:
            with self.stream.forward():
                loss = self.task.loss(self.model, sample, self.device)
            self._check(loss, f"in iteration {iteration}, replica {self.index}, sample {sample}")
            with self.stream.backward():
                (loss / len(samples)).backward()
            total += loss.item()
        return total / len(samples)

    def _check(self, loss: Any, where: str) -> None:
        if not isinstance(loss, Tensor):
            raise TypeError(f"got the loss {loss!r} {where}, expected a tensor; give loss_fn?")
        if loss.numel() != 1:
            raise ValueError(
                f"got a loss of shape {tuple(loss.shape)} {where}, expected a scalar; reduce it"
            )
        if not loss.requires_grad:
            raise ValueError(f"got a loss without a gradient {where}; it must depend on the model")


def generators(seed: int, replicas: int) -> list[torch.Generator]:
    """One generator for the order of the samples, then one per replica."""
    root = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**62, (1 + replicas,), generator=root).tolist()
    return [torch.Generator().manual_seed(each) for each in seeds]


@contextmanager
def _lent_to(generator: torch.Generator) -> Iterator[None]:
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


class Group(Protocol):
    """The interface that the training loop needs; in a process that does not lead, `losses` are
    empty."""

    models: Sequence[nn.Module]
    leads: bool
    """Whether replica 0, which the optimizer steps, is here."""

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        """Compute every replica's gradients on its samples; returns their losses."""
        ...

    def reduce(self) -> None:
        """Give replica 0 the mean gradient, and clear the others'."""
        ...

    def broadcast(self) -> bool:
        """Copy replica 0's parameters and buffers to all replicas; returns False if it has given
        up."""
        ...

    def close(self) -> None: ...


class Sequential:
    """One replica after the other: slow and simple, the reference for the other modes."""

    leads = True

    def __init__(
        self,
        models: Sequence[nn.Module],
        settings: Settings,
        task: Task,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.models = models
        streams = [OwnProcess(generator) for generator in generators]
        parts = enumerate(zip(models, settings.devices, streams, strict=True))
        self.replicas = [Replica(i, *part, task) for i, part in parts]

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        pairs = zip(self.replicas, samples, strict=True)
        return [replica.backward(iteration, mine) for replica, mine in pairs]

    def reduce(self) -> None:
        set_mean(self.models[0], [take_gradients(model) for model in self.models])

    def broadcast(self) -> bool:
        copy_state(self.models[0], self.models[1:])
        return True

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


class Threads(Sequential):
    """A thread per replica; each has an equal part of the intra-op threads."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        settings: Settings,
        task: Task,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.models = models
        streams = ReplicaStreams(generators)
        self.replicas = [
            Replica(i, model, device, _OwnThread(streams, i), task)
            for i, (model, device) in enumerate(zip(models, settings.devices, strict=True))
        ]
        self._workers = WorkerPool(settings.devices)

    def backward(self, iteration: int, samples: Indices) -> list[float]:
        jobs = {
            i: partial(replica.backward, iteration, mine)
            for i, (replica, mine) in enumerate(zip(self.replicas, samples, strict=True))
        }
        return [loss for _, loss in sorted(self._workers.run(jobs).items())]

    def close(self) -> None:
        self._workers.close()


EPSILON = 1e-6
"""Added to the norm before dividing by it, as torch.nn.utils.clip_grad_norm_ does."""


def train(
    settings: Settings,
    group: Group,
    steps: Iterable[Indices],
    report: Callable[[int, float], None] | None = None,
) -> History:
    """Run all steps; in a process that does not lead, as long as replica 0 goes on.

    Args:
        report: gets iteration and loss after each step.

    Raises:
        NonFinite: unless settings.on_nonfinite is "record".
    """
    leader = _Leader(settings, group) if group.leads else None
    history = History()
    for iteration, samples in enumerate(islice(steps, settings.n_iter), start=1):
        losses = group.backward(iteration, samples)
        if leader is not None:
            leader.update(iteration, samples, losses, history)
        if not group.broadcast():
            break
        if leader is not None:
            leader.call("on_broadcast", iteration)
        if report is not None:
            report(iteration, history.losses[-1])
    return history


class _Leader:
    """The part of the loop that runs with replica 0."""

    def __init__(self, settings: Settings, group: Group) -> None:
        self._settings = settings
        self._group = group
        self._model = group.models[0]
        self._optimizer = settings.optimizer(self._model.parameters(), lr=settings.lr)
        make = settings.scheduler
        self._scheduler = make(self._optimizer) if make is not None else None

    def update(
        self, iteration: int, samples: Indices, losses: list[float], history: History
    ) -> None:
        """Reduce, clip and step with replica 0; or skip the step if something is not finite."""
        self.call("on_backward", iteration)
        self._group.reduce()
        self.call("on_reduce", iteration)
        norm = _clip(self._model, self._settings.max_norm)
        failure = _failure(iteration, samples, losses, norm)
        if failure is not None and self._settings.on_nonfinite == "raise":
            raise failure
        history.indices.append(samples)
        history.norms.append(norm)
        finite = all(map(math.isfinite, losses))
        history.losses.append(sum(losses) / len(losses) if finite else math.nan)
        if failure is None:
            self._optimizer.step()
            if self._scheduler is not None:
                self._scheduler.step()
        else:
            history.skipped_steps += 1
        self.call("on_step", iteration)
        self._optimizer.zero_grad()

    def call(self, name: str, iteration: int) -> None:
        callback = self._settings.callbacks[name]
        if callback is not None:
            callback(iteration, self._group.models)


def _clip(model: nn.Module, max_norm: float) -> float:
    """Scale the gradients to the norm `max_norm` if theirs, over all parameters, is larger.

    Returns:
        The norm before scaling; gradients that are not finite are left unchanged.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not gradients:
        return 0.0
    # For a sparse gradient its values; it has been summed, so no index occurs twice.
    values = [g if g.layout is torch.strided else g.coalesce().values() for g in gradients]
    norms = torch.stack([torch.linalg.vector_norm(value) for value in values])
    norm = float(torch.linalg.vector_norm(norms))
    if max_norm < norm < float("inf"):
        for gradient in gradients:
            gradient.mul_(max_norm / (norm + EPSILON))
    return norm


def _failure(
    iteration: int, samples: Indices, losses: list[float], norm: float
) -> NonFinite | None:
    for replica, (loss, mine) in enumerate(zip(losses, samples, strict=True)):
        if not math.isfinite(loss):
            return NonFinite(f"the loss is {loss}", iteration, mine, replica)
    if not math.isfinite(norm):
        everything = tuple(index for mine in samples for index in mine)
        return NonFinite(f"the norm of the mean gradient is {norm}", iteration, everything)
    return None


def round_robin(
    samples: int, replicas: int, batch_per_replica: int, generator: torch.Generator
) -> Iterator[Indices]:
    """Endless steps; replica r gets every `replicas`-th index of a step, from the r-th on.

    Every pass has each of the `samples` indices once, in an order drawn from `generator`. A step
    may end one pass and begin the next, and has no index twice even then.

    Args:
        samples: in the data, at least `replicas * batch_per_replica`.
    """
    size = replicas * batch_per_replica
    waiting: list[int] = []
    while True:
        if len(waiting) < size:
            waiting += _next_pass(samples, waiting, size - len(waiting), generator)
        step, waiting = waiting[:size], waiting[size:]
        yield tuple(tuple(step[replica::replicas]) for replica in range(replicas))


def _next_pass(
    samples: int, before: list[int], missing: int, generator: torch.Generator
) -> list[int]:
    """A permutation whose first `missing` indices are not in `before`, which is in the same
    step."""
    order = torch.randperm(samples, generator=generator).tolist()
    taken = set(before)
    first = [index for index in order if index not in taken][:missing]
    chosen = set(first)
    return first + [index for index in order if index not in chosen]
