"""The options of a sweep from all layers, and finishing one that was begun: by the same command
with --resume, which must not change what is measured."""

from __future__ import annotations

import shlex
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpbench.analysis.configuration import effective_status
from dpbench.architecture import make_importable
from dpbench.codec import differing_fields
from dpbench.data.user_code import named_files
from dpbench.errors import StoreError, UsageError
from dpbench.messages import say
from dpbench.options.bridge import Given, Layer, as_typed, file_layers, read
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status, TrialRecord
from dpbench.run import presets
from dpbench.specs import AXES, SweepSpec, TrialSpec
from dpbench.store import StoredSweep

LAYERS = ("preset", "config")
"""Options that name a layer of options."""
OPTIONS_OF_FIELDS = {
    "implementations": "--implementations",
    "largest_group_only": "--implementations",
    "backends": "--backends",
    "group_sizes": "--group-sizes",
    "batch_sizes": "--batch-sizes",
    "devices": "--gpus",
    "window_seconds": "--steps",
    "repetitions": "--repetitions",
    "time_limit_seconds": "--time-limit",
    "dataset": "--data",
    "step": "--step",
    "learning_rate_rule": "--lr-scaling",
    "nodes": "--nnodes",
}
"""The option that decides a field of a SweepSpec, beside the axes."""


def read_options(given: Given) -> SweepOptions:
    """The options that were typed, above those of a file or a preset; raises UsageError."""
    typed = {name: value for name, value in given.items() if name not in LAYERS}
    layers = file_layers(SweepOptions, given, presets.find)
    top = Layer("", typed)
    named = {name: value for layer in (*layers, top) for name, value in layer.values.items()}
    code = (named.get(name) for name in ("arch", "step", "data"))
    make_importable(*(as_typed(value) for value in code if value is not None))
    options = read(SweepOptions, *layers, top)
    if (preset := given.get("preset")) is not None:
        words = SweepOptions(**layers[0].values).words()
        say(f"--preset {preset}: {shlex.join(words)}")
    return options


def check_resumable(earlier: StoredSweep, spec: SweepSpec) -> None:
    """Raise UsageError if the stored sweep is not the one to be finished, and StoreError if another
    command measured it."""
    if earlier.command[:1] != ("sweep",):
        raise StoreError(
            f"{earlier.folder}: only dpbench sweep can be resumed, and another command made it; "
            "choose another --name"
        )
    hashes = {one.architecture: one.files_sha256 for one in spec.workloads}
    as_now = earlier.spec.with_workloads(
        [
            replace(one, files_sha256=hashes.get(one.architecture, one.files_sha256))
            for one in earlier.spec.workloads
        ]
    )
    if differences := _differences(spec, as_now):
        raise UsageError(
            f"--resume: {earlier.folder} holds another sweep ({'; '.join(differences)}); to finish "
            f"it: {finishing_command(earlier.command, earlier.folder)}"
        )
    for before, now in zip(earlier.spec.workloads, spec.workloads, strict=True):
        if before.files_sha256 != now.files_sha256:
            raise UsageError(
                f"--resume: {named_files(now)} has changed since {earlier.folder} was begun; its "
                "trials would be of two things; expected the files as they were, or a new --name"
            )


def _differences(spec: SweepSpec, earlier: SweepSpec) -> list[str]:
    """Lists "--batch-sizes: 32 -> 64" for everything that an option decides."""
    words = []
    for name, axis in AXES.items():
        was, now = axis.text(earlier.values_of(name)), axis.text(spec.values_of(name))
        if was != now:
            words.append(f"{axis.option}: {was} -> {now}")
    of_workload = [name for name in AXES if hasattr(spec.workload, name)]
    workload = _with(spec.workload, earlier.workload, of_workload)
    # What follows from the axes would say the same again.
    follows = ["axes", "compared", *(("more_workloads", "window_seconds") if words else ())]
    if spec.implementations != earlier.implementations:
        follows.append("largest_group_only")
    rest = replace(spec, workload=workload)
    rest = _with(rest, earlier, [*follows, *(name for name in AXES if hasattr(spec, name))])
    return [*words, *differing_fields(rest, earlier, OPTIONS_OF_FIELDS)]


def _with(spec: Any, other: Any, names: Sequence[str]) -> Any:
    return replace(spec, **{name: getattr(other, name) for name in names})


def finishing_command(command: Sequence[str], folder: Path) -> str:
    """The command that finishes the sweep in a folder, from the one that began it."""
    words = ["dpbench", *command]
    words += [] if "--name" in words else ["--name", folder.name]
    words += [] if "--resume" in words else ["--resume"]
    return shlex.join(words)


def lasting(
    records: Sequence[TrialRecord], unusable: Container[TrialSpec] = ()
) -> list[TrialRecord]:
    """The records that a resumed sweep keeps: the last one of each trial that has completed, or
    whose configuration cannot run here."""
    last = {record.trial.trial_id: record for record in records}
    return [
        record
        for record in last.values()
        if effective_status(record) is Status.COMPLETED or record.trial.configuration in unusable
    ]
