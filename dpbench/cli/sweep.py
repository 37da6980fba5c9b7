"""`dpbench sweep`: measure a grid of configurations and print a row for each."""

from __future__ import annotations

import os
from typing import Any

from dpbench.cli.signature import command
from dpbench.cli.streams import say_preparing
from dpbench.messages import print_result, say, to_stderr
from dpbench.options.reading import read_options
from dpbench.options.sweep import SweepOptions

OWN_SCRIPT = "your_script.py"
"""What comes after a first look at this machine."""


@command(SweepOptions)
def sweep(typed: dict[str, Any]) -> int:
    """Benchmark implementations, backends, group sizes and batch sizes.

    dpbench sweep --backends gloo,nccl --batch-sizes 32,64 --gpus 2
    dpbench sweep --backends gloo,shm --gpus 2 train.py --epochs 1

    Exit status: 0 all rows completed or skipped, at least one that you asked for
    completed; 1 some row failed, or only the baseline completed; 2 usage;
    6 wrong gradients in some row; 130 interrupted.
    """
    say_preparing(typed)
    from dpbench.launch.external_launchers import find_placement, remove_torchrun_variables
    from dpbench.run import presets

    placed = find_placement(os.environ)
    remove_torchrun_variables(os.environ)
    if placed and placed.local_rank:
        return 0  # the node's first process starts the ranks of every trial
    if placed and placed.local_size > 1:
        typed = {"gpus": str(placed.local_size), **typed}
    if placed or "nnodes" in typed:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of hosts without a name
    options = read_options(SweepOptions, typed, presets.find)
    from dpbench.cli.show_results import show_measured
    from dpbench.launch.signed_store import VARIABLE
    from dpbench.rendezvous.process_group import DEBUG_VARIABLES
    from dpbench.report.answers.listing import plan_answer
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
    planned = options.replace(oversubscribe=True) if options.dry_run else options
    with plan_sweep(planned, placement, token) as plan:
        if options.dry_run:
            rows, summary = describe_plan(plan, oversubscribe=options.oversubscribe)
            say(*plan.notes)
            print_result(plan_answer(rows, summary).render(as_json=options.as_json))
            if options.as_json:
                to_stderr(summary)
            return 0
        if plan.here.number:
            follow(plan)
            return 0
        stored = measure(plan, progress)
    to_explain = OWN_SCRIPT if typed.get("preset") == "quick" else stored.folder
    show_measured(stored, options, to_explain=to_explain, verbose=options.verbose)
    return exit_status(stored.records, options.measured_implementations)
