"""How a group of ranks trains a workload, in a trial as in a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dpbench.specs.nodes import ReplicaCount
from dpbench.specs.traits import IMPLEMENTATIONS, ImplementationTraits
from dpbench.specs.workload import GRAPHED_MODES, ON_GPUS_ONLY, WorkloadSpec, scale_lr

Scaling = Literal["weak", "strong"]
CommHook = Literal["none", "bf16", "powersgd"]
COMM_HOOKS: tuple[CommHook, ...] = get_args(CommHook)
Switch = Literal["on", "off"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelSpec:
    """How a group of ranks trains a workload: what a trial and a training have in common."""

    workload: WorkloadSpec
    implementation: str
    backend: str
    group_size: ReplicaCount
    """Number of replicas, on all nodes."""
    batch_size: int | None
    """Samples per replica and micro-step (weak scaling) or per group and micro-step (strong); None
    where a script chooses."""
    scaling: Scaling = "weak"
    devices: tuple[str, ...]
    """The device of each replica on its own node: ("cpu", "cpu") or ("cuda:0", "cuda:1")."""
    replicas_by_node: tuple[ReplicaCount, ...] = ()
    """Number of replicas on each node, in the order of ranks; () when all are on one."""
    threads: int
    accumulate: int = 1
    sync_every: int = 1
    """Optimizer steps between two averages of parameters, where the implementation has them."""
    bucket_cap_mb: float | None = None
    """MiB of gradients in one collective, where the implementation has buckets; None leaves it to
    the implementation."""
    find_unused: Switch | None = None
    """Whether the wrapper looks for unused parameters; None leaves it to the script, or is off."""
    comm_hook: CommHook = "none"
    """Communication hook on the implementation's buckets, if it supports hooks."""
    batched_copy: Switch | None = None
    """Whether the gradients of a bucket are copied into it at once; None leaves it to the
    implementation."""
    overlap: Switch = "on"
    """Whether gradients are averaged while the backward pass goes on, where the implementation
    leaves that open."""

    @property
    def traits(self) -> ImplementationTraits:
        """Traits of its implementation."""
        return IMPLEMENTATIONS[self.implementation]

    @property
    def unusable_reason(self) -> str | None:
        """Why no machine can run it on these devices; None if one could."""
        dtype, mode = self.workload.dtype, self.workload.compile
        if dtype in ON_GPUS_ONLY and "cpu" in self.devices:
            return f"got dtype {dtype}, in which no CPU computes fast; expected f32 or bf16"
        if mode in GRAPHED_MODES and self.accumulate > 1:  # pytorch issue 169545
            return (
                f"got compile {mode}, whose CUDA graphs overwrite the gradients of earlier "
                "micro-batches; expected default or none, or no accumulation"
            )
        if self.traits.shards == "optimizer" and dtype == "f16":
            return (
                "got dtype f16, whose loss scaling looks at whole gradients, and ranks have shares "
                "of them; expected bf16, or ddp"
            )
        return None

    @property
    def node_devices(self) -> tuple[tuple[int, str], ...]:
        """Node and device of each replica; those with the same pair share a device."""
        counts = self.replicas_by_node or (self.group_size,)
        nodes = (node for node, count in enumerate(counts) for _ in range(count))
        return tuple(zip(nodes, self.devices, strict=True))

    @property
    def process_count(self) -> int:
        return 1 if self.traits.one_process else self.group_size

    @property
    def global_batch_size(self) -> int:
        """Samples of all replicas in a full micro-step; 0 where a script chooses."""
        return (self.batch_size or 0) * (self.group_size if self.scaling == "weak" else 1)

    @property
    def replica_batch_sizes(self) -> tuple[int, ...]:
        """Samples of each replica in a full micro-step; in strong scaling they differ by at most
        one, and the first ones are larger."""
        return split_by_shares(self.global_batch_size, (1.0,) * self.group_size)

    def sample_range(self, rank: int) -> range:
        """The samples of every global batch that the process of `rank` takes."""
        return rank_range(range(self.global_batch_size), (1.0,) * self.process_count, rank)

    @property
    def effective_batch_size(self) -> int:
        """Samples behind one optimizer step: all replicas, all accumulated micro-steps."""
        return self.global_batch_size * self.accumulate

    def averaging_weight(self, rank: int) -> float:
        """The rank's `averaging_weight` in a full micro-step; 1 if it takes no average."""
        if not self.traits.communicates:
            return 1.0
        samples = len(self.sample_range(rank))
        return averaging_weight(samples, self.process_count, self.global_batch_size)

    @property
    def scaled_lr(self) -> float:
        """The optimizer's learning rate: the workload's, scaled by its rule with the samples per
        step.

        The workload's rate belongs to `batch_size` samples. A replica that does not communicate
        steps on its own samples only. Raises ValueError if the rule cannot be applied.
        """
        base, rule = self.workload.lr, self.workload.lr_scaling
        if rule == "none" or self.batch_size is None:
            return base
        communicates = self.traits.communicates
        samples = self.global_batch_size if communicates else max(self.replica_batch_sizes)
        return scale_lr(base, samples * self.accumulate / self.batch_size, rule)


def split_by_shares(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Numbers of samples in proportion to `shares`, together exactly `total`; each at least one, if
    there are as many samples as shares.

    By the largest remainder: everybody gets the whole part of its due, and what is left goes to
    those who miss most, the earlier ones first. With equal shares the sizes differ by one at most.
    """
    whole, least = sum(shares), int(total >= len(shares))
    due = [total * share / whole for share in shares]
    sizes = [max(least, math.floor(part)) for part in due]
    missing = sorted(range(len(due)), key=lambda i: sizes[i] - due[i])
    for chosen in missing[: max(0, total - sum(sizes))]:
        sizes[chosen] += 1
    while sum(sizes) > total:  # some got one that is more than their due
        above = (i for i, size in enumerate(sizes) if size > 1)
        sizes[max(above, key=lambda i: sizes[i] - due[i])] -= 1
    return tuple(sizes)


def rank_range(positions: range, shares: Sequence[float], rank: int) -> range:
    """The positions of one rank, of those that all divide: contiguous, and in the order of the
    ranks."""
    sizes = split_by_shares(len(positions), shares)
    first = sum(sizes[:rank])
    return positions[first : first + sizes[rank]]


def averaging_weight(samples: int, ranks: int, total: int) -> float:
    """The factor of a rank's mean loss over its samples in the backward pass, with which the plain
    mean over all ranks is the mean over the total of their samples: n·R/N."""
    return samples * ranks / total
