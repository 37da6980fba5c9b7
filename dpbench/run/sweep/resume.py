"""The options of a sweep from all layers, and finishing one that was begun.

`--resume` takes the options that are stored in the folder, so that files of options may change
meanwhile; what is typed with it overrides them, and must not change what is measured.
"""

from __future__ import annotations

import shlex
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpbench import store
from dpbench.analysis.configuration import effective_status
from dpbench.architecture import make_importable
from dpbench.codec import differing_fields
from dpbench.data.user_code import CODE_OPTIONS as CODE
from dpbench.data.user_code import change_words, code_in
from dpbench.errors import UsageError
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
    """The options that were typed, above those of a file, a preset, or the sweep to resume.

    Raises UsageError, and StoreError for a damaged results folder.
    """
    typed = {name: value for name, value in given.items() if name not in LAYERS}
    stored = _stored_layer(given)
    layers = file_layers(SweepOptions, given, presets.find) if stored is None else [stored]
    top = Layer("", typed)
    named = {name: value for layer in (*layers, top) for name, value in layer.values.items()}
    make_importable(*(_text(named.get(name)) for name in CODE))
    options = read(SweepOptions, *layers, top)
    if stored is None and (preset := given.get("preset")) is not None:
        words = SweepOptions(**layers[0].values).words()
        say(f"--preset {preset}: {shlex.join(words)}")
    return options


def _text(value: Any) -> str | None:
    return None if value is None else as_typed(value)


def _stored_layer(given: Given) -> Layer | None:
    """The options of the sweep to resume; None where there is none, as on nodes without records.

    Raises UsageError for the user's code that is stored and was not typed again: the folder may
    come from somebody else.
    """
    if not (given.get("resume") and given.get("name")):
        return None
    folder = Path(str(given.get("results_dir", "results"))) / str(given["name"])
    if not store.holds_sweep(folder):
        return None
    stored = store.load_options(folder)
    texts = {name: _text(stored.get(name)) for name in CODE}
    for option, named in code_in(texts).items():
        if option not in given:
            raise UsageError(
                f"--resume: the sweep in {folder} uses --{option} {named}, whose code would be "
                f"imported; if you trust it, give --{option} {shlex.quote(named)} as well"
            )
    if unread := [f"--{name} {given[name]}" for name in LAYERS if name in given]:
        say(f"{' and '.join(unread)}: not read, as --resume takes the options of {folder}")
    return Layer(str(folder), stored)


def check_resumable(earlier: StoredSweep, spec: SweepSpec) -> None:
    """Raise UsageError if the stored sweep is not the one to be finished."""
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
            f"it, leave these options out: "
            f"{finishing_command(earlier.folder, store.load_options(earlier.folder))}"
        )
    for before, now in zip(earlier.spec.workloads, spec.workloads, strict=True):
        if before.files_sha256 != now.files_sha256:
            raise UsageError(
                f"--resume: {change_words(before, now, f'since {earlier.folder} was begun')}; its "
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


def finishing_command(folder: Path, options: Given) -> str:
    """The command that finishes the sweep in a folder, where its options are stored.

    It names the user's code again, which --resume does not import unless it is typed.
    """
    words = ["dpbench", "sweep", "--resume", "--name", folder.name]
    if folder.parent != Path("results"):
        words += ["--results-dir", str(folder.parent)]
    for option, named in code_in({name: _text(options.get(name)) for name in CODE}).items():
        words += [f"--{option}", named]
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
