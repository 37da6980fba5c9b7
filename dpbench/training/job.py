"""The description of a training for its ranks, and checks for what no rank could do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from dpbench.errors import UsageError
from dpbench.specs.training import TrainingRun, TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS

OF_CUDA = {
    "f16": "float16 has no speed and too little range elsewhere",
    "tf32": "their products alone can be of TF32",
}
"""Dtypes that only CUDA devices train in, with the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """Description of a training; the same on every rank, except for the host's paths."""

    spec: TrainingSpec
    run: TrainingRun
    folder: Path
    """The run folder, which exists. Only rank 0 writes into it; others may be on another host."""
    prepared: Path | None
    """The folder of `registry.prepare_splits` on this host; None for synthetic samples."""
    resume: str | None = None
    """None starts anew; RESUME_LATEST continues from the latest checkpoint of the run folder, if
    there is one; otherwise the path of a checkpoint."""

    def __post_init__(self) -> None:
        refuse_unusable(self.spec, self.run)


def refuse_unusable(spec: TrainingSpec, run: TrainingRun) -> None:
    """Raise UsageError for a meaningless value, or values that do not go together."""
    _refuse_values(spec, run)
    traits = IMPLEMENTATIONS[spec.implementation]
    if spec.group_size > 1 and not traits.communicates:
        raise UsageError(
            f"{spec.implementation}: got a group size of {spec.group_size}, but its replicas never "
            "exchange anything; expected 1, or an implementation that communicates"
        )
    if traits.shards_parameters:
        raise UsageError(
            f"{spec.implementation}: it leaves a part of every parameter on each rank, and "
            "checkpoints hold whole ones; expected ddp or another that keeps them whole"
        )
    if traits.shards_optimizer and spec.dtype == "f16":
        raise UsageError(
            f"{spec.implementation}: got dtype f16, whose loss scaling looks at whole gradients, "
            "and ranks have shares of them; expected bf16, or ddp"
        )
    if len(spec.devices) != spec.group_size:
        raise UsageError(
            f"got {len(spec.devices)} devices for {spec.group_size} replicas; expected one for each"
        )
    if spec.dtype in OF_CUDA and any(device.split(":")[0] != "cuda" for device in spec.devices):
        raise UsageError(
            f"dtype {spec.dtype}: got the devices {', '.join(spec.devices)}; expected CUDA "
            f"devices, as {OF_CUDA[spec.dtype]}; take bf16"
        )
    if spec.process_count == 1 and (spec.shares or spec.balance == "speed"):
        _refuse_shares(spec)
    if traits.averages_parameters:
        _refuse_between_averages(spec, run)


def _refuse_values(spec: TrainingSpec, run: TrainingRun) -> None:
    counts = {
        "epochs": (spec.epochs, 1),
        "warm-up steps": (spec.warmup_steps, 0),
        "steps between averages": (spec.sync_every, 1),
        "steps in all": (run.max_steps, 1),
        "steps between lines of the log": (run.log_interval, 1),
        "steps between checkpoints": (run.checkpoint_every, 1),
        "checkpoints to keep": (run.max_checkpoints, 1),
        "steps between comparisons of the ranks": (run.check_sync_every, 1),
        "windows made ahead": (run.prefetch, 0),
    }
    for what, (count, least) in counts.items():
        if count is not None and count < least:
            raise UsageError(f"{what}: got {count}, expected at least {least}")
    sizes = {"gamma": spec.gamma, "max norm": spec.max_norm, "timeout in s": run.timeout_seconds}
    for what, size in sizes.items():
        if size is not None and not 0 < size < math.inf:  # refuses a NaN too
            raise UsageError(f"{what}: got {size}, expected a finite number above 0")
    try:
        spec.learning_rate  # noqa: B018 - computed from several values
    except ValueError as error:
        raise UsageError(f"learning rate: {error}") from None


def _refuse_shares(spec: TrainingSpec) -> None:
    asked = f"balance {spec.balance}" if spec.balance == "speed" else f"shares {spec.shares}"
    raise UsageError(
        f"{asked}: got {spec.implementation} at group size {spec.group_size}, which is one "
        "process; expected several, as shares are of processes"
    )


def _refuse_between_averages(spec: TrainingSpec, run: TrainingRun) -> None:
    """Refuse steps that are not due at an average: only there are the ranks' parameters one
    model."""
    for what, every in (
        ("a checkpoint every", run.checkpoint_every),
        ("a comparison of the ranks every", run.check_sync_every),
        ("an end after", run.max_steps),
    ):
        if every is not None and every % spec.sync_every:
            raise UsageError(
                f"{what} {every} steps: {spec.implementation} averages parameters every "
                f"{spec.sync_every} steps, and only then are they one model; expected a multiple "
                f"of {spec.sync_every}"
            )
