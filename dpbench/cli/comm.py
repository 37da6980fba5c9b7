"""`dpbench comm`: what collectives cost here, from 4 bytes to 256 megabytes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from dpbench.cli import comm_grammar
from dpbench.cli import sweep_grammar as grammar

EXIT_STATUSES = """Exit status: 0 all measurements completed or skipped, at least one completed;
1 some failed; 2 usage; 130 interrupted."""


def comm(
    collectives: comm_grammar.Collectives = "all_reduce",
    backends: comm_grammar.Backends = None,
    group_sizes: comm_grammar.GroupSizes = None,
    sizes: comm_grammar.Sizes = "4B-256MB",
    overlap_sizes: comm_grammar.OverlapSizes = None,
    bucket_sizes: comm_grammar.BucketSizes = None,
    samples: comm_grammar.Samples = "20",
    repetitions: comm_grammar.Repetitions = "3",
    time_limit: comm_grammar.TimeLimit = "5m",
    gpus: grammar.Gpus = None,
    threads: grammar.Threads = None,
    oversubscribe: grammar.Oversubscribe = False,
    name: comm_grammar.Name = None,
    results_dir: grammar.ResultsDir = Path("results"),
    charts: comm_grammar.Charts = True,
    dry_run: comm_grammar.DryRun = False,
    as_json: comm_grammar.JsonData = False,
    quiet: grammar.Quiet = False,
    synthetic: grammar.Synthetic = False,
) -> int:
    """Measure collectives over message sizes: time, bandwidth, and what they cost computing.

    dpbench comm --backends gloo,shm --gpus 2

    Every result is checked before it is timed, and compared with what the memory allows.
    """
    typed = locals()
    from dpbench.cli.comm_options import CommOptions, build, parse
    from dpbench.cli.comm_run import Job, execute
    from dpbench.cli.new_folder import results_folder
    from dpbench.cli.this_machine import machine_for

    options = parse(CommOptions(**{field.name: typed[field.name] for field in fields(CommOptions)}))
    folder = results_folder(results_dir, name, otherwise="collectives")
    machine = machine_for(synthetic=synthetic)
    return execute(
        Job(
            specs=build(options, machine),
            folder=folder,
            time_limit_seconds=options.time_limit_seconds,
            charts=charts,
            dry_run=dry_run,
            as_json=as_json,
            quiet=quiet,
            synthetic=synthetic,
        ),
        machine,
    )
