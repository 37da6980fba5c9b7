"""The description of a training for its ranks, and what no rank could do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpbench.errors import UsageError
from dpbench.specs.training import TrainingRunOptions, TrainingSpec
from dpbench.specs.traits import BUILT_IN

TRAINABLE = tuple(
    name
    for name, traits in BUILT_IN.items()
    if traits.shards != "parameters" and (traits.communicates or traits.largest_group == 1)
)
"""Implementations that `dpbench train` offers: parameters stay whole, and replicas equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """Description of a training; the same on every rank, except for the host's paths."""

    spec: TrainingSpec
    run: TrainingRunOptions
    folder: Path
    """The run folder, which exists. Only rank 0 writes into it; others may be on another host."""
    prepared: Path | None
    """Folder of the prepared datasets on this host; None if the samples are generated."""
    resume: str | None = None
    """None starts from the beginning; RESUME_LATEST continues from the latest checkpoint of the run
    folder, if there is one; otherwise the path of a checkpoint."""


def refuse_unusable(spec: TrainingSpec, run: TrainingRunOptions) -> None:
    """Raise UsageError for values that do not go together."""
    name, traits = spec.implementation, spec.traits
    if name not in TRAINABLE:
        raise UsageError(f"{name} cannot be trained with; expected one of {', '.join(TRAINABLE)}")
    largest = traits.largest_group
    if largest is not None and spec.group_size > largest:
        raise UsageError(f"{name}: got a group size of {spec.group_size}, expected {largest}")
    if spec.unusable_reason is not None:
        raise UsageError(f"{name}: {spec.unusable_reason}")
    if spec.process_count == 1 and spec.balance == "speed":
        raise UsageError(
            f"balance speed: got {name} at group size {spec.group_size}, which is one process; "
            "expected several, as shares are of processes"
        )
    # Between two averages of local-sgd the parameters of the ranks differ.
    for what, every in (
        ("a checkpoint every", run.checkpoint_every),
        ("a comparison of the ranks every", run.check_sync_every),
        ("an end after", run.max_steps),
    ):
        if traits.averages_parameters and every is not None and every % spec.sync_every:
            raise UsageError(
                f"{what} {every} steps: {name} averages parameters every {spec.sync_every} steps, "
                f"and only then are they one model; expected a multiple of {spec.sync_every}"
            )
