"""What is watched and replaced in a script, in public places of torch: forward of its wrapper, the
iterator of DataLoader, the hook after an optimizer's step, and arguments of the calls that make
process group, wrapper and loader."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, DistributedSampler

from dpbench import parallel
from dpbench.measure.script.clock import StepClock
from dpbench.measure.script.task import ScriptTask

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of as many bytes as the numbers of a parameter."""
QUEUE_LIMIT = 64
"""Most steps in which a queue of batches is emptied."""


class ScriptFault(Exception):
    """What the script does cannot be measured; the message says what it should do."""


@dataclass
class Feed:
    """What is known of a DataLoader's batches, and whether they feed training steps."""

    batch: Any = None
    """The last one."""
    at_step: int = 0
    """Steps that had been taken when it came."""
    trains: bool = False
    """Whether it gave batches to two consecutive steps, as a loader for evaluation does not."""


class Batches:
    """An iterator of a DataLoader that the clock hears of. It keeps the loader, which many scripts
    make in the line of their loop."""

    def __init__(
        self, loader: DataLoader[Any], batches: Iterator[Any], watched: Watched, clock: StepClock
    ) -> None:
        self._loader, self._batches, self._clock = loader, batches, clock
        self._watched, self._feed = watched, watched.feeds[loader]

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        feed, clock = self._feed, self._clock
        if clock.segment.mode == "cached" and feed.trains:
            clock.segment.repeated += 1
            return refreshed(feed.batch)
        try:
            batch = next(self._batches)
        except StopIteration:
            clock.counts.interrupted = True
            raise
        if feed.trains:
            clock.counts.samples += samples_in(batch)
        elif feed.batch is not None and clock.taken == feed.at_step + 1:
            feed.trains = clock.loads = True
            self._watched.feeding = self._loader, feed
        else:
            clock.counts.interrupted = True
        feed.batch, feed.at_step = batch, clock.taken
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def refreshed(batch: Any) -> Any:
    """The batch in new containers, since scripts take parts out of theirs; tensors are shared."""
    if torch.is_tensor(batch):
        return batch
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return type(batch)(map(refreshed, batch))
    return copy.copy(batch)


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, in its order."""
    if torch.is_tensor(batch):
        yield batch
    elif isinstance(batch, (Mapping, list, tuple)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_of(part)


def samples_in(batch: Any) -> int:
    """The first dimension of the first tensor; 1 if there is none."""
    first = next(tensors_of(batch), None)
    return first.shape[0] if first is not None and first.ndim else 1


def digest(values: torch.Tensor) -> int | None:
    """A number that is equal where all bits of the values are; None if it cannot be had."""
    kind = BITS.get(values.element_size())
    if type(values) not in (torch.Tensor, torch.nn.Parameter) or not kind or not values.ndim:
        return None
    return int(values.detach().contiguous().view(kind).sum(dtype=torch.int64))


class Watched:
    """What is seen of the script beside its steps, and which arguments were replaced."""

    def __init__(self, task: ScriptTask) -> None:
        self.replaced, self.takes_ours = task.replaced, task.takes_ours
        self.has_peers = task.communicates and task.size > 1
        self.called: set[str] = set()
        """Those of the calls that the script has made."""
        self.feeds: WeakKeyDictionary[Any, Feed] = WeakKeyDictionary()
        self.feeding: tuple[DataLoader[Any], Feed] | None = None
        """The loader that fed the steps last, which may be gone from the script."""
        self.wrapper: DistributedDataParallel | None = None
        """The wrapper that computed last."""
        self.unused = False
        """Whether some parameter had no gradient after the warm-up."""

    def missing_call(self) -> str | None:
        """A call that should have been replaced, and that a group of several ranks has not made.

        For one rank many scripts make neither a group nor a wrapper.
        """
        if not self.has_peers:
            return None
        missing = [call for call in self.replaced if call not in self.called]
        if self.takes_ours and not isinstance(self.wrapper, parallel.DistributedDataParallel):
            missing.append("DistributedDataParallel")
        return next(iter(missing), None)

    def digests(self, optimizer: torch.optim.Optimizer | None) -> dict[str, int]:
        """A number for each whole parameter that the script trains, equal where all its bits are.
        Shards of parameters, which differ between ranks, are left out."""
        named: Any = []
        if self.wrapper is not None:
            named = self.wrapper.module.named_parameters()
            named = [(name, one) for name, one in named if one.requires_grad]
            self.unused = any(one.grad is None for _, one in named)
        elif optimizer is not None:
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            named = ((f"parameter {number}", one) for number, one in enumerate(parameters))
        found = ((name, digest(one)) for name, one in named)
        return {name: number for name, number in found if number is not None}

    def batch_digest(self) -> list[int | None] | None:
        """A number for each tensor of the last batch that fed a step, equal where all its bits are.

        None with a DistributedSampler, which gives each rank samples of its own: if their tensors
        are equal, the script makes them up from one seed.
        """
        if self.feeding is None:
            return None
        loader, feed = self.feeding
        if isinstance(loader.sampler, DistributedSampler):
            return None
        return [digest(one) for one in tensors_of(feed.batch)] or None

    @property
    def feeding_loader(self) -> DataLoader[Any] | None:
        """The DataLoader that feeds the steps; None if there is none."""
        return self.feeding and self.feeding[0]


def watch(clock: StepClock, watched: Watched) -> None:
    """Let the clock hear of the script's batches, forward passes and steps, and replace what the
    task says."""
    for module in (dist, dist.distributed_c10d):
        _replace(module, "init_process_group", "init_process_group", watched)
    for wrapper in (DistributedDataParallel, parallel.DistributedDataParallel):
        _replace(wrapper, "__init__", "DistributedDataParallel", watched)
        _watch_forward(wrapper, clock, watched)
    _replace(DataLoader, "__init__", "DataLoader", watched)
    _watch_batches(clock, watched)
    if watched.takes_ours:
        for module in (torch.nn.parallel, torch.nn.parallel.distributed):
            vars(module)["DistributedDataParallel"] = parallel.DistributedDataParallel
    for name in ("spawn", "start_processes"):
        vars(torch.multiprocessing)[name] = _refuse_to_spawn
    register_optimizer_step_post_hook(lambda optimizer, _, __: clock.step_ended(optimizer))


def _replace(owner: Any, name: str, call: str, watched: Watched) -> None:
    """Let the calls of a function have the arguments that the task has for them."""
    values = watched.replaced.get(call)
    if not values:
        return
    function = getattr(owner, name)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        watched.called.add(call)
        bound = signature.bind(*given, **named)
        bound.arguments.update(values)
        return function(*bound.args, **bound.kwargs)

    setattr(owner, name, called)


def _watch_forward(
    wrapper: type[DistributedDataParallel], clock: StepClock, watched: Watched
) -> None:
    """Count the forward passes that prepare a reduction, and let none do so without averaging."""
    forward: Any = wrapper.forward

    @functools.wraps(forward)
    def watched_forward(self: Any, *inputs: Any, **options: Any) -> Any:
        watched.wrapper = self
        wanted = self.require_backward_grad_sync
        if torch.is_grad_enabled():
            clock.counts.forwards += 1
        if not wanted or not torch.is_grad_enabled():
            return forward(self, *inputs, **options)
        clock.synchronizes = True
        clock.counts.reducing_forwards += 1
        if clock.segment.mode != "no-sync":
            return forward(self, *inputs, **options)
        self.require_backward_grad_sync = False  # exactly what its no_sync() does
        try:
            return forward(self, *inputs, **options)
        finally:
            self.require_backward_grad_sync = wanted

    wrapper.forward = watched_forward  # type: ignore[method-assign]


def _watch_batches(clock: StepClock, watched: Watched) -> None:
    iterate: Any = DataLoader.__iter__

    @functools.wraps(iterate)
    def watched_iter(self: Any) -> Iterator[Any]:
        feed = watched.feeds.setdefault(self, Feed())
        if clock.segment.mode == "cached" and feed.trains:
            return Batches(self, iter(()), watched, clock)
        batches = iterate(self)
        if self.num_workers:
            queue = self.num_workers * (self.prefetch_factor or 2)
            clock.queued = min(max(clock.queued, queue), QUEUE_LIMIT)
        return Batches(self, batches, watched, clock)

    DataLoader.__iter__ = watched_iter  # type: ignore[method-assign,assignment]


def _refuse_to_spawn(*_: Any, **__: Any) -> NoReturn:
    raise ScriptFault(
        "the script starts its own ranks (torch.multiprocessing); dpbench starts them, as torchrun "
        "does: take RANK, LOCAL_RANK and WORLD_SIZE from the environment"
    )
