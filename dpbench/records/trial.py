"""Results of trials: raw measurements per rank, and the outcome.

Only raw samples are stored; every statistic is derived from them later. `None` means not
measured. All times are seconds, all sizes bytes, as the names say.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, Self

from dpbench.codec import Float, content_hash, encode
from dpbench.specs import Configuration

SchemaVersion = Literal[14]
"""The version of what is stored; files of another one are refused."""
SCHEMA_VERSION: SchemaVersion = 14


class Status(enum.Enum):
    """The end of a trial. Only `completed` carries a speed."""

    COMPLETED = "completed"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    DIVERGED = "diverged"
    WRONG_GRADIENTS = "wrong_gradients"
    SKIPPED = "skipped"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")

    @property
    def is_failure(self) -> bool:
        return self not in (Status.COMPLETED, Status.SKIPPED)


NOT_A_MEAN = (
    'the loss is not a mean over samples (reduction="mean"), so its gradients depend on the number '
    "of ranks"
)
"""Warning if `Verification.is_sample_mean` is False, or will be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The comparison of a configuration's gradients with one process, with SGD."""

    passed: bool
    max_relative_error: Float
    """Largest over parameters of max|g - g_ref| / max|g_ref|, of the worst rank."""
    tolerance: float
    tensors_compared: int
    worst_parameter: str | None = None
    dtype: str = "float64"
    """Dtype of both sides; float32 if the model is too large for float64, or casts to float32."""
    is_sample_mean: bool | None = None
    """Whether the weighted mean of the shards' gradients is the gradient of the full batch; None if
    ranks average nothing."""


INFINIBAND_UNUSED = "NET/Socket beside InfiniBand"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuState:
    """State of a GPU at one moment, from NVML."""

    sm_clock_mhz: int
    slowdowns: tuple[str, ...]
    """Reasons for a clock below the highest: "thermal", "power cap", "power brake" or "hardware
    slowdown"."""
    processes: int
    """Processes with a context on it, those of the trial included."""


Mode = Literal["timed", "unsynced", "cached"]
"""How the steps of a window are taken: as training takes them; without gradient synchronization;
or, by a script, on the last batch of its DataLoader again and again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Timed steps of one mode on one rank: a segment, whose steps are consecutive and start on all
    ranks together, or several segments, joined."""

    seconds: float
    """Seconds from the opening barrier of each segment until this rank's device has finished its
    last step, summed over the segments."""
    step_seconds: tuple[float, ...]
    """Seconds of each step."""
    samples: int
    """Samples that this rank's replicas consumed."""
    segment_steps: tuple[int, ...] = ()
    """Steps of each of several segments; segments of the windows of a rank take turns."""
    losses: tuple[Float, ...] = ()
    """Mean loss of this rank's samples of every step, read after the window."""
    cpu_seconds: float | None = None
    """Processor time of the rank's process in the window, all its threads together."""
    page_faults: int | None = None
    """Pages of memory that the system mapped for the process in the window (ru_minflt)."""
    gpu: tuple[GpuState, ...] = ()
    """State of the rank's GPU at the end of each segment; () without NVML."""

    @classmethod
    def of_segments(cls, segments: Sequence[Self]) -> Self:
        """Segments as one window; the time between them is in none of its numbers."""
        cpu_seconds = [segment.cpu_seconds for segment in segments]
        page_faults = [segment.page_faults for segment in segments]
        return cls(
            seconds=sum(segment.seconds for segment in segments),
            step_seconds=tuple(chain.from_iterable(segment.step_seconds for segment in segments)),
            segment_steps=tuple(len(segment.step_seconds) for segment in segments),
            samples=sum(segment.samples for segment in segments),
            losses=tuple(chain.from_iterable(segment.losses for segment in segments)),
            cpu_seconds=None if None in cpu_seconds else sum(filter(None, cpu_seconds)),
            page_faults=None if None in page_faults else sum(filter(None, page_faults)),
            gpu=tuple(chain.from_iterable(segment.gpu for segment in segments)),
        )

    @property
    def mean_step_seconds(self) -> float:
        """Length of the window ÷ its steps."""
        return self.seconds / len(self.step_seconds)


