"""`dpbench sweep`: measure a grid of configurations and print a row for each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dpbench.errors import UsageError
from dpbench.messages import print_result, say, to_stderr
from dpbench.options.bridge import command, read_options
from dpbench.options.sweep import SweepOptions

if TYPE_CHECKING:
    from dpbench.launch.placement import Placement


@command(SweepOptions)
def sweep(typed: dict[str, Any]) -> int:
    """Benchmark implementations, backends, group sizes and batch sizes.

    dpbench sweep --backends gloo,nccl --batch-sizes 32,64 --gpus 2
    dpbench sweep --backends gloo,shm --gpus 2 train.py --epochs 1

    Exit status: 0 all rows completed or skipped, at least one that you asked for
    completed; 1 some row failed, or only the baseline completed; 2 usage;
    6 wrong gradients in some row; 130 interrupted.
    """
    from dpbench.launch.placement import find_placement, remove_torchrun_variables
    from dpbench.run import presets

    placed = find_placement(os.environ)
    remove_torchrun_variables(os.environ)
    if placed and placed.local_rank:
        return 0  # the node's first process starts the ranks of every trial
    if placed and placed.local_size > 1:
        typed = {"gpus": str(placed.local_size), **typed}
    if placed or "nnodes" in typed:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of hosts without a name
    status = _sweep(read_options(SweepOptions, typed, presets.find), placed)
    if typed.get("preset") == "quick" and not {"as_json", "dry_run"} & typed.keys():
        print_result("Next: dpbench explain your_script.py\n")
    return status


def _sweep(options: SweepOptions, placed: Placement | None) -> int:
    from dpbench.cli.show_results import require_columns, show_sweep
    from dpbench.launch.exchange import VARIABLE
    from dpbench.report.progress.trials import Reporter
    from dpbench.run.sweep.measuring import exit_status, measure_sweep
    from dpbench.run.sweep.nodes import follow_sweep, measure_over_nodes, parse_nodes

    nodes = parse_nodes(options, placed)
    if options.debug:
        log_more()
    os.environ.pop(VARIABLE, None)  # ranks run user code, so they must not see the token
    progress = Reporter(quiet=options.quiet)
    if nodes is not None and options.dry_run:
        raise UsageError("--dry-run plans for one node; leave --nnodes out, or the launcher")
    if nodes is not None and nodes.node_rank:
        return follow_sweep(options, nodes, progress)
    require_columns(options.columns, as_json=options.as_json)
    if options.dry_run:
        return _show_plan(options)
    if nodes is None:
        stored = measure_sweep(options, progress)
    else:
        stored = measure_over_nodes(options, nodes, progress)
    if options.summary:
        show_sweep(
            stored,
            as_json=options.as_json,
            columns=options.columns,
            charts=options.charts,
            verbose=options.verbose,
        )
    if options.as_json:
        say(f"records are in {stored.folder}")
    return exit_status(stored.records, stored.spec.implementations)


def log_more() -> None:
    """Sets what torch.distributed and NCCL read when a group is made. Ranks inherit it with the
    environment, and each trial records it."""
    from dpbench.rendezvous.process_group import DEBUG_VARIABLES

    os.environ.update(DEBUG_VARIABLES)
    words = ", ".join(f"{name}={value}" for name, value in DEBUG_VARIABLES.items())
    say(f"--debug: {words}; logs of trials that fail are kept")


def _show_plan(options: SweepOptions) -> int:
    from dpbench.report.plan import plan_answer
    from dpbench.run.sweep.dry_run import plan_sweep

    rows, summary = plan_sweep(options, say)
    print_result(plan_answer(rows, summary).render(as_json=options.as_json))
    if options.as_json:
        to_stderr(summary)
    return 0
