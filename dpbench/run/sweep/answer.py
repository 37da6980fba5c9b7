"""What `dpbench sweep` answers, in the process that measures: a launcher may have started several,
and each of several nodes has one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from dpbench.errors import UsageError
from dpbench.messages import say
from dpbench.options.reading import short_command
from dpbench.rendezvous.placement import PLACE_VARIABLES, find_placement
from dpbench.temporary import temporary_variables

if TYPE_CHECKING:
    from dpbench.options.sweep import SweepOptions
    from dpbench.report.answer import Answer
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.sweep.measuring import SweepRun


def sweep(options: SweepOptions, progress: TrialProgress) -> Answer | None:
    """Measure the sweep of these options, or describe its plan; None in a process that leaves the
    answer to another one.

    Raises what `launched_sweep` and `SweepRun.measure` raise.
    """
    with launched_sweep(options) as run:
        if run is None:
            return None
        # After `launched_sweep`, which has to come before torch is imported.
        from dpbench.analysis.analyze import analyze
        from dpbench.run.reporting import measured_answer
        from dpbench.run.sweep.dry_run import describe_plan
        from dpbench.run.sweep.measuring import exit_status

        if options.dry_run:
            return describe_plan(options, run)
        stored = run.measure(progress)
    answer = measured_answer(
        analyze(stored), stored.folder, options, short_command(options), verbose=options.verbose
    )
    status = exit_status(stored.records, options.measured_implementations)
    return replace(answer, exit_status=status)


@contextmanager
def launched_sweep(options: SweepOptions) -> Iterator[SweepRun | None]:
    """The sweep of these options, to be measured inside. None in a process that leaves that to the
    first one of its node or, after its ranks have run, to node 0.

    Inside, the environment is that of the ranks. Raises what `plan_sweep` and `sweep_on_nodes`
    raise, and UsageError for a plan of several nodes.
    """
    launched = find_placement(os.environ)
    if launched and launched.local_rank:
        yield None  # the node's first process starts the ranks of every trial
        return
    if launched or options.nnodes is not None:  # before torch is imported
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of hosts without a name
    from dpbench.launch.signed_store import TOKEN_VARIABLE
    from dpbench.rendezvous.process_group import DEBUG_VARIABLES
    from dpbench.run.sweep.nodes import node_placement, sweep_on_nodes
    from dpbench.run.sweep.plan import plan_sweep

    if launched and launched.local_size > 1 and options.gpus is None:
        options = options.model_copy(update={"gpus": launched.local_size})
    placement = node_placement(options, launched)
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    debug = DEBUG_VARIABLES if options.debug else {}
    if debug:
        words = ", ".join(f"{name}={value}" for name, value in debug.items())
        say(f"--debug: {words}; logs of trials that fail are kept")
    # Ranks get places of their own, and run user code, which must not see the token.
    removed = dict.fromkeys((*PLACE_VARIABLES.split(), TOKEN_VARIABLE))
    with temporary_variables({**removed, **debug}):
        if placement is None:
            with plan_sweep(options) as run:
                yield run
        elif options.dry_run:
            raise UsageError("--dry-run plans for one node; leave --nnodes out, or the launcher")
        else:
            with sweep_on_nodes(options, placement, token) as part:
                yield part