Phase = Literal["data", "forward", "backward", "optimizer"]
"""A part of a step: until the batch is on the device; forward and loss; backward until gradients
are ready, with the communication that overlap does not hide, and what synchronizes parameters after
the step (local-sgd); the optimizer step, and zeroing gradients."""
ReplicaPhase = Literal["scatter", "replicate", "compute", "gather", "reduce"]
"""A part of forward and backward in a process with all replicas (dp): splitting the batch over the
replicas; giving each its module; their forward and backward, until the slowest is done; putting
their outputs together; adding up their gradients, as far as computing does not hide it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientTrace:
    """The times at which gradients were ready, on a rank whose gradients meet no other rank's.

    Seconds since the step began; a value per traced step.
    """

    parameters: tuple[str, ...]
    """Names of the parameters that got a gradient in every traced step, in the order of the
    module."""
    gradient_bytes: tuple[int, ...]
    ready_seconds: tuple[tuple[float, ...], ...]
    """Per traced step, per parameter."""
    backward_end_seconds: tuple[float, ...]
    step_seconds: tuple[float, ...]
    buffer_bytes: int = 0
    """Bytes of the module's buffers, which some implementations broadcast in every forward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptFacts:
    """Facts about the steps that a training script takes as it is."""

    steps: int
    """Optimizer steps in which the following were counted."""
    forwards: int
    """Forward passes of DistributedDataParallel that record gradients."""
    reducing_forwards: int
    """Forward passes whose backward averages gradients."""
    loader_workers: int | None = None
    """None if no DataLoader feeds its steps."""
    pins_memory: bool = False
    keeps_workers: bool = False
    """Whether its DataLoader has persistent_workers."""
    is_wrapped: bool = False
    """Whether its model is within a DistributedDataParallel, torch's or dpbench's."""
    finds_unused: bool = False
    """Whether the wrapper has find_unused_parameters."""
    has_unused: bool = False
    """Whether a parameter had no gradient after the warm-up."""
    differing_parameter: str | None = None
    """The first parameter that differs between ranks after the warm-up."""
    same_samples: bool = False
    """Whether all ranks had the same batch after the warm-up, and not the one in the middle of it:
    they train on the same samples."""
    gpu: str | None = None
    """The UUID of the GPU with its parameters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPeaks:
    """The most memory of a process and its device until some moment, in bytes."""

    host_bytes: int
    """Largest resident set (ru_maxrss)."""
    device_bytes: int | None = None
    """Largest allocation, on the device with the most; None on devices without a counter."""
    reserved_bytes: int | None = None
    """Largest amount that torch's allocator held, used or not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialFacts:
    """What holds for all ranks of a trial."""

    item: str = "samples"
    """Unit that the architecture counts: images, tokens, rows; or steps."""
    items_per_sample: int = 1
    """More where a sample holds several, as a sequence does tokens."""
    flops_per_item: float | None = None
    """Floating-point operations of forward and backward for one item, counted by torch in the
    first repetition."""
    group_class: str | None = None
    """torch's class of the process group: "ProcessGroupNCCL", or "ProcessGroupNCCL2", which the
    backend "nccl" is from torch 2.15 on; None without a group."""
    sync_batch_norms: int = 0
    """Number of SyncBatchNorm layers, which communicate in the forward pass."""
    verification: Verification | None = None
    """Verification of the gradients, in the first repetition of a configuration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMeasurement:
    """The measurements of one rank."""

    rank: int
    pid: int
    device: str
    windows: dict[Mode, Window] = field(hash=False)
    """Windows by mode, with as many steps each; "unsynced" steps are on the samples of "timed"."""
    setup_seconds: float
    """Seconds from the rank's start to its first warmup step: group, data, model; of a script, to
    the end of that step."""
    peaks: MemoryPeaks
    """Peaks until the end of the first timed segment; of the device from warmup on."""
    facts: TrialFacts | None = None
    """Facts about the whole trial; rank 0 alone has them."""
    script: ScriptFacts | None = None
    reduced_bytes_per_step: int | None = None
    comm_init_seconds: float | None = None
    """Seconds from the arrival of the last rank until the process group was made and its first
    collective had passed; no window holds it."""
    transports: tuple[str, ...] = ()
    """Ways by which NCCL sends to other ranks, from its log: P2P, SHM, NET/IB, NET/Socket; or
    INFINIBAND_UNUSED, on a host with an adapter."""
    sample_checksum: str | None = None
    """Hash of the indices consumed in the timed window: what this rank trained on."""
    initial_checksum: str | None = None
    """Hash of the parameters before warmup; equal in all trials of a workload and seed."""
    final_checksum: str | None = None
    """Hash of the parameters after the timed window; equal on all ranks that communicate."""
    threads: int | None = None
    """torch's threads for one operation after the timed window: the user's code may have changed
    them."""
    phases: dict[Mode, dict[Phase, tuple[float, ...]]] = field(default_factory=dict, hash=False)
    """Seconds of the phases of each instrumented step, between which the rank waits for its device.
    They are measured apart, never in a window: the waiting costs speed."""
    replica_phases: dict[ReplicaPhase, tuple[float, ...]] = field(default_factory=dict, hash=False)
    """Phases within steps with synchronization; {} if each replica has its own process."""
    gradient_trace: GradientTrace | None = None

    @property
    def timed(self) -> Window:
        """The window of the steps that training takes, on which every speed is based."""
        return self.windows["timed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLoad:
    """Load by others than the ranks and dpbench on the cores of the first host that their affinity
    mask allows: the number of cores that were busy on average."""

    cores: int
    """Cores in the affinity mask."""
    during: float
    """Busy with other processes while the trial ran, its launch included."""
    stolen: float
    """Taken by the hypervisor for other guests while it ran."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """How a trial or the measurement of a collective ended, when, and where."""

    status: Status
    reason: str | None = None
    """Why it did not complete."""
    killed: bool = False
    """True if something outside ended it, such as kill -9: another try may succeed."""
    tried_again_after: str | None = None
    """Why its first try ended, where something outside had ended that."""
    started_utc: str = ""
    """ISO 8601, to the millisecond."""
    duration_seconds: float = 0.0
    """Wall time as the sweep saw it, launch and a first try included."""
    environment_ids: tuple[str, ...] = ()
    """Ids of the environments of all hosts that it ran on, in order."""
    host_load: HostLoad | None = None
    """Other load on the first host; None if nothing was run, or it is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord(Record):
    """The record of one trial: a line of trials.jsonl."""

    configuration: Configuration
    repetition: int = 0
    ranks: tuple[RankMeasurement, ...] = ()
    """Measurements of each rank, whatever was wrong with them; () if a rank did not end well."""

    @property
    def trial_id(self) -> str:
        """The hash of what ran. Fields at their default are left out, so that a new setting changes
        no id."""
        repetition = {"repetition": self.repetition} if self.repetition else {}
        return content_hash({"configuration": encode(self.configuration), **repetition})

    @property
    def facts(self) -> TrialFacts:
        """What holds for all ranks; the defaults if a rank did not end well."""
        return (self.ranks[0].facts if self.ranks else None) or TrialFacts()
