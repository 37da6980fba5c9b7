"""`dpbench comm`: what collectives cost here, from 4 bytes to 256 megabytes."""

from __future__ import annotations

from typing import Any

import typer

from dpbench.messages import say
from dpbench.options.bridge import Layer, command, read
from dpbench.options.comm import CommOptions


@command(CommOptions)
def comm(typed: dict[str, Any]) -> int:
    """Measure collectives by message size: latency and bandwidth.

    dpbench comm --backends gloo,shm --gpus 2

    Every result is checked before it is timed.

    Exit status: 0 all measurements completed or skipped, at least one completed;
    1 some failed; 2 usage; 130 interrupted.
    """
    options = read(CommOptions, Layer("", typed))
    from dpbench import store
    from dpbench.cli.show_results import report_folder, show_collectives
    from dpbench.report.document import write_report
    from dpbench.run.collectives.measuring import Job, exit_status, measure_collectives
    from dpbench.run.collectives.plan import build_collective_specs
    from dpbench.run.results import read_subject, results_folder
    from dpbench.run.this_machine import machine_here

    folder = results_folder(options.results_dir, options.name, otherwise="collectives")
    store.require_free(folder)
    machine = machine_here()
    job = Job(
        specs=build_collective_specs(options, machine),
        folder=folder,
        time_limit_seconds=options.time_limit,
        command=["comm", *options.words()],
        quiet=options.quiet,
    )
    stored = measure_collectives(job, machine)
    show_collectives(stored, as_json=options.as_json)
    page = write_report(report_folder(folder), read_subject(folder), charts=options.charts)
    if options.as_json:
        say(f"records are in {folder}")
    else:
        typer.echo(f"\nReport: {page}")
    return exit_status(stored.records)
