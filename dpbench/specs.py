"""What to run: the workload, one trial, a sweep, and the names they may use.

All specifications are frozen values. A trial is identified by the hash of its canonical JSON
without the fields that are at their default, so a new option orphans no old result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import accumulate
from typing import Literal

from dpbench.codec import content_hash, encode
from dpbench.learning_rate import scale_lr
from dpbench.placement import Placement, on_hosts, placed
from dpbench.shares import split_evenly
from dpbench.traits import IMPLEMENTATIONS
from dpbench.units import counted

Scaling = Literal["weak", "strong"]
SCALINGS = ("weak", "strong")
DTYPES = {
    "f32": "float32 as IEEE has it, also on GPUs that could do with less",
    "bf16": "bfloat16 where autocast takes it; parameters and gradients stay float32",
    "f16": "float16 where autocast takes it, with a loss scale (CUDA only)",
    "tf32": "float32 whose products keep 10 bits of the mantissa (CUDA only)",
}
COMPILE_MODES = ("none", "default", "reduce-overhead", "max-autotune")
"""Of torch.compile; "reduce-overhead" plays CUDA graphs."""
COMM_HOOKS = ("none", "bf16", "powersgd")
"""What gradients become on their way: bfloat16, or matrices of low rank."""
OPTIMIZERS = (
    *("sgd", "sgd-fused", "sgd-foreach", "adamw", "adamw-fused", "adamw-foreach"),
    *("adam", "adam-fused", "adam-foreach", "adadelta", "adadelta-foreach"),
)
"""torch's own; behind the dash the kernels, in place of those that torch would take."""
DEFAULT_OPTIMIZER = "sgd"
MOST_REPETITIONS = 10_000
"""More would plan until memory ends, and tell nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadSpec:
    """What is trained, on what, and how."""

    architecture: str
    """A name from `architectures/`, or "package.module:factory"."""
    dataset: str
    optimizer: str = DEFAULT_OPTIMIZER
    learning_rate: float = 0.01
    learning_rate_rule: str = "none"
    """How the learning rate follows the samples behind an optimizer step; see
    TrialSpec.learning_rate and learning_rate.RULES."""
    seed: int = 0
    dtype: str = "f32"
    """Of the products in forward and backward; see DTYPES."""
    compile: str = "none"
    """Mode of torch.compile, or "none"."""
    channels_last: bool = False
    """Images lie in memory with the channels of a pixel together."""
    checkpoint_activations: bool = False
    """Blocks keep their inputs only, and are computed again in the backward pass."""
    step: str | None = None
    """The user's own training step: "path/to/file.py:step" or "package.module:step"."""
    files_sha256: str | None = None
    """Of the user's files that architecture, step and dataset name, and of the text trained on."""

    def __post_init__(self) -> None:
        # 1 and 1.0 are equal, so they must not give two trial ids.
        object.__setattr__(self, "learning_rate", float(self.learning_rate))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSpec:
    """One run of one configuration in processes of its own."""

    workload: WorkloadSpec
    implementation: str
    backend: str
    group_size: int
    batch_size: int
    """Samples per replica and micro-step (weak scaling) or per group and micro-step (strong)."""
    warmup_steps: int
    timed_steps: int
    threads_per_replica: int
    devices: tuple[str, ...]
    """The device of each replica, e.g. ("cpu", "cpu") or ("cuda:0", "cuda:1")."""
    scaling: Scaling = "weak"
    accumulation_steps: int = 1
    repetition: int = 0
    sync_every: int = 1
    """Optimizer steps between two averages of parameters, where the implementation has them."""
    precision: float | None = None
    """Relative half-width of the interval of the mean step at which the timed window ends;
    `timed_steps` is then the most that it may hold."""
    phase_steps: int = 5
    """Steps after the timed windows whose phases are timed one by one; 0 for none."""
    noise_steps: int = 0
    """Global batches after the windows from which the gradient noise scale is estimated."""
    trace_steps: int = 0
    """Steps after the windows that torch's profiler records in a file."""
    gradient_steps: int = 10
    """Steps at group size 1, after the windows, in which it is noted when each gradient is ready;
    as many without that lie between them. 0 for none; see `traces_gradients`."""
    bucket_cap_mb: float | None = None
    """MiB of gradients in one collective, where the implementation has buckets; None leaves it to
    the implementation."""
    comm_hook: str = "none"
    """What the implementation's buckets go through on their way, where it has such hooks."""
    prefetch: int | None = None
    """Steps whose samples a thread loads ahead from host memory; 0: each step loads its own; None:
    all samples lie on the device."""
    data_workers: int = 0
    """Processes of each rank that take the samples one by one, as torch's DataLoader has them."""
    nodes: tuple[int, ...] = ()
    """Replicas on each host, in the order of ranks; () when all are on one. `devices` then name the
    device of each replica on its own host."""

    @property
    def trial_id(self) -> str:
        return content_hash(self)

    @property
    def configuration(self) -> TrialSpec:
        """What repetitions have in common: all but their number, and that one leaves a trace."""
        return replace(self, repetition=0, trace_steps=0)

    @property
    def of_one_replica(self) -> TrialSpec:
        """The same at group size 1, on the first device."""
        return replace(self, group_size=1, devices=self.devices[:1], nodes=())

    @property
    def hosts(self) -> tuple[int, ...]:
        """The number of the host that each replica is on."""
        counts = self.nodes or (self.group_size,)
        return tuple(host for host, count in enumerate(counts) for _ in range(count))

    @property
    def places(self) -> tuple[tuple[int, str], ...]:
        """Host and device of each replica; replicas of one place share a device."""
        return tuple(zip(self.hosts, self.devices, strict=True))

    def place_of(self, rank: int) -> str:
        """The device of a replica: "cuda:1", and "cuda:1 on host 0" where there are several."""
        host, device = self.places[rank]
        return f"{device} on host {host}" if self.nodes else device

    @property
    def largest_share(self) -> int:
        """The most replicas that one host has."""
        return max(self.nodes, default=self.group_size)

    @property
    def replica_batch_sizes(self) -> tuple[int, ...]:
        """Samples of each replica per micro-step; in strong scaling they differ by at most one."""
        if self.scaling == "weak":
            return (self.batch_size,) * self.group_size
        return split_evenly(self.batch_size, self.group_size)

    @property
    def global_batch_size(self) -> int:
        """Samples of all replicas per micro-step."""
        return sum(self.replica_batch_sizes)

    @property
    def effective_batch_size(self) -> int:
        """Samples behind one optimizer step: all replicas, all accumulated micro-steps."""
        return self.global_batch_size * self.accumulation_steps

    @property
    def traces_gradients(self) -> bool:
        """Whether it notes when gradients are ready: where those of one replica meet no others."""
        alone = self.group_size == 1 and not IMPLEMENTATIONS[self.implementation].one_process
        return alone and self.gradient_steps > 0

    @property
    def learning_rate(self) -> float:
        """Of the optimizer: the workload's, scaled by its rule with the samples behind one step.

        It belongs to `batch_size` samples. What does not communicate steps on its own ones only.
        Raises ValueError if the rule cannot be applied.
        """
        base, rule = self.workload.learning_rate, self.workload.learning_rate_rule
        if rule == "none":
            return base
        communicates = IMPLEMENTATIONS[self.implementation].communicates
        samples = self.global_batch_size if communicates else max(self.replica_batch_sizes)
        return scale_lr(base, samples * self.accumulation_steps / self.batch_size, rule)

    @property
    def process_count(self) -> int:
        return 1 if IMPLEMENTATIONS[self.implementation].one_process else self.group_size

    def process_shard(self, rank: int) -> tuple[int, int]:
        """(first, count): the samples of every global batch that the process of `rank` takes."""
        sizes = self.replica_batch_sizes
        if self.process_count == 1:
            return 0, sum(sizes)
        return sum(sizes[:rank]), sizes[rank]

    @property
    def implementation_label(self) -> str:
        """The implementation's name, with what is not at its default: "ddp(bf16, 5 MiB)",
        "local-sgd(4)" for the steps between two averages."""
        settings = [*self._settings()]
        return f"{self.implementation}({', '.join(settings)})" if settings else self.implementation

    def _settings(self) -> Iterator[str]:
        workload = self.workload
        if self.sync_every != 1:
            yield str(self.sync_every)
        if workload.dtype != "f32":
            yield workload.dtype
        if workload.compile != "none":
            yield "compiled" if workload.compile == "default" else workload.compile
        if workload.channels_last:
            yield "channels-last"
        if workload.checkpoint_activations:
            yield "recomputing"
        if workload.optimizer != DEFAULT_OPTIMIZER:
            yield workload.optimizer
        if self.accumulation_steps != 1:
            yield f"{self.accumulation_steps} micro-steps"
        if self.bucket_cap_mb is not None:
            yield f"{self.bucket_cap_mb:g} MiB"
        if self.comm_hook != "none":
            yield f"{self.comm_hook} hook"
        if workload.step is not None:
            yield "own step"
        if self.prefetch is not None:
            yield f"prefetch {self.prefetch}"
        if self.data_workers:
            yield counted(self.data_workers, "worker")

    @property
    def label(self) -> str:
        """How people name the configuration: "ddp/gloo ×2, batch 32", and "ddp/gloo ×2 (1+1 hosts),
        batch 32" across hosts."""
        series = series_name(self.implementation_label, self.backend)
        return f"{series} ×{self.group_size}{on_hosts(self.nodes)}, batch {self.batch_size}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A point of those axes that every implementation goes along; None keeps to the sweep."""

    optimizer: str | None = None
    dtype: str | None = None
    compile: str | None = None
    channels_last: bool | None = None
    checkpoint_activations: bool | None = None
    accumulation_steps: int | None = None
    sync_every: int | None = None
    bucket_cap_mb: float | None = None
    comm_hook: str | None = None
    prefetch: int | None = None
    data_workers: int | None = None

    def of(self, trial: TrialSpec) -> TrialSpec:
        """The trial with these settings; those that it cannot have are left out: what its
        implementation has not, and workers where nothing is loaded ahead."""
        given = {
            f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None
        }
        of_workload = {name: given.pop(name) for name in WORKLOAD_AXES if name in given}
        traits = IMPLEMENTATIONS[trial.implementation]
        given = {name: value for name, value in given.items() if traits.has_setting(name)}
        varied = replace(trial, workload=replace(trial.workload, **of_workload), **given)
        return varied if varied.prefetch else replace(varied, data_workers=0)


