"""What is watched and replaced in a script, in public places of torch: forward of its wrapper, the
iterator of DataLoader, the hook after an optimizer's step, and arguments of the calls that make
process group, wrapper and loader."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from dpbench import parallel
from dpbench.records.trial import Mode
from dpbench.specs import Configuration
from dpbench.specs.traits import BACKENDS

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of as many bytes as the numbers of a parameter."""
WITHOUT_WORKERS = {
    "persistent_workers": False,
    **dict.fromkeys(("prefetch_factor", "multiprocessing_context")),
    "timeout": 0,
}
"""Arguments that a DataLoader without workers must have."""


class ScriptFault(Exception):
    """What the script does cannot be measured; the message says what it should do."""


def replaced_arguments(configuration: Configuration) -> dict[str, dict[str, Any]]:
    """The values of a row in the place of the script's own, by call and argument."""
    replaced: dict[str, dict[str, Any]] = {}
    if configuration.data_workers is not None:
        replaced["DataLoader"] = {"num_workers": configuration.data_workers}
        replaced["DataLoader"] |= {} if configuration.data_workers else WITHOUT_WORKERS
    if configuration.backend in BACKENDS:
        replaced["init_process_group"] = {"backend": configuration.backend}
    find_unused = None if configuration.find_unused is None else configuration.find_unused == "on"
    wrapper = {"bucket_cap_mb": configuration.bucket_cap_mb, "find_unused_parameters": find_unused}
    wrapper = {name: value for name, value in wrapper.items() if value is not None}
    return replaced | ({"DistributedDataParallel": wrapper} if wrapper else {})


@dataclass
class StepCounts:
    """Counts of one step."""

    samples: int = 0
    """Samples in the batches that feed steps."""
    repeated_batches: int = 0
    """Batches that were handed out again."""
    queued_batches: int = 0
    """Batches that the workers of a loader may have ready, if one was started."""
    forwards: int = 0
    """Forward passes with gradients."""
    reducing_forwards: int = 0
    """Forward passes in which the script prepared a reduction."""
    interrupted: bool = False
    """Whether an epoch ended, or a loader that feeds no step was read."""


@dataclass
class LoaderState:
    """What is known of a DataLoader's batches, and whether they feed training steps."""

    batch: Any = None
    """The last one."""
    at_step: int = 0
    """Steps that had been taken when it came."""
    trains: bool = False
    """Whether it gave batches to two consecutive steps, as a loader for evaluation does not."""

    @staticmethod
    def of(loader: DataLoader[Any]) -> LoaderState:
        """The state of a loader, which the loader keeps."""
        state: LoaderState = vars(loader).setdefault("state_for_dpbench", LoaderState())
        return state


