"""`dpbench comm`: what collectives cost here, from 4 bytes to 256 megabytes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from dpbench import units
from dpbench.cli.options import command
from dpbench.messages import say
from dpbench.run.collectives.options import CommOptions
from dpbench.settings import Texts, from_texts

if TYPE_CHECKING:
    from dpbench.run.collectives.execution import Job

PLAN_HEADERS = ("Collective", "Backend", "Group", "Sizes", "Devices", "Runs")


@command(CommOptions)
def comm(context: typer.Context, typed: Texts) -> int:
    """Measure collectives by message size: latency, bandwidth, overlap.

    dpbench comm --backends gloo,shm --gpus 2

    Every result is checked before it is timed, and compared with what the memory allows.

    Exit status: 0 all measurements completed or skipped, at least one completed;
    1 some failed; 2 usage; 130 interrupted.
    """
    notes: list[str] = []
    options = from_texts(CommOptions, typed, notes)
    from dpbench.run.collectives.execution import (
        Job,
        exit_status,
        measure_collectives,
        plan_collectives,
    )
    from dpbench.run.collectives.plan import build, parse
    from dpbench.run.latest import results_folder
    from dpbench.run.this_machine import machine_for

    parsed = parse(options, notes)
    folder = results_folder(options.results_dir, options.name, otherwise="collectives")
    machine = machine_for(synthetic=options.synthetic)
    job = Job(
        specs=build(parsed, machine),
        folder=folder,
        time_limit_seconds=options.time_limit,
        command=sys.argv[1:],
        quiet=options.quiet,
        synthetic=options.synthetic,
    )
    if options.dry_run:
        return _show_plan(job, plan_collectives(job, machine), as_json=options.as_json)
    from dpbench.cli.shown import show_collectives

    stored = measure_collectives(job, machine)
    show_collectives(stored, as_json=options.as_json, charts=options.charts)
    say(f"records are in {folder}")
    return exit_status(job.specs, stored.records)


def _show_plan(job: Job, rows: Sequence[dict[str, Any]], *, as_json: bool) -> int:
    from dpbench.report.terminal import bullet

    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    elif rows:
        typer.echo(_table(rows))
        for line in _beside_the_table(rows):
            typer.echo(bullet(line))
    say(
        f"{units.counted(sum(row['runs'] for row in rows), 'measurement')} in {job.folder}, "
        f"{units.seconds(job.time_limit_seconds)} each at most; nothing was stored"
    )
    return 0


def _table(rows: Sequence[dict[str, Any]]) -> str:
    from dpbench.report.table import text_table
    from dpbench.report.terminal import write_table

    cells = []
    for row in rows:
        sizes = _sizes(row["sizes_bytes"])
        runs = "skipped" if row["reason"] else f"{row['runs']:,}"
        devices = ", ".join(row["devices"])
        cells.append(
            [row["collective"], row["backend"], str(row["group_size"]), sizes, devices, runs]
        )
    words = ("Collective", "Backend", "Sizes", "Devices")
    return write_table(text_table(PLAN_HEADERS, cells, words=words))


def _beside_the_table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Notes on further measurements of all-reduces, and reasons for skipped ones."""
    from dpbench.run.collectives.plan import OF_GRADIENTS

    reduced = [row for row in rows if row["collective"] == OF_GRADIENTS]
    if reduced and (sizes := reduced[0]["overlap_sizes_bytes"]):
        listed = ", ".join(map(units.bytes_exact, sizes))
        yield f"{OF_GRADIENTS} also while the ranks compute: {listed}"
    if reduced and (sizes := reduced[0]["bucket_sizes_bytes"]):
        yield f"{OF_GRADIENTS} also as a bucket of gradients in a step, {_sizes(sizes)}"
    for row in rows:
        if row["reason"]:
            yield f"{row['collective']} on {row['backend']} ×{row['group_size']}: {row['reason']}"


def _sizes(sizes: Sequence[int]) -> str:
    first, last = units.bytes_exact(sizes[0]), units.bytes_exact(sizes[-1])
    return first if len(sizes) == 1 else f"{len(sizes)} sizes, {first} to {last}"
