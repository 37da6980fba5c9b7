"""The interface of all implementations: a module that is called, and then has its gradients.

An implementation subclasses `ParallelModel` and overrides what it does differently from the plain
module: usually `accumulate_only`, and `reduced_bytes` where it counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from dpbench.data.batch import Samples, call
from dpbench.parallel.phase_clock import PhaseClock
from dpbench.specs import ParallelSpec


@dataclass(slots=True)
class ParallelModel:
    """A module that some implementation spreads over replicas; without overrides, the module
    itself.

    `forward` takes this process's samples and returns the outputs for the mean loss. A micro-step
    inside `accumulate_only` only adds to the gradients that a later one reduces.
    """

    wrapped: torch.nn.Module
    """The module in the implementation's wrapper, if it has one."""
    clock: PhaseClock = field(default_factory=PhaseClock)
    """Notes the phases within a pass, where this process drives several replicas."""

    def optimizer(self, plain: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer to step with, instead of one over all parameters; called once."""
        return plain

    def forward(self, inputs: Samples) -> Any:
        return call(self.wrapped, inputs)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, this process's mean loss times its weight; reduced ones when
        this returns outside of `accumulate_only`."""
        loss.backward()  # type: ignore[no-untyped-call]

    def accumulate_only(self) -> AbstractContextManager[None]:
        """A context for all micro-steps of a step but the last, which reduces their gradients with
        its own: `no_sync` of the wrapper, if it has that."""
        unreduced: AbstractContextManager[None] = getattr(self.wrapped, "no_sync", nullcontext)()
        return unreduced

    def unsynced(self) -> AbstractContextManager[None]:
        """A context for whole steps that exchange nothing: their gradients are wrong, and only
        their time counts."""
        return self.accumulate_only()

    def clip_gradients(self, max_norm: float) -> torch.Tensor:
        """Scale the reduced gradients down to this norm; returns the norm before."""
        return torch.nn.utils.clip_grad_norm_(self.wrapped.parameters(), max_norm)

    def full_gradients(self) -> list[torch.Tensor | None]:
        """The reduced gradient of each parameter; a collective if ranks hold shards of them."""
        gradients = (parameter.grad for parameter in self.wrapped.parameters())
        return [None if gradient is None else full_tensor(gradient) for gradient in gradients]

    def after_step(self, steps: int) -> None:
        """Do what follows the optimizer's step number `steps`, counted from 1."""

    def sync_parameters(self) -> None:
        """Make the parameters equal on all ranks, after the last step."""

    def reduced_bytes(self) -> int | None:
        """Bytes that this rank has given to reductions; None if they are not counted."""
        return None


@dataclass(slots=True, kw_only=True)
class LibraryModel(ParallelModel):
    """A module that a library has wrapped, which has its own ways to compute gradients without
    reducing them, and to run the backward pass."""

    no_sync: Callable[[Any], AbstractContextManager[None]]
    run_backward: Callable[[torch.Tensor], None]

    def accumulate_only(self) -> AbstractContextManager[None]:
        return self.no_sync(self.wrapped)

    def backward(self, loss: torch.Tensor) -> None:
        self.run_backward(loss)


class Plain(ParallelModel):
    """The module itself, which communicates nothing: `single`, and every copy of `independent`."""

    def reduced_bytes(self) -> int:
        return 0


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself; if ranks hold shards of it (a DTensor), the whole tensor.

    That is a collective: every rank asks for the same tensors in the same order.
    """
    gather = getattr(tensor, "full_tensor", None)  # the class takes a second to import
    return tensor if gather is None else gather()


@contextmanager
def threads_kept() -> Iterator[None]:
    """A context that restores the trial's number of threads per replica, which libraries set."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def device_ids(spec: ParallelSpec, rank: int) -> list[torch.device] | None:
    """The `device_ids` of a DistributedDataParallel: this rank's device, None for the CPU."""
    device = torch.device(spec.devices[rank])
    return None if device.type == "cpu" else [device]
