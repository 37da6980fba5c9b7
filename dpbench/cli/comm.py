"""`dpbench comm`: what collectives cost here, from 4 bytes to 256 megabytes."""

from __future__ import annotations

import typer

from dpbench.cli.comm_options import CommOptions
from dpbench.cli.options import Texts, command, from_texts

EXIT_STATUSES = """Exit status: 0 all measurements completed or skipped, at least one completed;
1 some failed; 2 usage; 130 interrupted."""


@command(CommOptions)
def comm(context: typer.Context, typed: Texts) -> int:
    """Measure collectives over message sizes: time, bandwidth, and what they cost computing.

    dpbench comm --backends gloo,shm --gpus 2

    Every result is checked before it is timed, and compared with what the memory allows.
    """
    notes: list[str] = []
    options = from_texts(CommOptions, typed, notes)
    from dpbench.cli.comm_plan import build, parse
    from dpbench.cli.comm_run import Job, execute
    from dpbench.cli.new_folder import results_folder
    from dpbench.cli.this_machine import machine_for

    parsed = parse(options, notes)
    folder = results_folder(options.results_dir, options.name, otherwise="collectives")
    machine = machine_for(synthetic=options.synthetic)
    return execute(
        Job(
            specs=build(parsed, machine),
            folder=folder,
            time_limit_seconds=options.time_limit,
            charts=options.charts,
            dry_run=options.dry_run,
            as_json=options.as_json,
            quiet=options.quiet,
            synthetic=options.synthetic,
        ),
        machine,
    )
