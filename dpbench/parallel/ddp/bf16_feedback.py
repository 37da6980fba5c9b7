"""A communication hook for slow networks: bfloat16 travels, float32 is added, no rounding is lost.

state = Bf16Feedback(model.process_group)
model.register_comm_hook(state, bf16_feedback)     torch's DistributedDataParallel takes it too

The ranks of a host add their gradients in float32, as the backend shm+gloo does without a hook. Its
leader sends the sum rounded to bfloat16, one share to each other leader. Each leader adds in
float32 what comes for its share and sends the result, rounded to bfloat16, to all. So half the
bytes of float32 travel, and all ranks get the same bits. On gloo every rank is a leader.

What rounding takes from a value that a leader sends stays with the leader, who adds it to the value
of the next step (error feedback). So errors do not add up: the sum of the averages of T steps is
off by what rounding took in the last of them, and their mean by a T-th of that.

A value is rounded at most twice, by a factor of at most 1 ± 2⁻⁸ each time. With n ranks and their
gradients g, an average of the first step is therefore off by at most

    2.01 · 2⁻⁸ Σ |g| / n

and one of a later step, which also makes up for the step before, by as much again of that step's.
Torch's `bf16_compress_hook` adds in bfloat16 as well, so that its error grows with the number of
ranks, and forgets it.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore

from dpbench.parallel.ddp.comm_hooks import Future, GradientBucket
from dpbench.parallel.groups import gather_values, member_group
from dpbench.parallel.hosts import HostsProcessGroup, each_alone

BACKENDS = ("gloo", "shm", "shm+gloo")
"""Backends whose gradients the hook averages."""


@dataclass(frozen=True, slots=True)
class _Feedback:
    """The rounding errors of one bucket's sums, in units of the sum over the ranks."""

    parameters: tuple[Tensor, ...]
    lost: Tensor


class Bf16Feedback:
    """The state of the hook `bf16_feedback`: the ranks, and what rounding took in the last step.

    Where all ranks share the memory of one host nothing is rounded: gradients are averaged as
    without a hook. The same holds for a group of one rank.

    The feedback is a float32 tensor per bucket in the memory of the leaders. It is dropped when a
    bucket gets other parameters, as when buckets are rebuilt after the first step; several models
    can share a state. It never holds NaN or infinity: a value that is not finite travels as it is,
    and leaves no feedback. Nor is there any for a gradient that no rank has in a step: what was
    kept for it is lost then, at most one rounding. With a loss scale, the feedback is in the units
    of the step before.

    No checkpoint has the feedback in it, and neither has a copy or a pickle of the state: a
    training that is resumed starts without, so it differs from one that never stopped, by at most
    one rounding of each gradient.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Communicates nothing yet.

        Args:
            group: the ranks, those of the model; None means the default group.

        Raises:
            RuntimeError: there is no such group, or the system is not Linux.
            ValueError: the group has another backend than gloo, shm and shm+gloo on all devices.
        """
        self._group = member_group(group, "Bf16Feedback")
        if sys.platform != "linux":
            raise RuntimeError(f"Bf16Feedback needs Linux, this is {sys.platform}")
        self._backends = _backends(self._group)
        if not set(BACKENDS).intersection(self._backends.values()):
            raise _unusable(", ".join(sorted(set(self._backends.values()))))
        self._across = self._group if isinstance(self._group, HostsProcessGroup) else None
        # By the identity of the first parameter, as several models may share the state.
        self._feedback: dict[int, _Feedback] = {}

    def __reduce__(self) -> tuple[type[Bf16Feedback], tuple[()]]:
        if self._group is not dist.group.WORLD:
            raise RuntimeError(
                "Bf16Feedback can only be copied or pickled with the default process group; make "
                "one for the new model"
            )
        return Bf16Feedback, ()

    def average(self, bucket: GradientBucket) -> Future[Any]:
        """Begin to average the gradients of a bucket in place.

        Returns:
            A future of the bucket's buffer.

        Raises:
            TypeError: the gradients are not dense float32.
            ValueError: they are on a device whose backend is none of BACKENDS.
        """
        buffer = bucket.buffer()
        if buffer.dtype != torch.float32 or buffer.layout != torch.strided:
            what = "dense" if buffer.layout == torch.strided else "sparse"
            raise TypeError(
                f"bf16_feedback: got {what} gradients of {buffer.dtype}, expected dense ones of "
                "torch.float32; train such parameters without this hook"
            )
        backend = self._backends.get(buffer.device.type, "none")
        if backend not in BACKENDS:
            raise _unusable(f"{backend} for {buffer.device.type} tensors")
        if dist.get_world_size(self._group) == 1 or not buffer.numel():
            done: Future[Any] = torch.futures.Future()
            done.set_result(buffer)
            return done
        if backend == "gloo" and self._across is None:
            self._across = self._connected()
        if backend == "shm" or self._across is None:
            work: Any = dist.all_reduce(buffer, dist.ReduceOp.AVG, self._group, async_op=True)
        else:
            work = self._across.average_rounded(buffer, self._kept(bucket))
        return work.get_future().then(_first)  # type: ignore[no-any-return]

    def _kept(self, bucket: GradientBucket) -> Tensor | None:
        """The feedback of a bucket, all zeros if its parameters are new; None on a rank that sends
        nothing."""
        assert self._across is not None
        if not self._across.is_leader:
            return None
        parameters = tuple(bucket.parameters())
        first, everyone = id(parameters[0]), set(map(id, parameters))
        kept = self._feedback.get(first)
        if kept is None or not _are_same(kept.parameters, parameters):
            # Buckets from before they were rebuilt end, and those of other models stay.
            self._feedback = {
                other: feedback
                for other, feedback in self._feedback.items()
                if everyone.isdisjoint(map(id, feedback.parameters))
            }
            lost = torch.zeros(bucket.buffer().numel(), dtype=torch.float32, device="cpu")
            kept = self._feedback[first] = _Feedback(parameters, lost)
        return kept.lost

    def _connected(self) -> HostsProcessGroup:
        """Connections of their own: tensors of this hook are sent from other threads than the rest,
        so among the group's they could be taken for others. A collective."""
        device = next(device for device, name in self._backends.items() if name == "gloo")
        options: Any = self._group._get_backend(torch.device(device)).options
        rank, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        key = gather_values(secrets.token_hex(8), self._group)[0]
        store = distributed_c10d._world.pg_map[self._group][1]
        return each_alone(PrefixStore(f"bf16_feedback {key}", store), rank, size, options._timeout)


def bf16_feedback(state, bucket):  # type: ignore[no-untyped-def] # torch reads annotations as types
    """Average the gradients of a bucket, with bfloat16 on the network and error feedback.

    Args:
        state: a Bf16Feedback of the model's ranks.
        bucket: dense float32 gradients; others are a TypeError.

    Returns:
        A future of the averages, in the bucket's buffer.
    """
    return state.average(bucket)


def _first(future: Future[Any]) -> Tensor:
    value = future.value()
    tensor: Tensor = value[0] if isinstance(value, (list, tuple)) else value
    return tensor


def _backends(group: dist.ProcessGroup) -> dict[str, str]:
    """The backends of a group by device type."""
    pairs = (pair.partition(":") for pair in dist.get_backend_config(group).split(","))
    return {device: name for device, _, name in pairs}


def _unusable(backend: str) -> ValueError:
    return ValueError(
        f"Bf16Feedback: got the backend {backend}, expected {', '.join(BACKENDS)}; elsewhere, "
        "torch's bf16_compress_hook sends bfloat16"
    )


def _are_same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))
