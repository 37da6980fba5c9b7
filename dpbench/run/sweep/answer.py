"""What `dpbench sweep` answers, also where a launcher has started it or on one of several nodes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from dpbench.errors import UsageError
from dpbench.messages import say
from dpbench.options.reading import short_command
from dpbench.rendezvous.placement import find_placement, remove_placement

if TYPE_CHECKING:
    from dpbench.options.sweep import SweepOptions
    from dpbench.report.answer import Answer
    from dpbench.report.progress.trials import TrialProgress


def sweep_answer(options: SweepOptions, progress: TrialProgress) -> Answer | None:
    """Measure the sweep of these options, or describe its plan; None in a process that leaves the
    answer to the first one of its node, or to node 0.

    Raises what `plan_sweep`, `SweepRun.measure` and `measure_on_nodes` raise, and UsageError for a
    plan of several nodes.
    """
    launched = find_placement(os.environ)
    remove_placement(os.environ)
    if launched and launched.local_rank:
        return None  # the node's first process starts the ranks of every trial
    if launched or options.nnodes is not None:  # before torch is imported
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of hosts without a name
    from dpbench.run.reporting import measured_answer
    from dpbench.run.sweep.dry_run import describe_plan
    from dpbench.run.sweep.measuring import exit_status
    from dpbench.run.sweep.nodes import measure_on_nodes, node_placement
    from dpbench.run.sweep.plan import plan_sweep

    if launched and launched.local_size > 1 and options.gpus is None:
        options = options.model_copy(update={"gpus": launched.local_size})
    placement = node_placement(options, launched)
    token = _set_environment_of_ranks(options)
    if options.dry_run:
        if placement is not None:
            raise UsageError("--dry-run plans for one node; leave --nnodes out, or the launcher")
        return describe_plan(options)
    if placement is not None:
        sweep = measure_on_nodes(options, placement, token, progress)
    else:
        with plan_sweep(options) as run:
            sweep = run.measure(progress)
    if sweep is None:
        return None
    typed = short_command(options)
    answer = measured_answer(sweep, options, typed=typed, verbose=options.verbose)
    status = exit_status(sweep.records, options.measured_implementations)
    return replace(answer, exit_status=status)


def _set_environment_of_ranks(options: SweepOptions) -> str:
    """Set the variables of --debug, which ranks inherit and each trial records. Returns the token
    of the nodes, which ranks must not see, as they run user code."""
    from dpbench.launch.signed_store import TOKEN_VARIABLE
    from dpbench.rendezvous.process_group import DEBUG_VARIABLES

    if options.debug:
        os.environ.update(DEBUG_VARIABLES)
        words = ", ".join(f"{name}={value}" for name, value in DEBUG_VARIABLES.items())
        say(f"--debug: {words}; logs of trials that fail are kept")
    return os.environ.pop(TOKEN_VARIABLE, "").strip()
