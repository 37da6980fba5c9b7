"""Events of a training while it runs: one JSON object per line of a run folder's log.jsonl.

Names contain the units; values that were not measured are left out. Epochs and steps count from 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from dpbench.codec import Float, decode, encode, json_object
from dpbench.errors import StoreError


@dataclass(frozen=True, kw_only=True, slots=True)
class StartLine:
    """The ranks are ready. Tuples have one entry per rank, in order; run.json has the sizes that
    were asked for."""

    world_size: int
    """Number of ranks; a process that drives all replicas counts once."""
    hosts: tuple[str, ...]
    pids: tuple[int, ...]
    samples_per_rank: tuple[int, ...]
    """Training samples that each rank takes in the first epoch; no two share any."""
    steps_per_epoch: int
    parameters: int
    """Number of trained parameters in the model."""
    epoch: int
    """First epoch to be trained, or to be continued."""
    step: int
    """Number of optimizer steps that are already done."""
    item: str = "samples"
    """Unit of speeds; batches, steps and losses count samples."""
    items_per_sample: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLine:
    """Progress of the training, every so many optimizer steps."""

    epoch: int
    step: int
    """Optimizer step, counted over the whole training."""
    processed: int
    total: int
    """Number of samples in this epoch, over all ranks."""
    rank_processed: int
    rank_total: int
    """Number of samples in this epoch on rank 0 alone."""
    loss: Float
    """Mean loss over all samples since the previous line, or since a resumption."""
    learning_rate: float
    """Learning rate of the latest step."""
    samples_per_second: float
    """Speed of all ranks since the previous line, without evaluation."""
    data_wait_share: float
    """Share of that time in which rank 0 waited for samples."""
    elapsed_seconds: float
    """Seconds since this process began to train; a resumed training begins at 0."""
    gradient_norm: Float | None = None
    """Gradient norm of the last step, before clipping to --max-norm; None without that option."""
    skipped_steps: int = 0
    """Number of steps skipped so far, since a gradient was not finite under float16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochLine:
    """The end of an epoch."""

    epoch: int
    step: int
    train_loss: Float
    """Mean loss over all samples of the epoch."""
    learning_rate: float
    """Learning rate of the epoch's last step."""
    epoch_seconds: float
    """Seconds without evaluation; after a resumption in the middle of the epoch, only the part
    since then."""
    evaluation_seconds: float | None = None
    test_loss: Float | None = None
    test_correct: int | None = None
    test_total: int | None = None
    checkpoint: str | None = None
    """The file's name."""
    best: bool = False
    """Whether this is the best epoch so far."""
    shares: tuple[float, ...] = ()
    """Shares of the global batch by rank in this epoch; () if they are equal."""

    @property
    def test_accuracy(self) -> float | None:
        if self.test_correct is None or not self.test_total:
            return None
        return self.test_correct / self.test_total


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteLine:
    """A note for the user."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EndLine:
    """The training is over, or stopped at --max-steps. Tuples have one entry per rank."""

    final_loss: Float
    """Mean training loss of the last epoch, up to the point where it was stopped."""
    epochs: int
    """Number of whole epochs; as many as were asked for unless it was stopped."""
    steps: int
    state_sha256: str
    """Hash of the model's parameters and buffers, the same on every rank."""
    elapsed_seconds: float
    """Seconds of this process; a resumed training begins at 0."""
    samples: int
    """Number of samples trained in that time, over all ranks."""
    peak_host_memory_bytes: tuple[int, ...]
    data_wait_share: float
    peak_device_memory_bytes: tuple[int, ...] | None = None
    """Peak of allocated memory; None on the CPU."""
    peak_reserved_memory_bytes: tuple[int, ...] | None = None
    """Peak of device memory held by torch's allocator, used or not; None on the CPU."""
    skipped_steps: int = 0
    test_accuracy: float | None = None
    """Accuracy of the model at the end."""
    test_loss: Float | None = None
    best_checkpoint: str | None = None
    last_checkpoint: str | None = None
    """File name in the run folder's checkpoints."""


Event = StartLine | StepLine | EpochLine | NoteLine | EndLine
EVENT_KINDS: dict[str, type[Event]] = {
    "started": StartLine,
    "step": StepLine,
    "epoch": EpochLine,
    "note": NoteLine,
    "finished": EndLine,
}
_NAMES = {kind: name for name, kind in EVENT_KINDS.items()}


def to_line(event: Event) -> str:
    """The event as an object of JSON, with the kind first."""
    content = {"kind": _NAMES[type(event)], **encode(event)}
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def from_line(line: str | bytes) -> Event:
    """Parse an event; raises StoreError for a line that `to_line` did not write."""
    content = json_object(line)
    name = content.pop("kind", None)
    kind = EVENT_KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise StoreError(f"kind {name!r}; expected one of {', '.join(EVENT_KINDS)}")
    return decode(kind, content)
