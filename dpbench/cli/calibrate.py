"""`dpbench calibrate`: how noisy is this machine, and what can a check see on it?"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import typer

from dpbench import units
from dpbench.cli.check import AXES, is_typed
from dpbench.cli.options import command
from dpbench.errors import UsageError
from dpbench.messages import say, warn
from dpbench.run.gate.options import CalibrateOptions
from dpbench.settings import Texts
from dpbench.values import duration_seconds

if TYPE_CHECKING:
    from dpbench.run.gate.sweep import MeasuredFolder
    from dpbench.specs import SweepSpec
    from dpbench.store import StoredSweep


@command(CalibrateOptions)
def calibrate(context: typer.Context, typed: Texts) -> int:
    """Measure run-to-run variation and the tolerance that it supports.

    dpbench calibrate --backends gloo,shm --gpus 2
    """
    folder, as_json = typed["folder"], typed["as_json"]
    measuring = (*AXES, "repetitions", "name", "results_dir", "data_dir", "quiet")
    if folder is not None:
        for key in measuring:
            if is_typed(context, key):
                option = f"--{key.replace('_', '-')}"
                raise UsageError(f"{option} has no effect, as {folder} is measured; leave it out")
    from dpbench.run.gate.sweep import MeasuredFolder

    target = MeasuredFolder(
        **{name: typed[name] for name in ("name", "results_dir", "data_dir", "quiet", "synthetic")}
    )
    from dpbench.store import load

    again, pause = typed["again"], typed["pause"]
    if pause is not None and (folder is not None or again is not None):
        raise UsageError("--pause measures two occasions now; leave DIR and --again out")
    earlier = None if again is None else load(Path(again))
    if folder is not None:
        return _report(load(folder), earlier, as_json=as_json, measured=False)
    options = {key: typed[key] for key in (*AXES, "repetitions")}
    stored = _measure(options, target)
    if pause is not None:
        seconds = duration_seconds("--pause", pause)
        say(f"pausing for {units.seconds(seconds)} until the second occasion")
        sleep(seconds)
        later = replace(target, name=f"{stored.folder.name}-again")
        earlier, stored = stored, _measure(options, later)
    return _report(stored, earlier, as_json=as_json, measured=True)


def _measure(options: dict[str, Any], target: MeasuredFolder) -> StoredSweep:
    from dpbench.grid import all_trials
    from dpbench.run.gate.sweep import build_sweep, parse_sweep
    from dpbench.run.sweep.measuring import measure

    parsed = parse_sweep(options)
    from dpbench.analysis.comparisons.calibration import FEWEST

    if parsed.effort.repetitions < FEWEST:
        raise UsageError(
            f"--repetitions {options['repetitions']}: two halves with a spread each take at least "
            f"{FEWEST}; 10 is the default"
        )
    spec, machine = build_sweep(parsed, target)
    folder = target.folder("calibrate")
    stored = measure(target.measurement(spec, folder), machine, all_trials(spec))
    say(f"records are in {folder}")
    return stored


def _report(
    stored: StoredSweep, earlier: StoredSweep | None, *, as_json: bool, measured: bool
) -> int:
    from dpbench.analysis.comparisons.calibration import calibrate as calibrated
    from dpbench.analysis.comparisons.matching import Side
    from dpbench.report.calibration import answer
    from dpbench.run.sweep.execution import exit_status

    warn(*stored.warnings)
    before = None
    if earlier is not None:
        warn(*earlier.warnings)
        before = Side(
            label=str(earlier.folder), records=earlier.records, environments=earlier.environments
        )
    found = calibrated(stored.records, stored.environments, before)
    shown = answer(found, str(stored.folder), _beside(stored.spec))
    typer.echo(shown.shown(as_json=as_json), nl=False)
    return exit_status(stored.records) if measured else 0


def _beside(spec: SweepSpec) -> str:
    """The options of a check that measures both sides in one job: only a file of the user's has
    another revision."""
    from dpbench.architecture import is_theirs

    for workload in spec.workloads:
        if is_theirs(workload.architecture):
            return f"--arch {shlex.quote(workload.architecture)} --against-ref origin/main"
    return "--against torch-ddp"
