"""`dpbench comm`: what collectives cost here, from 4 bytes to 256 megabytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from dpbench import units
from dpbench.messages import say
from dpbench.options.bridge import Layer, command, read
from dpbench.options.comm import CommOptions

if TYPE_CHECKING:
    from dpbench.records.collectives import CollectiveSpec
    from dpbench.report.plan import Planned
    from dpbench.run.collectives.measuring import Job


@command(CommOptions)
def comm(typed: dict[str, Any]) -> int:
    """Measure collectives by message size: latency and bandwidth.

    dpbench comm --backends gloo,shm --gpus 2

    Every result is checked before it is timed, and compared with what the memory allows.

    Exit status: 0 all measurements completed or skipped, at least one completed;
    1 some failed; 2 usage; 130 interrupted.
    """
    options = read(CommOptions, Layer("", typed))
    from dpbench.run.collectives.measuring import (
        Job,
        exit_status,
        measure_collectives,
        plan_collectives,
    )
    from dpbench.run.collectives.plan import build_collective_specs
    from dpbench.run.results import results_folder
    from dpbench.run.this_machine import machine_here

    folder = results_folder(options.results_dir, options.name, otherwise="collectives")
    machine = machine_here()
    job = Job(
        specs=build_collective_specs(options, machine),
        folder=folder,
        time_limit_seconds=options.time_limit,
        command=["comm", *options.words()],
        quiet=options.quiet,
    )
    if options.dry_run:
        return _show_plan(job, plan_collectives(job, machine), as_json=options.as_json)
    from dpbench.cli.show_results import report_folder, show_collectives
    from dpbench.report.document import write_report
    from dpbench.run.results import read_subject

    stored = measure_collectives(job, machine)
    show_collectives(stored, as_json=options.as_json)
    page = write_report(report_folder(folder), read_subject(folder), charts=options.charts)
    if options.as_json:
        say(f"records are in {folder}")
    else:
        typer.echo(f"\nReport: {page}")
    return exit_status(job.specs, stored.records)


def _show_plan(job: Job, rows: Sequence[Planned[CollectiveSpec]], *, as_json: bool) -> int:
    from dpbench.report.plan import collectives_answer

    if rows or as_json:
        typer.echo(collectives_answer(rows).render(as_json=as_json), nl=False)
    say(
        f"{units.counted(sum(row.runs for row in rows), 'measurement')}, "
        f"{units.seconds(job.time_limit_seconds)} each at most; nothing was stored"
    )
    return 0
