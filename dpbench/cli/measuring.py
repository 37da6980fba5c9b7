"""The commands that measure or train: `sweep`, `explain`, `check`, `comm` and `train`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.cli.results import show, show_rows
from dpbench.cli.signature import command
from dpbench.cli.streams import say_preparing
from dpbench.messages import say
from dpbench.options.check import CheckOptions
from dpbench.options.comm import CommOptions
from dpbench.options.explain import ExplainOptions
from dpbench.options.sweep import SweepOptions
from dpbench.options.train import TrainOptions

if TYPE_CHECKING:
    from dpbench.folders import StoredCollectives, StoredSweep
    from dpbench.report.answer import Answer

OWN_SCRIPT = "your_script.py"
"""What comes after a first look at this machine."""


@command(SweepOptions, imports_torch=True)
def sweep(options: SweepOptions) -> Answer | int:
    """Benchmark implementations, backends, group sizes and batch sizes.

    dpbench sweep --backends gloo,nccl --batch-sizes 32,64 --gpus 2
    dpbench sweep --backends gloo,shm --gpus 2 train.py --epochs 1

    Exit status: 0 all rows completed or skipped, at least one that you asked for
    completed; 1 some row failed, or only the baseline completed; 2 usage;
    6 wrong gradients in some row; 130 interrupted.
    """
    from dpbench.rendezvous.placement import find_placement, remove_placement

    placed = find_placement(os.environ)
    remove_placement(os.environ)
    if placed and placed.local_rank:
        return 0  # the node's first process starts the ranks of every trial
    if placed and placed.local_size > 1 and options.gpus is None:
        options = options.model_copy(update={"gpus": placed.local_size})
    if placed or options.nnodes is not None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of hosts without a name
    from dpbench.launch.signed_store import VARIABLE
    from dpbench.rendezvous.process_group import DEBUG_VARIABLES
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.sweep.dry_run import describe_plan
    from dpbench.run.sweep.measuring import exit_status, follow, measure
    from dpbench.run.sweep.nodes import node_placement
    from dpbench.run.sweep.plan import plan_sweep

    placement = node_placement(options, placed)
    if options.debug:  # ranks inherit it with the environment, and each trial records it
        os.environ.update(DEBUG_VARIABLES)
        words = ", ".join(f"{name}={value}" for name, value in DEBUG_VARIABLES.items())
        say(f"--debug: {words}; logs of trials that fail are kept")
    token = os.environ.pop(VARIABLE, "").strip()  # ranks run user code, so they must not see it
    progress = TrialProgress(quiet=options.quiet)
    # A plan may be for a machine with more devices.
    planned = options.model_copy(update={"oversubscribe": True}) if options.dry_run else options
    with plan_sweep(planned, placement, token) as plan:
        if options.dry_run:
            return describe_plan(plan, options)
        if plan.here.number:
            follow(plan)
            return 0
        stored = measure(plan, progress)
    to_explain = OWN_SCRIPT if options.preset == "quick" else stored.folder
    show_measured(stored, options, to_explain=to_explain, verbose=options.verbose)
    return exit_status(stored.records, options.measured_implementations)


@command(ExplainOptions)
def explain(options: ExplainOptions) -> Answer:
    """Show where scaling efficiency is lost, and what to try.

    dpbench explain --gpus 4 train.py --epochs 1

    dpbench explain results/before-the-change --group-size 2

    A training script is measured as it is, on one rank, as copies, and on all ranks.
    Without options that choose rows, explains the fastest one with several replicas. Include
    independent in the sweep to separate contention from the wrapper.

    Exit status: 0 explained; 1 the script failed; 2 usage; 4 inconclusive: too
    noisy for an efficiency; 130 interrupted.
    """
    if options.script_and_arguments:
        say_preparing(quiet=options.quiet)
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.explaining import explain

    return explain(options, TrialProgress(quiet=options.quiet))


@command(CheckOptions)
def check(options: CheckOptions) -> Answer:
    """Check for a performance regression, in CI or by hand.

    dpbench check --arch model.py:make --against-ref origin/main --tolerance 5%
    dpbench check --against-python ../torch-2.15/bin/python train.py --epochs 1

    Compares your code with a Git revision (--against-ref) or another Python
    (--against-python), implementations (--against), or stored sweeps (--baseline).

    Exit status: 0 pass, or inconclusive without --strict; 1 some row failed;
    2 usage; 3 regressed; 4 inconclusive with --strict; 5 no baseline, or one
    that cannot be compared; 6 wrong gradients; 130 interrupted.
    """
    if options.baseline is None:
        say_preparing(quiet=options.quiet)
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.check.checking import run_check

    return run_check(options, TrialProgress(quiet=options.quiet))


@command(CommOptions, imports_torch=True)
def comm(options: CommOptions) -> int:
    """Measure collectives by message size: latency and bandwidth.

    dpbench comm --backends gloo,shm --gpus 2

    Every result is checked before it is timed.

    Exit status: 0 all measurements completed; 1 some failed; 2 usage; 130 interrupted.
    """
    from dpbench.records.trial import Status
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.collectives import measure_collectives

    progress = TrialProgress(quiet=options.quiet, noun="measurement")
    stored = measure_collectives(options, progress)
    show_measured(stored, options)
    return int(any(record.status is not Status.COMPLETED for record in stored.records))


@command(TrainOptions)
def train(options: TrainOptions) -> int:
    """Train a model, with evaluation, checkpoints and resume.

    dpbench train --gpus 2 --backend shm

    Exit status: 0 trained; 1 a rank failed; 2 usage; 130 interrupted. Started by
    torchrun, dpbench launch, srun or mpirun, it joins their ranks.
    """
    from dpbench.rendezvous.placement import find_placement

    if "RANK" not in os.environ and (placed := find_placement(os.environ)):
        os.environ.update(placed.variables)
    if "RANK" in os.environ:
        from dpbench.run.training.launched import train_in_launch

        train_in_launch(options)
    else:
        from dpbench.run.training.running import train_here

        train_here(options)
    return 0


def show_measured(
    stored: StoredSweep | StoredCollectives,
    options: CommOptions | SweepOptions,
    *,
    to_explain: Path | str | None = None,
    verbose: bool = False,
) -> None:
    """Prints what was measured, and writes its page; says where the output of failures is."""
    from dpbench.analysis.analyze import analyze
    from dpbench.folders import LOGS_FOLDER
    from dpbench.records.trial import Status
    from dpbench.report.page import page_path, write_page

    analysis, page = analyze(stored), page_path(stored.folder)
    if options.as_json:
        show_rows(analysis, "json")
        say(f"records are in {stored.folder}")
    else:
        show(analysis, page=page, to_explain=to_explain, verbose=verbose)
    write_page(page, analysis, charts=options.charts)
    logs, fine = stored.folder / LOGS_FOLDER, (Status.COMPLETED, Status.SKIPPED)
    if logs.is_dir() and any(record.status not in fine for record in stored.records):
        say(f"the output of trials that failed is in {logs}")
