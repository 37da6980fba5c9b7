"""Ranks that have run out of data take part in the collectives of the others.

The protocol is torch.distributed.algorithms.join's, so that a wrapped module and torch's own
joinable optimizers can share one context. In each step of theirs, the ranks with data send

    notice          how many they are (torch's context)
    will it sync?   whether the backward of this step reduces
    build           the buckets, and once their order
    buffers         from the last rank that has data
    buckets         in their order
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook, _JoinConfig

from dpbench.parallel.ddp.reducer import Reducer
from dpbench.parallel.groups import largest


class UnevenInputs(Joinable):
    """The part of DistributedDataParallel that lets ranks have different numbers of batches."""

    module: nn.Module
    training: bool
    require_forward_param_sync: bool
    process_group: dist.ProcessGroup
    _reducer: Reducer
    _divide_by_initial_world_size = True
    _without_gradient: Sequence[nn.Parameter] | None = None

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """A context in which ranks may have different numbers of batches.

        A rank that is done takes part in the collectives of the others until all are done; then all
        get the model of a rank that was last. A forward with gradients enabled is a step that the
        others take part in, in eval mode too.

        Args:
            divide_by_initial_world_size: whether gradients are divided by the number of ranks, or
                by the number of those that still have data.
            enable: False makes the context do nothing.
            throw_on_early_termination: whether all ranks raise as soon as one is done.

        Raises:
            RuntimeError: the model has a ShardedOptimizer, whose steps every rank must make.
        """
        return Join(
            [self],
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """See torch.distributed.algorithms.Join, which calls it; raises as `join` does."""
        self._require_unsharded("join()")
        self._divide_by_initial_world_size = kwargs.get("divide_by_initial_world_size", True)
        return _Shadow(self)

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """See torch.distributed.algorithms.Join."""
        return self.process_group

    @abstractmethod
    def _require_unsharded(self, newcomer: str) -> None:
        """Raise RuntimeError if the model has a ShardedOptimizer, beside which `newcomer` fails."""

    @abstractmethod
    def _send_buffers(self, *, has_data: bool = True) -> None:
        """Send the buffers of the last rank that has data to all; a collective."""

    @abstractmethod
    def _take_model(self, source: int) -> None:
        """Copy the parameters and buffers of one rank to all; a collective."""

    def _announce(self, syncs: bool) -> None:
        """Tell the ranks without data that this one continues, and what it needs from them."""
        notice = Join.notify_join_context(self)
        if notice is not None and not self._divide_by_initial_world_size:
            (going_on,) = notice.get_future().wait()
            self._reducer.divisor = int(going_on.item())
        else:
            # Not None: ranks without data could not take part in an average by the collective.
            self._reducer.divisor = dist.get_world_size(self.process_group)
        self._largest(int(syncs))

    def _shadow_step(self) -> None:
        """Take part in a step of another rank, as this one is out of data.

        This rank gets the average gradients too, for an optimizer that repeats the others' steps.
        """
        if self._without_gradient is None:
            self._without_gradient = [p for p in self.module.parameters() if p.grad is None]
        syncs = self._largest(0) == 1
        if syncs:
            self._reducer.build(rebuild=self.training)
        if self.training:
            if self.require_forward_param_sync:
                self._send_buffers(has_data=False)
            self.require_forward_param_sync = syncs
        if syncs:
            self._reducer.shadow()

    def _end(self, was_last: bool) -> None:
        """Give all ranks the model of one that was last, when all are done."""
        self._authoritative_rank = self._last_rank(was_last)
        self._take_model(self._authoritative_rank)
        for parameter in self._without_gradient or ():
            parameter.grad = None
        self._without_gradient = None
        # Join leaves the context on, which would cost every later step two collectives.
        self._join_config = _JoinConfig.construct_disabled_join_config()  # type: ignore[no-untyped-call]
        self._reducer.divisor = None

    def _last_rank(self, candidate: bool) -> int:
        """The last rank of the group among the candidates; a collective."""
        return self._largest(dist.get_rank(self.process_group) if candidate else -1)

    def _largest(self, value: int) -> int:
        return largest(value, self.process_group, device=self.join_device)


class _Shadow(JoinHook):
    """The callbacks that torch's Join context makes on a rank without data."""

    def __init__(self, wrapper: UnevenInputs) -> None:
        self._wrapper = wrapper

    def main_hook(self) -> None:
        self._wrapper._shadow_step()

    def post_hook(self, is_last_joiner: bool) -> None:
        self._wrapper._end(is_last_joiner)
