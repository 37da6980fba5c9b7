"""The description of a training for its ranks, and checks for what no rank could do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpbench.errors import UsageError
from dpbench.specs.training import TrainingRun, TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS

CUDA_DTYPES = {
    "f16": "float16 has no speed and too little range elsewhere",
    "tf32": "only they have products in TF32",
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
    """None starts from the beginning; RESUME_LATEST continues from the latest checkpoint of the run
    folder, if there is one; otherwise the path of a checkpoint."""

    def __post_init__(self) -> None:
        refuse_unusable(self.spec, self.run)


def refuse_unusable(spec: TrainingSpec, run: TrainingRun) -> None:
    """Raise UsageError for values that do not go together."""
    name, traits = spec.implementation, IMPLEMENTATIONS[spec.implementation]
    if spec.group_size > 1 and not traits.communicates:
        raise UsageError(
            f"{name}: got a group size of {spec.group_size}, but its replicas never exchange "
            "anything; expected 1, or an implementation that communicates"
        )
    if traits.shards_parameters:
        raise UsageError(
            f"{name}: it leaves a part of every parameter on each rank, and checkpoints hold whole "
            "ones; expected ddp or another that keeps them whole"
        )
    if traits.shards_optimizer and spec.dtype == "f16":
        raise UsageError(
            f"{name}: got dtype f16, whose loss scaling looks at whole gradients, and ranks have "
            "shares of them; expected bf16, or ddp"
        )
    if len(spec.devices) != spec.group_size:
        raise UsageError(
            f"got {len(spec.devices)} devices for {spec.group_size} replicas; expected one for each"
        )
    if spec.dtype in CUDA_DTYPES and not all(d.startswith("cuda") for d in spec.devices):
        raise UsageError(
            f"dtype {spec.dtype}: got the devices {', '.join(spec.devices)}; expected CUDA "
            f"devices, as {CUDA_DTYPES[spec.dtype]}; take bf16"
        )
    if spec.process_count == 1 and (spec.shares or spec.balance == "speed"):
        got = "balance speed" if spec.balance == "speed" else f"shares {spec.shares}"
        raise UsageError(
            f"{got}: got {name} at group size {spec.group_size}, which is one process; expected "
            "several, as shares are of processes"
        )
    if not traits.averages_parameters:
        return
    # Between two averages the parameters of the ranks differ.
    for what, every in (
        ("a checkpoint every", run.checkpoint_every),
        ("a comparison of the ranks every", run.check_sync_every),
        ("an end after", run.max_steps),
    ):
        if every is not None and every % spec.sync_every:
            raise UsageError(
                f"{what} {every} steps: {name} averages parameters every {spec.sync_every} steps, "
                f"and only then are they one model; expected a multiple of {spec.sync_every}"
            )
