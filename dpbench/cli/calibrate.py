"""`dpbench calibrate`: how noisy is this machine, and what can a check see on it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from dpbench.cli.check import AXES, is_typed
from dpbench.cli.check_options import CalibrateOptions
from dpbench.cli.messages import say, warn
from dpbench.cli.options import Texts, command
from dpbench.errors import UsageError

if TYPE_CHECKING:
    from dpbench.cli.gate_sweep import Target
    from dpbench.store import StoredSweep


@command(CalibrateOptions)
def calibrate(context: typer.Context, typed: Texts) -> int:
    """Measure how much runs of the same thing differ here, and which tolerance that supports.

    dpbench calibrate --backends gloo,shm --gpus 2
    """
    folder, as_json = typed["folder"], typed["as_json"]
    measuring = (*AXES, "repetitions", "name", "results_dir", "data_dir", "quiet")
    if folder is not None:
        for key in measuring:
            if is_typed(context, key):
                option = f"--{key.replace('_', '-')}"
                raise UsageError(f"{option} has no effect, as {folder} is measured; leave it out")
    from dpbench.cli.gate_sweep import Target

    target = Target(
        **{name: typed[name] for name in ("name", "results_dir", "data_dir", "quiet", "synthetic")}
    )
    if folder is None:
        stored = _measure({key: typed[key] for key in (*AXES, "repetitions")}, target)
    else:
        from dpbench.store import load

        stored = load(folder)
    return _report(stored, as_json=as_json, measured=folder is None)


def _measure(options: dict[str, Any], target: Target) -> StoredSweep:
    from dpbench.cli.gate_sweep import parse_sweep
    from dpbench.cli.measuring import all_trials, measure
    from dpbench.cli.sweep_spec import build
    from dpbench.cli.this_machine import machine_for

    parsed = parse_sweep(options)
    from dpbench.analysis.calibration import FEWEST

    if parsed.effort.repetitions < FEWEST:
        raise UsageError(
            f"--repetitions {options['repetitions']}: two halves with a spread each take at least "
            f"{FEWEST}; 10 is the default"
        )
    machine = machine_for(synthetic=target.synthetic)
    spec, notes = build(parsed, machine, data_dir=target.data_dir)
    for note in notes:
        say(note)
    folder = target.folder("calibrate")
    stored = measure(target.measurement(spec, folder), machine, all_trials(spec))
    say(f"records are in {folder}")
    return stored


def _report(stored: StoredSweep, *, as_json: bool, measured: bool) -> int:
    from dpbench.analysis.calibration import calibrate as calibrated
    from dpbench.cli.sweep_run import exit_status
    from dpbench.report.calibration import answer

    warn(*stored.warnings)
    found = calibrated(stored.records, stored.environments)
    typer.echo(answer(found, str(stored.folder)).shown(as_json=as_json), nl=False)
    return exit_status(stored.records) if measured else 0
