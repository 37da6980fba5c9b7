"""What a training says while it runs: an object a line of a run folder's log.jsonl.

Units stand in the names; what was not measured is left out. Epochs and steps count from 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dpbench.codec import encode
from dpbench.errors import StoreError
from dpbench.store.record_log import decode_at, parse


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The ranks are ready. What is said by rank has an entry for each process, in their order."""

    world_size: int
    """Processes; one that drives all replicas counts once."""
    group_size: int
    """Replicas."""
    hosts: tuple[str, ...]
    pids: tuple[int, ...]
    devices: tuple[str, ...]
    """Of each replica."""
    samples_per_rank: tuple[int, ...]
    """Training samples that each process takes in the first epoch; no two share any."""
    train_samples: int
    """In an epoch, over all processes."""
    effective_batch_size: int
    """Samples behind one optimizer step."""
    steps_per_epoch: int
    parameters: int
    """Numbers in the model that are trained."""
    epoch: int
    """The first one to be trained, or to be gone on with."""
    step: int
    """Optimizer steps that are done already."""
    item: str = "samples"
    """What speeds are told in; batches, steps and losses count samples."""
    items_per_sample: int = 1
    test_samples: int | None = None
    """None where nothing is evaluated."""
    resumed_from: str | None = None
    """The checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLine:
    """Where the training is, every so many optimizer steps."""

    epoch: int
    step: int
    """Of the whole training."""
    processed: int
    total: int
    """Samples of this epoch, over all processes."""
    rank_processed: int
    rank_total: int
    """The same of rank 0 alone."""
    loss: float
    """Mean over all samples since the line before."""
    learning_rate: float
    """Of the step that was just made."""
    samples_per_second: float
    """Of all processes since the line before, without evaluation."""
    data_wait_share: float
    """Part of that time in which rank 0 waited for samples."""
    elapsed_seconds: float
    """Since this process began to train; a resumption begins at 0."""
    gradient_norm: float | None = None
    """Of the last step, before it was cut to --max-norm; None where that is not asked for."""
    skipped_steps: int = 0
    """So far, since a gradient was not finite under float16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochLine:
    """The end of an epoch."""

    epoch: int
    step: int
    train_loss: float
    """Mean over all samples of the epoch."""
    learning_rate: float
    """Of the epoch's last step."""
    epoch_seconds: float
    """Without evaluation; of what was trained since a resumption in the middle of the epoch."""
    evaluation_seconds: float | None = None
    test_loss: float | None = None
    test_correct: int | None = None
    test_total: int | None = None
    checkpoint: str | None = None
    """The file's name."""
    best: bool = False
    """Better than every epoch before."""
    shares: tuple[float, ...] = ()
    """Parts of the global batch by process in this epoch; () where they are equal."""

    @property
    def test_accuracy(self) -> float | None:
        if self.test_correct is None or not self.test_total:
            return None
        return self.test_correct / self.test_total


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What the user must be told."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The training is over, or stopped at --max-steps. Tuples have an entry for each process."""

    final_loss: float
    """Mean training loss of the last epoch, up to where it was stopped."""
    epochs: int
    """Whole ones; as many as were asked for unless it was stopped."""
    steps: int
    world_size: int
    """Processes."""
    group_size: int
    """Replicas."""
    state_sha256: str
    """Of the model's parameters and buffers, the same on every rank."""
    elapsed_seconds: float
    """Of this process; a resumption begins at 0."""
    samples: int
    """Trained in that time, over all processes."""
    peak_host_memory_bytes: tuple[int, ...]
    data_wait_share: float
    item: str = "samples"
    items_per_sample: int = 1
    """As in Started."""
    peak_device_memory_bytes: tuple[int, ...] | None = None
    """Allocated; None on the CPU."""
    peak_reserved_memory_bytes: tuple[int, ...] | None = None
    """Of the device, held by torch's allocator, in use or not; None on the CPU."""
    skipped_steps: int = 0
    test_accuracy: float | None = None
    """Of the model at the end."""
    test_loss: float | None = None
    best_checkpoint: str | None = None
    last_checkpoint: str | None = None
    """Names of files in the run folder's checkpoints."""


Event = Started | StepLine | EpochLine | Note | Finished
KINDS: dict[str, type[Event]] = {
    "started": Started,
    "step": StepLine,
    "epoch": EpochLine,
    "note": Note,
    "finished": Finished,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


def to_object(event: Event) -> dict[str, Any]:
    """What json.dumps takes, with the kind first."""
    return {"kind": _NAMES[type(event)], **encode(event)}


def to_line(event: Event) -> str:
    return json.dumps(to_object(event), separators=(",", ":"), allow_nan=False)


def from_line(where: str, line: str | bytes) -> Event:
    """Raises StoreError, with `where` in front, for what `to_line` did not write."""
    content = parse(where, line)
    name = content.pop("kind", None)
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise StoreError(f"{where}: kind {name!r}; expected one of {', '.join(KINDS)}")
    return decode_at(where, kind, content)


def standing(events: Iterable[Event]) -> tuple[Event, ...]:
    """Without the steps and epochs that a resumption began again from a checkpoint before them."""
    kept: list[Event] = []
    for event in events:
        if isinstance(event, Started):
            done = event.step
            kept = [e for e in kept if not (isinstance(e, StepLine | EpochLine) and e.step > done)]
        kept.append(event)
    return tuple(kept)
