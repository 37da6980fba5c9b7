"""`dpbench calibrate`: how noisy is this machine, and what can a check see on it?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbench.cli import sweep_grammar as grammar
from dpbench.cli.check import AXES, is_typed
from dpbench.cli.check_grammar import BatchSizes, Name, Steps
from dpbench.cli.messages import say, warn
from dpbench.errors import UsageError

if TYPE_CHECKING:
    from dpbench.cli.gate_sweep import Target
    from dpbench.store import StoredSweep


def calibrate(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="A results folder with repetitions. Without it they are measured now.",
            show_default=False,
        ),
    ] = None,
    implementations: grammar.Implementations = "ddp",
    backends: grammar.Backends = None,
    batch_sizes: BatchSizes = "64",
    group_sizes: grammar.GroupSizes = None,
    repetitions: Annotated[
        str, typer.Option(metavar="N", help="Fresh runs of every row, at least 4.")
    ] = "10",
    arch: grammar.Arch = "mnist_cnn",
    step: grammar.Step = None,
    data: grammar.Data = None,
    data_dir: grammar.DataDir = None,
    steps: Steps = "50",
    warmup: grammar.Warmup = "10",
    gpus: grammar.Gpus = None,
    threads: grammar.Threads = None,
    oversubscribe: grammar.Oversubscribe = False,
    name: Name = None,
    results_dir: grammar.ResultsDir = Path("results"),
    as_json: Annotated[
        bool, typer.Option("--json", rich_help_panel=grammar.OUTPUT, help="The same as JSON.")
    ] = False,
    quiet: grammar.Quiet = False,
    synthetic: grammar.Synthetic = False,
) -> int:
    """Measure how much runs of the same thing differ here, and which tolerance that supports.

    dpbench calibrate --backends gloo,shm --gpus 2
    """
    typed = locals()
    measuring = (*AXES, "repetitions", "name", "results_dir", "data_dir", "quiet")
    if folder is not None:
        for key in measuring:
            if is_typed(context, key):
                option = f"--{key.replace('_', '-')}"
                raise UsageError(f"{option} has no effect, as {folder} is measured; leave it out")
    from dpbench.cli.gate_sweep import Target

    target = Target(
        name=name, results_dir=results_dir, data_dir=data_dir, quiet=quiet, synthetic=synthetic
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

    if parsed.settings.effort.repetitions < FEWEST:
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
