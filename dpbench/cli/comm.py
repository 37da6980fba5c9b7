"""`dpbench comm`: what collectives cost here, from 4 bytes to 256 megabytes."""

from __future__ import annotations

from typing import Any

from dpbench.cli.signature import command
from dpbench.cli.streams import say_preparing
from dpbench.options.comm import CommOptions
from dpbench.options.reading import read_options


@command(CommOptions)
def comm(typed: dict[str, Any]) -> int:
    """Measure collectives by message size: latency and bandwidth.

    dpbench comm --backends gloo,shm --gpus 2

    Every result is checked before it is timed.

    Exit status: 0 all measurements completed; 1 some failed; 2 usage; 130 interrupted.
    """
    say_preparing(typed)
    options = read_options(CommOptions, typed)
    from dpbench.cli.show_results import show_measured
    from dpbench.records.trial import Status
    from dpbench.report.progress.trials import TrialProgress
    from dpbench.run.collectives import measure_collectives

    progress = TrialProgress(quiet=options.quiet, noun="measurement")
    stored = measure_collectives(options, progress)
    show_measured(stored, options)
    return int(any(record.status is not Status.COMPLETED for record in stored.records))
