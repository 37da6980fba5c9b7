"""How a group of ranks trains a workload, in a trial as in a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from dpbench.specs.nodes import ReplicaCount
from dpbench.specs.traits import IMPLEMENTATIONS, ImplementationTraits
from dpbench.specs.workload import GRAPHED_MODES, ON_GPUS_ONLY, WorkloadSpec, scale_lr

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
    devices: tuple[str, ...]
    """The device of each replica on its own node: ("cpu", "cpu") or ("cuda:0", "cuda:1")."""
    threads_per_replica: int
    accumulation_steps: int = 1
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
        if mode in GRAPHED_MODES and self.accumulation_steps > 1:  # pytorch issue 169545
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
        return tuple((0, device) for device in self.devices)

    @property
    def process_count(self) -> int:
        return 1 if self.traits.one_process else self.group_size

    @property
    def replica_batch_sizes(self) -> tuple[int, ...]:
        """Samples of each replica in a full micro-step; 0 where a script chooses."""
        return (self.batch_size or 0,) * self.group_size

    @property
    def global_batch_size(self) -> int:
        """Samples of all replicas per micro-step."""
        return sum(self.replica_batch_sizes)

    @property
    def effective_batch_size(self) -> int:
        """Samples behind one optimizer step: all replicas, all accumulated micro-steps."""
        return self.global_batch_size * self.accumulation_steps

    def averaging_weight(self, rank: int) -> float:
        """The factor of a rank's mean loss in the backward pass, with which the plain mean over R
        ranks is the mean over all N samples: n·R/N for n samples; 1 for a rank that takes no
        average."""
        if self.process_count == 1 or not self.traits.communicates:
            return 1.0
        sizes = self.replica_batch_sizes
        return sizes[rank] * len(sizes) / sum(sizes)

    @property
    def scaled_learning_rate(self) -> float:
        """The optimizer's learning rate: the workload's, scaled by its rule with the samples per
        step.

        The workload's rate belongs to `batch_size` samples. A replica that does not communicate
        steps on its own samples only. Raises ValueError if the rule cannot be applied.
        """
        base, rule = self.workload.learning_rate, self.workload.learning_rate_rule
        if rule == "none" or self.batch_size is None:
            return base
        communicates = self.traits.communicates
        samples = self.global_batch_size if communicates else max(self.replica_batch_sizes)
        return scale_lr(base, samples * self.accumulation_steps / self.batch_size, rule)
