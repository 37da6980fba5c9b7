"""`dpbench comm`: from options to measurements of collectives, to records in a results folder."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from typing import cast

from dpbench import store, units
from dpbench.errors import Interrupted, UsageError
from dpbench.files import folder_inside
from dpbench.launch import collectives as launch_collectives
from dpbench.launch.machine import Machine
from dpbench.options.comm import ELEMENT_BYTES, CommOptions
from dpbench.records.collectives import Collective, CollectiveSpec
from dpbench.report.progress.trials import Reporter
from dpbench.run.interrupts import as_exceptions
from dpbench.run.results import results_folder
from dpbench.run.this_machine import (
    default_group_sizes,
    devices_for,
    environment_here,
    machine_here,
    test_launchers,
    threads_for,
)
from dpbench.specs.traits import PROCESS_GROUP_BACKENDS
from dpbench.store import LOGS_FOLDER, ResultsStore, StoredCollectives

IN_PARTS = ("all_gather", "reduce_scatter")
"""Collectives of which each rank holds an equal part."""


def measure_collectives(options: CommOptions, progress: Reporter) -> StoredCollectives:
    """Raises UsageError for what cannot run here, and Interrupted, with what was stored, when a
    signal ends it."""
    folder = results_folder(options.results_dir, options.name, otherwise="collectives")
    store.require_free(folder)
    machine = machine_here()
    specs, notes = build_collective_specs(options, machine)
    run = partial(
        (test_launchers() or launch_collectives).run_collective,
        time_limit_seconds=options.time_limit,
        logs=folder_inside(folder, LOGS_FOLDER),
    )
    for note in notes:
        progress.note(note)
    environment = environment_here(machine)
    opened = ResultsStore.create(folder, ["comm", *options.words()])
    with opened as results, as_exceptions(), progress:
        results.add_environment(environment)
        progress.planned(specs)
        done = 0
        try:
            for record in launch_collectives.run_collectives(
                specs, run, environment_id=environment.environment_id, on_start=progress.started
            ):
                results.append(record)
                progress.finished(record)
                done += 1
        except (KeyboardInterrupt, Interrupted) as error:
            number = getattr(error, "signal_number", signal.SIGINT)
            total = units.counted(len(specs), "measurement")
            stored = f"interrupted; stored in {folder}: {done} of {total}"
            raise Interrupted(number, stored) from None
    return store.load_collectives(folder)


def build_collective_specs(
    options: CommOptions, machine: Machine
) -> tuple[tuple[CollectiveSpec, ...], list[str]]:
    """The measurements for this machine in their order, a palindrome over repetitions, and the
    notes that the user must see. Raises UsageError for a backend that cannot run here.

    A drift of the machine then falls on all alike, and the backends of one collective, which are
    compared most often, lie closest together.
    """
    notes: list[str] = []
    oversubscribe = options.oversubscribe
    devices = devices_for(
        machine, options.gpus, options.group_sizes, notes, oversubscribe=oversubscribe
    )
    several = tuple(size for size in default_group_sizes(len(devices)) if size > 1)
    group_sizes = options.group_sizes or several
    if not group_sizes:
        raise UsageError(
            "a collective takes at least 2 ranks, and --gpus or this machine has 1; expected more, "
            "with --oversubscribe where there is one core or GPU"
        )
    threads = threads_for(None, machine.cores, max(group_sizes), oversubscribe=oversubscribe)
    first_pass = []
    for group_size in group_sizes:
        used = devices[:group_size]
        unusable = {
            backend: reason
            for backend in PROCESS_GROUP_BACKENDS
            if (reason := machine.unusable_backend_reason(backend, used))
        }
        if wrong := [name for name in options.backends or () if name in unusable]:
            raise UsageError(f"--backends {wrong[0]}: {unusable[wrong[0]]}")
        usable = [name for name in PROCESS_GROUP_BACKENDS if name not in unusable]
        for collective in options.collectives:
            whole = ELEMENT_BYTES * (group_size if collective in IN_PARTS else 1)
            rounded = (-(-size // whole) * whole for size in options.sizes)
            sizes = tuple(dict.fromkeys(rounded))
            first_pass += [
                CollectiveSpec(
                    collective=cast(Collective, collective),
                    backend=backend,
                    group_size=group_size,
                    devices=used,
                    sizes_bytes=sizes,
                    threads_per_replica=threads,
                    samples=options.samples,
                )
                for backend in options.backends or usable
            ]
    specs = tuple(
        replace(spec, repetition=repetition)
        for repetition in range(options.repetitions)
        for spec in (first_pass if repetition % 2 == 0 else reversed(first_pass))
    )
    return specs, notes
