"""Builds the CollectiveSpecs of `dpbench comm` for this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.options.bridge import as_typed
from dpbench.options.comm import ELEMENT_BYTES, CommOptions
from dpbench.records.collectives import Collective, CollectiveSpec
from dpbench.run.this_machine import default_group_sizes, devices_for, threads_for
from dpbench.specs.traits import PROCESS_GROUP_BACKENDS

IN_PARTS = ("all_gather", "reduce_scatter")
"""Collectives of which each rank holds an equal part."""


def build_collective_specs(
    options: CommOptions, machine: Machine
) -> tuple[tuple[CollectiveSpec, ...], list[str]]:
    """The measurements for this machine in their order, a palindrome over repetitions, and the
    notes that the user must see.

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
        asked = "this machine" if options.gpus is None else f"--gpus {as_typed(options.gpus)}"
        raise UsageError(
            f"a collective takes at least 2 ranks, and {asked} means 1; expected more, "
            "with --oversubscribe where there is one core or GPU"
        )
    threads = threads_for(None, machine.cores, max(group_sizes), oversubscribe=oversubscribe)
    first_pass = []
    for group_size in group_sizes:
        used = devices[:group_size]
        usable = [
            backend
            for backend in PROCESS_GROUP_BACKENDS
            if machine.unusable_backend_reason(backend, used) is None
        ]
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