WORKLOAD_AXES = ("optimizer", "dtype", "compile", "channels_last", "checkpoint_activations")
"""Fields of Variant that belong to the workload."""
NONE_WORDS = {"bucket_cap_mb": "auto", "prefetch": "resident"}
"""What None means in those fields that a trial may have it in. As None keeps to the sweep in a
Variant, a sweep of several values has None itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inclusion:
    """Rows beyond a grid, as a small grid of their own; None takes the whole list of the sweep."""

    implementations: tuple[str, ...]
    backend: str | None = None
    group_size: int | None = None
    batch_size: int | None = None
    settings: Variant = Variant()
    """None in it keeps to the sweep, also where that has `variants`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSpec:
    """The axes of a grid of trials, and what all its trials share."""

    workload: WorkloadSpec
    implementations: tuple[str, ...]
    backends: tuple[str, ...]
    group_sizes: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    devices: tuple[str, ...]
    """A device for each replica of the largest group; smaller groups take the first ones."""
    warmup_steps: int
    timed_steps: int
    repetitions: int
    threads_per_replica: int
    time_limit_seconds: float
    scaling: Scaling = "weak"
    accumulation_steps: int = 1
    sync_every: int = 1
    """Of those implementations that average parameters."""
    precision: float | None = None
    """Relative half-width of a row's interval up to which repetitions are added, from
    `repetitions` on; None keeps to `repetitions`."""
    budget_seconds: float | None = None
    """How long repetitions may go on being added."""
    steps_grow: bool = False
    """Windows grow to the precision too, up to `timed_steps`."""
    phase_steps: int = 5
    noise_steps: int = 0
    trace_steps: int = 0
    """Of the first repetition; see TrialSpec for all three."""
    gradient_steps: int = 10
    bucket_cap_mb: float | None = None
    """Of those implementations that have buckets."""
    comm_hook: str = "none"
    """Of those implementations that have hooks."""
    prefetch: int | None = None
    data_workers: int = 0
    """Of the rows that load ahead."""
    variants: tuple[Variant, ...] = ()
    """What each row is measured with in turn; () for once as the sweep says."""
    exclude: tuple[tuple[str, ...], ...] = ()
    """Rows that are left out: those to which all of "backend=gloo", "group_size=4" … apply."""
    include: tuple[Inclusion, ...] = ()
    """Rows that are added to those that stay."""
    target_loss: float | None = None
    """The loss whose time to be reached is reported."""
    order_seed: int | None = None
    """Shuffles the first pass of the palindrome; None keeps the order of the grid."""
    nodes: tuple[int, ...] = ()
    """Replicas that each host offers, in their order; () when there is one. `devices` then list
    those of the first host, of the second, …, each as its own host calls it."""
    placement: Placement = "pack"
    """Whether a group fills one host after the other, or takes a replica of each in turn."""

    def nodes_of(self, group_size: int) -> tuple[int, ...]:
        """How many of a group's replicas each host gets; () when all are on the first."""
        counts = placed(group_size, self.nodes or (len(self.devices),), self.placement)
        return counts if len(counts) > 1 else ()

    def devices_of(self, group_size: int) -> tuple[str, ...]:
        """The device of each replica of a group, on its own host."""
        if not (counts := self.nodes_of(group_size)):
            return self.devices[:group_size]
        firsts = accumulate(self.nodes, initial=0)
        return tuple(
            self.devices[first + replica]
            for first, count in zip(firsts, counts, strict=False)
            for replica in range(count)
        )


def series_name(implementation: str, backend: str | None) -> str:
    """What stays the same along a scaling curve: "ddp/gloo"; a backend that says nothing is left
    out."""
    return implementation if backend in (None, "none", "threads") else f"{implementation}/{backend}"


def differing_fields(ours: object, theirs: object) -> list[str]:
    """Lists "name: theirs -> ours" for every field in which two specifications differ."""
    differences = []
    for field in fields(ours):  # type: ignore[arg-type]
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        if is_dataclass(mine):
            differences += differing_fields(mine, other)
        elif mine != other:
            differences.append(f"{field.name}: {encode(other)!r} -> {encode(mine)!r}")
    return differences
