"""The rest of a sweep: the trials without a record, and the command that runs them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dpbench import units
from dpbench.folders.results_folder import StoredSweep
from dpbench.messages import escaped
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import SweepSpec, TrialSpec
from dpbench.specs.sweep import plan_trials
from dpbench.specs.workload import positional_words


def missing(trials: Sequence[TrialSpec], records: Sequence[TrialRecord]) -> list[TrialSpec]:
    """The trials that have no record yet, in their order."""
    done = {record.trial.trial_id for record in records}
    return [trial for trial in trials if trial.trial_id not in done]


def finishing_command(command: Sequence[str], spec: SweepSpec, name: str) -> str:
    """The command that finishes the sweep in the folder of that name, from the one that began it,
    whose last words are those of the training script, if it measures one."""
    script = positional_words(spec.base.workload.script)
    words = ["dpbench", *command[: len(command) - len(script)]]
    words += [] if "--name" in words else ["--name", name]
    words += [] if "--resume" in words else ["--resume"]
    return shlex.join([*words, *script])


def unfinished_warning(sweep: StoredSweep) -> tuple[str, ...]:
    """The warning that trials of a sweep are missing, with the command that runs them; () if none
    are. Configurations that were skipped count neither as run nor as missing."""
    run = {one.trial.trial_id for one in sweep.records if one.status is not Status.SKIPPED}
    skipped = {one.trial.configuration for one in sweep.records if one.status is Status.SKIPPED}
    left = missing(plan_trials(sweep.spec), sweep.records)
    waiting = sum(trial.configuration not in skipped for trial in left)
    if not waiting:
        return ()
    warning = f"Unfinished: {len(run):,} of {units.counted(len(run) + waiting, 'trial')}"
    if sweep.command[:1] == ("sweep",):
        again = finishing_command(sweep.command, sweep.spec, sweep.folder.name)
        warning += f"; to finish: {escaped(again)}"
    return (warning,)
