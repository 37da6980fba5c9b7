"""The specification of one trial.

All specifications are frozen values. A trial is identified by the hash of its canonical JSON
without the fields that are at their default, so a new option orphans no old result.
"""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from dpbench.codec import content_hash
from dpbench.specs.axes import PLACEHOLDERS, Scaling
from dpbench.specs.shares import Replicas, split_evenly
from dpbench.specs.traits import IMPLEMENTATIONS, OPTIONAL_SETTINGS, SINGLE
from dpbench.specs.workload import WORKLOAD_SETTINGS, WorkloadSpec, scale_lr

PLACEHOLDER = re.compile(f"{{({'|'.join(PLACEHOLDERS)})}}")
"""A placeholder in the arguments of a script."""
MOST_REPETITIONS = 10_000
"""A plan of more would fill the memory."""
MOST_FILLING_STEPS = 1000
"""Most steps of a window that fills a time: more would only make records larger."""
SHORTEST_SEGMENT = 5
"""Least steps of a segment of a window, as its first step finds an idle device and cold caches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """The work of a group of ranks: a trial or a training."""

    workload: WorkloadSpec
    implementation: str
    backend: str
    group_size: Replicas
    """Number of replicas, over all hosts."""
    batch_size: int
    """Samples per replica and micro-step (weak scaling) or per group and micro-step (strong);
    OWN_BATCH_SIZE where the script chooses."""
    devices: tuple[str, ...]
    """The device of each replica on its own host: ("cpu", "cpu") or ("cuda:0", "cuda:1")."""
    threads_per_replica: int
    accumulation_steps: int = 1
    sync_every: int = 1
    """Optimizer steps between two averages of parameters, where the implementation has them."""
    bucket_cap_mb: float | None = None
    """MiB of gradients in one collective, where the implementation has buckets; None leaves it to
    the implementation."""
    find_unused: str | None = None
    """Whether the wrapper looks for unused parameters, "on" or "off"; None leaves it to the script,
    or is off."""
    comm_hook: str = "none"
    """Communication hook on the implementation's buckets, if it supports hooks."""
    batched_copy: str | None = None
    """Whether the gradients of a bucket are copied into it at once, "on" or "off"; None leaves it
    to the implementation."""
    overlap: str = "on"
    """Whether gradients are averaged while the backward pass goes on, where the implementation
    leaves that open."""

    @property
    def process_count(self) -> int:
        return 1 if IMPLEMENTATIONS[self.implementation].one_process else self.group_size

    def process_devices(self, rank: int) -> tuple[str, ...]:
        """The devices of the replicas that the process of `rank` drives."""
        return self.devices if self.process_count == 1 else (self.devices[rank],)

    @property
    def replica_batch_sizes(self) -> tuple[int, ...]:
        """Samples of each replica in a full micro-step."""
        return (self.batch_size,) * self.group_size

    @property
    def global_batch_size(self) -> int:
        """Samples of all replicas per micro-step."""
        return sum(self.replica_batch_sizes)

    @property
    def effective_batch_size(self) -> int:
        """Samples behind one optimizer step: all replicas, all accumulated micro-steps."""
        return self.global_batch_size * self.accumulation_steps

    @property
    def learning_rate(self) -> float:
        """The optimizer's learning rate: the workload's, scaled by its rule with the samples per
        step.

        The workload's rate belongs to `batch_size` samples. A replica that does not communicate
        steps on its own samples only. Raises ValueError if the rule cannot be applied.
        """
        base, rule = self.workload.learning_rate, self.workload.learning_rate_rule
        if rule == "none":
            return base
        communicates = IMPLEMENTATIONS[self.implementation].communicates
        samples = self.global_batch_size if communicates else max(self.replica_batch_sizes)
        return scale_lr(base, samples * self.accumulation_steps / self.batch_size, rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSpec(RunSpec):
    """One run of one configuration in processes of its own."""

    warmup_steps: int
    timed_steps: int
    """Steps of the timed window; the fewest if it fills a time."""
    scaling: Scaling = "weak"
    phase_steps: int = 5
    """Steps after the timed windows whose phases are timed one by one; 0 for none."""
    gradient_steps: int = 10
    """Steps at group size 1, after the windows, in which it is noted when each gradient is ready;
    0 for none; see `traces_gradients`."""
    prefetch: int | None = None
    """Steps whose samples a thread loads ahead from host memory; 0: each step loads its own; None:
    all samples lie on the device."""
    data_workers: int | None = None
    """Processes of each rank that take the samples one by one, as torch's DataLoader has them; None
    leaves their number to the script, or is none."""
    window_seconds: float | None = None
    """Seconds that the timed window fills. It then has `timed_steps` or more, up to
    MOST_FILLING_STEPS, as the warm-up steps suggest; the record says how many."""
    repetition: int = 0
    nodes: tuple[Replicas, ...] = ()
    """Replicas on each host, in the order of ranks; () when all are on one."""

    def setting(self, name: str) -> Any:
        """The value of a setting, which the trial or its workload has."""
        return getattr(self.workload if name in WORKLOAD_SETTINGS else self, name)

    @property
    def trial_id(self) -> str:
        return content_hash(self)

    @property
    def configuration(self) -> TrialSpec:
        """The specification that repetitions share."""
        return replace(self, repetition=0)

    def filling_steps(self, step_seconds: float) -> int:
        """The steps of its timed window, if that fills a time and a step takes so long."""
        wanted = math.ceil((self.window_seconds or 0.0) / step_seconds)
        return max(self.timed_steps, min(wanted, MOST_FILLING_STEPS))

    @property
    def script_command(self) -> tuple[str, ...]:
        """The script and its arguments, with the values of this trial for PLACEHOLDERS; () without
        one."""

        def value(found: re.Match[str]) -> str:
            return str(self.setting(PLACEHOLDERS[found[1]])).removesuffix(".0")

        return tuple(PLACEHOLDER.sub(value, word) for word in self.workload.script)

    @property
    def times_without_sync(self) -> bool:
        """Whether steps are also timed without gradient synchronization: if the implementation can
        leave it out, and there is another replica."""
        return self.group_size > 1 and IMPLEMENTATIONS[self.implementation].can_leave_out_sync

    @property
    def of_one_replica(self) -> TrialSpec:
        """The trial at group size 1, on the first device."""
        return replace(self, group_size=1, devices=self.devices[:1], nodes=())

    @property
    def host_of_replica(self) -> tuple[int, ...]:
        """The number of the host that each replica is on."""
        counts = self.nodes or (self.group_size,)
        return tuple(host for host, count in enumerate(counts) for _ in range(count))

    @property
    def places(self) -> tuple[tuple[int, str], ...]:
        """Host and device of each replica; replicas of one place share a device."""
        return tuple(zip(self.host_of_replica, self.devices, strict=True))

    def place_of(self, rank: int) -> str:
        """The device of a replica: "cuda:1", and "cuda:1 on host 0" where there are several."""
        host, device = self.places[rank]
        return f"{device} on host {host}" if self.nodes else device

    @property
    def replica_batch_sizes(self) -> tuple[int, ...]:
        """Samples of each replica per micro-step; in strong scaling they differ by at most one."""
        if self.scaling == "weak":
            return (self.batch_size,) * self.group_size
        return split_evenly(self.batch_size, self.group_size)

    @property
    def traces_gradients(self) -> bool:
        """Whether it notes when gradients are ready: where those of one replica meet no others."""
        alone = self.group_size == 1 and not IMPLEMENTATIONS[self.implementation].one_process
        return alone and self.gradient_steps > 0

    def process_shard(self, rank: int) -> tuple[int, int]:
        """(first, count): the samples of every global batch that the process of `rank` takes."""
        sizes = self.replica_batch_sizes
        if self.process_count == 1:
            return 0, sum(sizes)
        return sum(sizes[:rank]), sizes[rank]

    @property
    def with_own_settings(self) -> TrialSpec:
        """The trial without settings that its implementation does not have."""
        traits = IMPLEMENTATIONS[self.implementation]
        foreign = (name for name in OPTIONAL_SETTINGS if not traits.has_setting(name))
        return replace(self, **{name: DEFAULTS[name] for name in foreign})

    @property
    def baseline(self) -> TrialSpec:
        """The trial of the same work by the plain module on the first device."""
        alone = replace(self.of_one_replica, implementation=SINGLE, backend="none")
        return alone.with_own_settings


DEFAULTS = {
    field.name: field.default
    for spec in (WorkloadSpec, TrialSpec)
    for field in fields(spec)
    if field.default is not MISSING
}
"""The stored defaults. They decide the trial ids of existing results, so they never change.
Settings without one are in every trial."""
BUCKETED = tuple(
    name
    for name, traits in IMPLEMENTATIONS.items()
    if traits.has_setting("bucket_cap_mb") and not traits.shards_optimizer
)
"""Implementations that reduce whole gradients in buckets while the backward pass goes on."""
