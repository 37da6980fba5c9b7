"""What `dpbench sweep` answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dpbench.options.reading import short_command
from dpbench.run.sweep.launched import launched_sweep

if TYPE_CHECKING:
    from dpbench.options.sweep import SweepOptions
    from dpbench.report.answer import Answer
    from dpbench.report.progress.trials import TrialProgress


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
