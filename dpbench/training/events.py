"""Events of a training while it runs: one JSON object per line of a run folder's log.jsonl.

Names contain the units; values that were not measured are left out. Epochs and steps count from 1.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from dpbench.codec import Float, decode, encode, from_json
from dpbench.errors import FileError
from dpbench.records.trial import MemoryPeaks


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
    checkpoint: str | None = None
    """The file that has their result."""
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
class Score:
    """Result of a model on the test samples."""

    loss: Float
    """Mean over the samples; NaN or infinite if the model's output is."""
    correct: int | None
    """Number of targets predicted right; None if the architecture does not count them."""
    total: int
    """Number of targets: each token of a sequence is one; in a tree of targets, each sample."""

    @property
    def accuracy(self) -> float | None:
        """Accuracy from 0 to 1; None if nothing is counted."""
        return None if self.correct is None else self.correct / self.total

    @property
    def metric(self) -> float:
        """Metric that selects the best model, which has the highest: the accuracy, or else the loss
        times -1."""
        return -self.loss if self.accuracy is None else self.accuracy

    def improves(self, best: float | None) -> bool:
        """Whether this is better than the best metric so far; never if the loss is not finite."""
        return math.isfinite(self.loss) and (best is None or self.metric > best)


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
    score: Score | None = None
    """None without evaluation."""
    checkpoint: str | None = None
    """The file's name."""
    best: bool = False
    """Whether this is the best epoch so far."""
    shares: tuple[float, ...] = ()
    """Shares of the global batch by rank in this epoch; () if they are equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndLine:
    """The training is over, or stopped at --max-steps. Tuples have one entry per rank."""

    final_loss: Float
    """Mean training loss of the last epoch, up to the point where it was stopped."""
    epochs: int
    """Number of whole epochs; as many as were asked for unless it was stopped."""
    steps: int
    state_sha256: str
    """Hash of the names, dtypes, shapes and bytes in the model's state dict, the same on every
    rank."""
    elapsed_seconds: float
    """Seconds of this process; a resumed training begins at 0."""
    samples: int
    """Number of samples trained in that time, over all ranks."""
    peaks: tuple[MemoryPeaks, ...]
    """Memory peaks of each rank."""
    skipped_steps: int = 0
    score: Score | None = None
    """Score of the model at the end; None without evaluation."""
    best_checkpoint: str | None = None
    last_checkpoint: str | None = None
    """File name in the run folder's checkpoints."""

    @property
    def test_accuracy(self) -> float | None:
        """Accuracy at the end, from 0 to 1; None if nothing is counted."""
        return None if self.score is None else self.score.accuracy


Event = StartLine | StepLine | EpochLine | EndLine
EVENT_KINDS: dict[str, type[Event]] = {
    "started": StartLine,
    "step": StepLine,
    "epoch": EpochLine,
    "finished": EndLine,
}
_NAMES = {kind: name for name, kind in EVENT_KINDS.items()}


def to_line(event: Event) -> str:
    """The event as an object of JSON, with the kind first."""
    content = {"kind": _NAMES[type(event)], **encode(event)}
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def from_line(line: str | bytes) -> Event:
    """Parse an event; raises FileError for a line that `to_line` did not write."""
    content = from_json(dict, line)
    name = content.pop("kind", None)
    kind = EVENT_KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise FileError(f"kind {name!r}; expected one of {', '.join(EVENT_KINDS)}")
    return decode(kind, content)
