"""Measuring the user's training script: a sweep of three rows, alone, as copies, and together."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from dpbench import store
from dpbench.architecture import folder_name
from dpbench.data.user_code import with_files
from dpbench.errors import DpbenchError, UsageError
from dpbench.messages import say
from dpbench.options.script import FEWEST_STEPS, ScriptOptions
from dpbench.options.sweep import WINDOW_SECONDS
from dpbench.records.trial import Status
from dpbench.run.results import results_folder
from dpbench.run.sweep.grid import missing, plan_trials
from dpbench.run.sweep.measuring import Measurement, measure
from dpbench.run.this_machine import devices_for, machine_here, threads_for
from dpbench.specs import SweepSpec, WorkloadSpec
from dpbench.specs.traits import INDEPENDENT, OWN_BACKEND, SCRIPT
from dpbench.store import LOGS_FOLDER, StoredSweep


class ScriptUnmeasured(DpbenchError):
    """The script could not be measured on all ranks; the text says why."""


def measure_script(
    options: ScriptOptions, script: tuple[str, ...], *, embedded: bool = False
) -> StoredSweep:
    """Measure the script, and return the results folder.

    `embedded` leaves the signal handlers of the calling program alone. A row that fails has no
    further repetitions. Raises UsageError for a script that cannot be started, ScriptUnmeasured if
    it fails on all ranks.
    """
    named = _check(script)
    folder = results_folder(options.results_dir, options.name, otherwise=folder_name(named))
    store.require_free(folder)
    machine = machine_here()
    notes: list[str] = []
    devices = devices_for(machine, options.gpus, None, notes, oversubscribe=options.oversubscribe)
    asked = options.threads or int(os.environ.get("OMP_NUM_THREADS", "1"))
    spec = SweepSpec(
        workload=with_files(WorkloadSpec(architecture=named, dataset="", script=script)),
        warmup_steps=options.warmup,
        timed_steps=options.steps or FEWEST_STEPS,
        window_seconds=None if options.steps else WINDOW_SECONDS,
        threads_per_replica=threads_for(
            asked, machine.cores, len(devices), oversubscribe=options.oversubscribe
        ),
        implementations=(SCRIPT, INDEPENDENT),
        largest_group_only=(INDEPENDENT,),
        backends=(OWN_BACKEND,),
        group_sizes=(len(devices),),
        batch_sizes=(0,),
        devices=devices,
        repetitions=options.repetitions,
        time_limit_seconds=options.time_limit,
        phase_steps=0,
        gradient_steps=0,
    )
    given = options.model_dump(include={*ScriptOptions.model_fields}, exclude_unset=True)
    job = Measurement(
        spec=spec,
        folder=folder,
        command=["explain", *ScriptOptions.model_validate(given).words(), *script],
        embedded=embedded,
        quiet=options.quiet,
        notes=notes,
        stop_after_failure=True,
    )
    stored = measure(job, machine, partial(missing, plan_trials(spec)))
    say(f"records are in {stored.folder}")
    for record in stored.records:
        if record.status is not Status.COMPLETED and record.trial.implementation == SCRIPT:
            kept = f"; its output is in {stored.folder / LOGS_FOLDER}"
            raise ScriptUnmeasured(f"{named}: {record.reason}{kept}")
    return stored


def _check(script: Sequence[str]) -> str:
    """The name of the script, if there is one; raises UsageError."""
    if script[0] != "-m":
        if not Path(script[0]).is_file():
            raise UsageError(f"{script[0]}: no such script")
        return Path(script[0]).name
    sys.path.insert(0, str(Path.cwd()))  # as python -m does
    try:
        if find_spec(script[1]) is None:
            raise UsageError(f"-m {script[1]}: no such module")
    except ModuleNotFoundError as error:
        raise UsageError(f"-m {script[1]}: {error}") from None
    finally:
        sys.path.remove(str(Path.cwd()))
    return script[1]