class ScriptWatcher:
    """Counts the script's batches and forward passes, keeps what else is seen, and replaces what
    the trial sets. From `watch` on, torch's functions are changed for the rest of the process."""

    def __init__(self, configuration: Configuration) -> None:
        self._replaced = replaced_arguments(configuration)
        self._replaces_wrapper = configuration.implementation == "ddp"
        self._has_peers = configuration.traits.communicates and configuration.group_size > 1
        self._called: set[str] = set()
        """The replaced calls that the script has made."""
        self.mode: Mode = "timed"
        """How the next steps are taken."""
        self.steps = 0
        """Steps that have ended."""
        self.counts = StepCounts()
        """Counts of the step that is under way."""
        self.feeding: DataLoader[Any] | None = None
        """The loader that fed the steps last, which may be gone from the script."""
        self.wrapper: DistributedDataParallel | None = None
        """The wrapper that computed last."""

    def watch(self) -> None:
        """Change torch's functions."""
        for module in (dist, dist.distributed_c10d):
            self._replace(module, "init_process_group", "init_process_group")
        for wrapper in (DistributedDataParallel, parallel.DistributedDataParallel):
            self._replace(wrapper, "__init__", "DistributedDataParallel")
            self._watch_forward(wrapper)
        self._replace(DataLoader, "__init__", "DataLoader")
        self._watch_batches()
        if self._replaces_wrapper:
            for module in (torch.nn.parallel, torch.nn.parallel.distributed):
                vars(module)["DistributedDataParallel"] = parallel.DistributedDataParallel
        for name in ("spawn", "start_processes"):
            vars(torch.multiprocessing)[name] = _refuse_to_spawn

    def end_step(self) -> StepCounts:
        """End the step that is under way; returns its counts."""
        counts, self.counts = self.counts, StepCounts()
        self.steps += 1
        return counts

    def _replace(self, owner: Any, name: str, call: str) -> None:
        """Let the calls of a function have the arguments that the trial has for them."""
        values = self._replaced.get(call)
        if not values:
            return
        function = getattr(owner, name)
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*given: Any, **named: Any) -> Any:
            self._called.add(call)
            bound = signature.bind(*given, **named)
            bound.arguments.update(values)
            return function(*bound.args, **bound.kwargs)

        setattr(owner, name, called)

    def _watch_forward(self, wrapper: type[DistributedDataParallel]) -> None:
        """Count the forward passes that prepare a reduction, and let none do so without
        averaging."""
        forward: Any = wrapper.forward
        watcher = self

        @functools.wraps(forward)
        def watched_forward(self: Any, *inputs: Any, **options: Any) -> Any:
            watcher.wrapper = self
            wanted = self.require_backward_grad_sync
            reduces = wanted and torch.is_grad_enabled()
            watcher.counts.forwards += torch.is_grad_enabled()
            watcher.counts.reducing_forwards += reduces
            if not (reduces and watcher.mode == "unsynced"):
                return forward(self, *inputs, **options)
            self.require_backward_grad_sync = False  # exactly what its no_sync() does
            try:
                return forward(self, *inputs, **options)
            finally:
                self.require_backward_grad_sync = wanted

        wrapper.forward = watched_forward  # type: ignore[method-assign]

    def _watch_batches(self) -> None:
        iterate: Any = DataLoader.__iter__
        watcher = self

        @functools.wraps(iterate)
        def watched_iter(self: Any) -> Iterator[Any]:
            if watcher.mode == "cached" and LoaderState.of(self).trains:
                return WatchedIterator(self, iter(()), watcher)
            batches = iterate(self)
            if self.num_workers:
                queued = self.num_workers * (self.prefetch_factor or 2)
                watcher.counts.queued_batches = max(watcher.counts.queued_batches, queued)
            return WatchedIterator(self, batches, watcher)

        DataLoader.__iter__ = watched_iter  # type: ignore[method-assign,assignment]

    def missing_call(self) -> str | None:
        """A call that should have been replaced, and that a group of several ranks has not made.

        For one rank many scripts make neither a group nor a wrapper.
        """
        if not self._has_peers:
            return None
        missing = [call for call in self._replaced if call not in self._called]
        if self._replaces_wrapper and not isinstance(
            self.wrapper, parallel.DistributedDataParallel
        ):
            missing.append("DistributedDataParallel")
        return next(iter(missing), None)

    def digests(self, optimizer: torch.optim.Optimizer | None) -> dict[str, int]:
        """A number for each whole parameter that the script trains, equal where all its bits are.
        Shards of parameters, which differ between ranks, are left out."""
        named = self._wrapped_parameters()
        if self.wrapper is None and optimizer is not None:
            parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
            named = {f"parameter {k}": parameter for k, parameter in enumerate(parameters)}
        numbers = {name: digest(parameter) for name, parameter in named.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    def has_unused_parameters(self) -> bool:
        """Whether some parameter in the wrapper has no gradient now."""
        return any(parameter.grad is None for parameter in self._wrapped_parameters().values())

    def _wrapped_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that the wrapper trains; empty without a wrapper."""
        named = [] if self.wrapper is None else self.wrapper.module.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    def batch_digest(self) -> list[int | None] | None:
        """A number for each tensor of the last batch that fed a step, equal where all its bits are.

        None with a DistributedSampler, which gives each rank samples of its own: if their tensors
        are equal, the script makes them up from one seed.
        """
        if self.feeding is None or isinstance(self.feeding.sampler, DistributedSampler):
            return None
        last = LoaderState.of(self.feeding).batch
        return [digest(tensor) for tensor in tensors_of(last)] or None


class WatchedIterator:
    """An iterator of a DataLoader that counts its batches. It keeps the loader, which many scripts
    make in the line of their loop."""

    def __init__(
        self, loader: DataLoader[Any], batches: Iterator[Any], watcher: ScriptWatcher
    ) -> None:
        self._loader, self._batches = loader, batches
        self._watcher, self._state = watcher, LoaderState.of(loader)

    def __iter__(self) -> WatchedIterator:
        return self

    def __next__(self) -> Any:
        state, watcher = self._state, self._watcher
        if watcher.mode == "cached" and state.trains:
            watcher.counts.repeated_batches += 1
            return refreshed(state.batch)
        try:
            batch = next(self._batches)
        except StopIteration:
            watcher.counts.interrupted = True
            raise
        if state.batch is not None and watcher.steps == state.at_step + 1:
            state.trains = True
            watcher.feeding = self._loader
        if state.trains:
            first = next(tensors_of(batch), None)
            watcher.counts.samples += len(first) if first is not None and first.ndim else 1
        else:
            watcher.counts.interrupted = True
        state.batch, state.at_step = batch, watcher.steps
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


def digest(values: torch.Tensor) -> int | None:
    """A number that is equal where all bits of the values are; None if it cannot be had."""
    kind = BITS.get(values.element_size())
    if type(values) not in (torch.Tensor, torch.nn.Parameter) or not kind or not values.ndim:
        return None
    return int(values.detach().contiguous().view(kind).sum(dtype=torch.int64))


def _refuse_to_spawn(*_: Any, **__: Any) -> NoReturn:
    raise ScriptFault(
        "the script starts its own ranks (torch.multiprocessing); dpbench starts them, as torchrun "
        "does: take RANK, LOCAL_RANK and WORLD_SIZE from the environment"
    )
