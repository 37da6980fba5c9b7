"""The commands that print what they measure: `sweep` and `comm`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench.cli.results import show, show_rows
from dpbench.cli.signature import command
from dpbench.cli.streams import say_preparing
from dpbench.messages import say
from dpbench.options.comm import CommOptions
from dpbench.options.reading import read_options
from dpbench.options.sweep import SweepOptions

if TYPE_CHECKING:
    from dpbench.report.answer import Answer
    from dpbench.store import StoredCollectives, StoredSweep

OWN_SCRIPT = "your_script.py"
"""What comes after a first look at this machine."""


@command(SweepOptions)
def sweep(typed: dict[str, Any]) -> Answer | int:
    """Benchmark implementations, backends, group sizes and batch sizes.

    dpbench sweep --backends gloo,nccl --batch-sizes 32,64 --gpus 2
    dpbench sweep --backends gloo,shm --gpus 2 train.py --epochs 1

    Exit status: 0 all rows completed or skipped, at least one that you asked for
    completed; 1 some row failed, or only the baseline completed; 2 usage;
    6 wrong gradients in some row; 130 interrupted.
    """
    say_preparing(typed)
    from dpbench.launch.external_launchers import find_placement, remove_torchrun_variables

    placed = find_placement(os.environ)
    remove_torchrun_variables(os.environ)
    if placed and placed.local_rank:
        return 0  # the node's first process starts the ranks of every trial
    if placed and placed.local_size > 1:
        typed = {"gpus": str(placed.local_size), **typed}
    if placed or "nnodes" in typed:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of hosts without a name
    options = read_options(SweepOptions, typed)
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


@command(CommOptions)
def comm(typed: dict[str, Any]) -> int:
    """Measure collectives by message size: latency and bandwidth.

    dpbench comm --backends gloo,shm --gpus 2

    Every result is checked before it is timed.

    Exit status: 0 all measurements completed; 1 some failed; 2 usage; 130 interrupted.
    """
    say_preparing(typed)
    options = read_options(CommOptions, typed)
    from dpbench.records.trial import Status
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.collectives import measure_collectives

    progress = TrialProgress(quiet=options.quiet, noun="measurement")
    stored = measure_collectives(options, progress)
    show_measured(stored, options)
    return int(any(record.status is not Status.COMPLETED for record in stored.records))


def show_measured(
    stored: StoredSweep | StoredCollectives,
    options: CommOptions | SweepOptions,
    *,
    to_explain: Path | str | None = None,
    verbose: bool = False,
) -> None:
    """Prints what was measured, and writes its page; says where the output of failures is."""
    from dpbench.analysis.analyze import analyze
    from dpbench.records.trial import Status
    from dpbench.report.page import page_path, write_page
    from dpbench.store import LOGS_FOLDER

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
