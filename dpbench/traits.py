"""The backends and implementations that there are, and what must be known of each to plan with it.

None is imported for that.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendTraits:
    """How gradients travel; `process_group` is False where there is no process group."""

    name: str
    description: str
    process_group: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ImplementationTraits:
    """What the planner must know of an implementation without importing it."""

    name: str
    description: str
    communicates: bool = True
    """False where replicas never exchange gradients."""
    can_leave_out_sync: bool = False
    """True where a step can also be timed without gradient synchronization."""
    one_process: bool = False
    """True where one process drives all replicas."""
    backend: str | None = None
    """The only backend it has; None where it takes any process-group backend."""
    largest_group: int | None = None
    averages_parameters: bool = False
    """True where ranks train alone and average parameters every `sync_every` steps."""
    has_buckets: bool = False
    """True where gradients travel in buckets of at most `bucket_cap_mb`."""
    has_comm_hook: bool = False
    """True where a communication hook of torch's can be given each bucket."""
    shards_parameters: bool = False
    """True where each rank holds a part of every parameter, and whole ones must be gathered."""
    reduces_double: bool = True
    """False where gradients of float64 are refused, so that its proof is one in float32."""
    requires: str | None = None
    """The package it needs beside torch, as its import is spelled; None where torch is enough."""

    def has_setting(self, name: str) -> bool:
        """Whether its rows differ by this field of a Variant; most settings are of all."""
        of_some = {
            "sync_every": self.averages_parameters,
            "bucket_cap_mb": self.has_buckets,
            "comm_hook": self.has_comm_hook,
        }
        return of_some.get(name, True)


BACKENDS = {
    traits.name: traits
    for traits in (
        BackendTraits(name="gloo", description="torch's CPU collectives over TCP"),
        BackendTraits(name="nccl", description="NVIDIA's GPU collectives, one GPU a rank"),
        BackendTraits(
            name="shm", description="dpbench's collectives through the shared memory of one host"
        ),
        BackendTraits(
            name="threads", description="threads of one process (dp)", process_group=False
        ),
        BackendTraits(
            name="none", description="no communication (single, independent)", process_group=False
        ),
    )
}
PROCESS_GROUP_BACKENDS = tuple(t.name for t in BACKENDS.values() if t.process_group)

IMPLEMENTATIONS = {
    traits.name: traits
    for traits in (
        ImplementationTraits(
            name="dp",
            description="dpbench.DataParallel: one process, a thread a replica",
            can_leave_out_sync=True,
            one_process=True,
            backend="threads",
        ),
        ImplementationTraits(
            name="ddp",
            description="dpbench.DistributedDataParallel: flat buckets, overlapped all-reduce",
            can_leave_out_sync=True,
            has_buckets=True,
            has_comm_hook=True,
        ),
        ImplementationTraits(
            name="torch-dp",
            description="torch.nn.DataParallel (CUDA only)",
            one_process=True,
            backend="threads",
        ),
        ImplementationTraits(
            name="torch-ddp",
            description="torch.nn.parallel.DistributedDataParallel",
            can_leave_out_sync=True,
            has_buckets=True,
            has_comm_hook=True,
        ),
        ImplementationTraits(
            name="torch-ddp-static",
            description="torch-ddp with gradient_as_bucket_view and static_graph, its best",
            can_leave_out_sync=True,
            has_buckets=True,
            has_comm_hook=True,
        ),
        ImplementationTraits(
            name="torch-replicate",
            description="torch's composable DDP: hooks on the module itself, no wrapper",
            can_leave_out_sync=True,
            has_buckets=True,
            has_comm_hook=True,
        ),
        ImplementationTraits(
            name="fsdp2",
            description="torch's fully_shard: parameters, gradients, optimizer state in shards",
            shards_parameters=True,
        ),
        ImplementationTraits(
            name="accelerate",
            description="Hugging Face Accelerate, which wraps a module in torch-ddp",
            can_leave_out_sync=True,
            requires="accelerate",
        ),
        ImplementationTraits(
            name="fabric",
            description="Lightning Fabric's DDP strategy, which wraps a module in torch-ddp",
            can_leave_out_sync=True,
            requires="lightning_fabric",
        ),
        ImplementationTraits(
            name="deepspeed-0",
            description="DeepSpeed's engine at ZeRO stage 0: one all-reduce after backward",
            can_leave_out_sync=True,
            requires="deepspeed",
            reduces_double=False,
        ),
        ImplementationTraits(
            name="local-sgd",
            description="dpbench's LocalSGD: parameters averaged every --sync-every steps",
            can_leave_out_sync=True,
            averages_parameters=True,
        ),
        ImplementationTraits(
            name="single",
            description="the plain module on one device",
            communicates=False,
            backend="none",
            largest_group=1,
        ),
        ImplementationTraits(
            name="independent",
            description="n plain copies started together, without communication",
            communicates=False,
            backend="none",
        ),
    )
}

BUCKETED = tuple(name for name, traits in IMPLEMENTATIONS.items() if traits.has_buckets)
"""Implementations that reduce gradients in buckets while the backward pass goes on."""
