"""A sweep that is to be measured: its specification, its folder, and what is stored of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench import store
from dpbench.architecture import LONGEST_FOLDER_NAME, folder_name
from dpbench.codec import differing_fields
from dpbench.data.user_code import named_files
from dpbench.errors import StoreError, UsageError
from dpbench.launch.machine import Machine
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status, TrialRecord
from dpbench.run.results import results_folder
from dpbench.run.sweep.grid import plan_trials
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.run.this_machine import machine_here
from dpbench.specs import SweepSpec, TrialSpec
from dpbench.store import StoredSweep

if TYPE_CHECKING:
    from dpbench.launch.nodes import Team


@dataclass(frozen=True, kw_only=True)
class Job:
    """A sweep, and how it is to be measured."""

    spec: SweepSpec
    machine: Machine
    folder: Path
    command: Sequence[str]
    """The command line after "dpbench"."""
    data_dir: Path | None = None
    earlier: StoredSweep | None = None
    """What --resume found in the folder; None for a new folder."""
    stop_after_failure: bool = False
    notes: Sequence[str] = ()
    """Notes that the user must see once it is known that the sweep can run."""
    team: Team | None = None
    """The nodes of a sweep over several."""

    @cached_property
    def trials(self) -> tuple[TrialSpec, ...]:
        """The plan: all trials in their order."""
        return plan_trials(self.spec)

    @property
    def to_finish(self) -> str | None:
        """The command that finishes a sweep after an interrupt; other commands have none."""
        if self.command[:1] != ["sweep"]:
            return None
        again = finishing_command(self.command, self.spec, self.folder.name)
        return f"on every node, as before: {again}" if self.team else again


def prepare(
    options: SweepOptions,
    folder: Path,
    earlier: StoredSweep | None,
    note: Callable[[str], None],
    team: Team | None = None,
) -> Job:
    """The sweep of these options on this machine, or on the nodes of a `team`.

    `note` hears what a search for the largest batch finds. Raises UsageError if the machines cannot
    measure the sweep, or if it is not the one to resume.
    """
    machine = machine_here()
    if team is None and options.searches_batch:
        from dpbench.run.sweep.largest_batch import with_largest

        options = with_largest(options, machine, note)
    spec, notes = build_sweep_spec(options, machine, () if team is None else team.nodes)
    if earlier is not None:
        _check_resumable(earlier, spec)
        notes = (*(f"warning: {warning}" for warning in earlier.warnings), *notes)
    return Job(
        spec=spec,
        machine=machine,
        folder=folder,
        command=["sweep", *options.words()],
        data_dir=options.data_dir,
        earlier=earlier,
        stop_after_failure=options.stop_after_failure,
        notes=notes,
        team=team,
    )


def find_folder(options: SweepOptions) -> tuple[Path, StoredSweep | None]:
    """The folder of a sweep, and the sweep that --resume finds in it. Raises StoreError for a new
    folder that already exists, or a missing one to resume."""
    names = options.arch if options.script is None else (Path(options.script).name,)
    named = "-".join(map(folder_name, names))[:LONGEST_FOLDER_NAME]
    folder = results_folder(options.results_dir, options.name, otherwise=named)
    if options.resume:
        return folder, store.load(folder)
    store.require_free(folder)
    return folder, None


def _check_resumable(earlier: StoredSweep, spec: SweepSpec) -> None:
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
        names = (line.partition(":")[0] for line in differing_fields(spec, as_now))
        raise UsageError(
            f"--resume: {earlier.folder} holds another sweep, with other "
            f"{', '.join(name for name in names if name != 'compared')}; to finish it: "
            f"{finishing_command(earlier.command, earlier.spec, earlier.folder.name)}"
        )
    for before, now in zip(earlier.spec.workloads, spec.workloads, strict=True):
        if before.files_sha256 != now.files_sha256:
            raise UsageError(
                f"--resume: {named_files(now)} has changed since {earlier.folder} was begun; its "
                "trials would be of two things; expected the files as they were, or a new --name"
            )


def finishing_command(command: Sequence[str], spec: SweepSpec, name: str) -> str:
    """The command that finishes the sweep in the folder of that name, from the one that began it,
    whose last words are those of the training script, if it measures one."""
    script = spec.workload.positional_words
    words = ["dpbench", *command[: len(command) - len(script)]]
    words += [] if "--name" in words else ["--name", name]
    words += [] if "--resume" in words else ["--resume"]
    return shlex.join([*words, *script])


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
