"""The options of a sweep from all layers, and finishing one that was begun: by the same command
with --resume, which must not change what is measured."""

from __future__ import annotations

import shlex
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

from dpbench.architecture import make_importable
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
    if spec != as_now:
        pairs = zip(_settings(as_now).items(), _settings(spec).values(), strict=True)
        differ = [f"{name}: {was} -> {now}" for (name, was), now in pairs if was != now]
        script = earlier.spec.workload.positional_words
        raise UsageError(
            f"--resume: {earlier.folder} holds another sweep ({'; '.join(differ)}); to finish it: "
            f"{finishing_command(earlier.command, script, earlier.folder)}"
        )
    for before, now in zip(earlier.spec.workloads, spec.workloads, strict=True):
        if before.files_sha256 != now.files_sha256:
            raise UsageError(
                f"--resume: {named_files(now)} has changed since {earlier.folder} was begun; its "
                "trials would be of two things; expected the files as they were, or a new --name"
            )


def _settings(spec: SweepSpec) -> dict[str, str]:
    """What options decide, by their names, as it is typed."""
    decided = {
        "--implementations": spec.implementations,
        "--backends": spec.backends,
        "--batch-sizes": spec.batch_sizes,
        "--group-sizes": spec.group_sizes,
        "--gpus": spec.devices,
        "--nnodes": spec.nodes,
        "--data": [*dict.fromkeys(one.dataset for one in spec.workloads)],
        "--step": spec.workload.step,
        "script": shlex.join(spec.workload.script),
        "--lr-scaling": spec.workload.learning_rate_rule,
        "--repetitions": spec.repetitions,
        "--time-limit": spec.time_limit_seconds,
    }
    axes = {axis.option: axis.text(spec.values_of(name)) for name, axis in AXES.items()}
    if spec.window_seconds is not None:
        axes["--steps"] += " or more"
    return axes | {name: as_typed(value) for name, value in decided.items()}


def finishing_command(command: Sequence[str], script: Sequence[str], folder: Path) -> str:
    """The command that finishes the sweep in a folder, from the one that began it and ends with the
    words of its `script`, if it has one."""
    words = [*command[: len(command) - len(script)]]
    words += [] if "--name" in words else ["--name", folder.name]
    words += [] if "--resume" in words else ["--resume"]
    return shlex.join(["dpbench", *words, *script])


def lasting(
    records: Sequence[TrialRecord], unusable: Container[TrialSpec] = ()
) -> list[TrialRecord]:
    """The records that a resumed sweep keeps: the last one of each trial that has completed, or
    whose configuration cannot run here."""
    last = {record.trial.trial_id: record for record in records}
    return [
        record
        for record in last.values()
        if record.status is Status.COMPLETED or record.trial.configuration in unusable
    ]
