"""`dpbench comm`: from options to measurements of collectives, to records in a results folder."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import cast

from dpbench import units
from dpbench.analysis.analyze import read_folder
from dpbench.errors import UsageError
from dpbench.files import folder_inside
from dpbench.folders import LOGS_FOLDER, ResultsFolder
from dpbench.launch.collective_runner import run_collective
from dpbench.launch.machine import Machine, inspect_machine
from dpbench.launch.trial_runner import recorded
from dpbench.messages import option_words
from dpbench.options.comm import ELEMENT_BYTES, USUAL_SIZES, CommOptions
from dpbench.options.model import OptionError
from dpbench.records.collectives import CollectiveRecord
from dpbench.report.answer import Answer
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.interrupts import interruptible
from dpbench.run.reporting import measured_answer
from dpbench.run.results_folders import results_folder
from dpbench.run.this_machine import default_group_sizes, devices_for, threads_for
from dpbench.specs.collective import IN_PARTS, Collective, CollectiveSpec
from dpbench.specs.sweep import palindrome
from dpbench.specs.traits import BACKENDS


def comm(options: CommOptions, progress: TrialProgress) -> Answer:
    """Measure the collectives of these options. Raises UsageError for what cannot run here, and
    Interrupted, with what was stored, when a signal ends it."""
    folder = results_folder(options.results_dir, options.name, otherwise="collectives", is_new=True)
    machine = inspect_machine()
    devices = devices_for(
        machine, options.gpus, options.group_sizes, oversubscribe=options.oversubscribe
    )
    specs = build_collective_specs(options, machine, devices)
    logs = folder_inside(folder, LOGS_FOLDER)
    records = list[CollectiveRecord]()

    def stored_words() -> str:
        of_all = f"{len(records)} of {units.counted(len(specs), 'measurement')}"
        return f"{of_all} are stored in {folder}"

    opened = ResultsFolder.create(folder, options.command("comm"))
    with opened as results, interruptible(stored_words), progress:
        results.add_environment(machine.environment)
        progress.planned(specs)
        for spec in specs:
            progress.started(spec)
            call = partial(run_collective, spec, time_limit_seconds=options.time_limit, logs=logs)
            record = recorded(spec.label, call, [machine.environment.environment_id])
            results.append(record)
            records.append(record)
            progress.finished(record)
    failed = any(record.status.is_failure for record in records)
    answer = measured_answer(read_folder(folder), folder, options)
    return replace(answer, exit_status=int(failed))


def build_collective_specs(
    options: CommOptions, machine: Machine, devices: tuple[str, ...]
) -> tuple[CollectiveSpec, ...]:
    """The measurements on these devices of a machine in their order. Raises UsageError for a
    backend that cannot run there, and a size that would have to be rounded.

    The backends of one collective, which are compared most often, lie closest together.
    """
    usual = [size for size in default_group_sizes(len(devices)) if size > 1]
    group_sizes = options.group_sizes or usual
    if not group_sizes:
        raise UsageError(
            f"a collective takes at least 2 ranks, and {option_words('gpus')} or this machine has "
            f"1; expected more, with {option_words('oversubscribe', True)} where there is one core "
            "or GPU"
        )
    threads = threads_for(
        None, machine.cores, max(group_sizes), oversubscribe=options.oversubscribe
    )
    first_pass = []
    for group_size, collective in product(group_sizes, options.collectives):
        used = devices[:group_size]
        unusable = {name: machine.unusable_backend_reason(name, used) for name in BACKENDS}
        if wrong := [name for name in options.backends or () if unusable[name]]:
            raise OptionError("backends", f" {wrong[0]}: {unusable[wrong[0]]}")
        whole = ELEMENT_BYTES * (group_size if collective in IN_PARTS else 1)
        if odd := [size for size in options.sizes or () if size % whole]:
            raise OptionError(
                "sizes",
                f": got {odd[0]:,} B; expected a multiple of {whole} B, as {collective} gives each "
                f"of {group_size} ranks an equal part",
            )
        sizes = options.sizes or dict.fromkeys(-(-size // whole) * whole for size in USUAL_SIZES)
        first_pass += [
            CollectiveSpec(
                collective=cast(Collective, collective),
                backend=backend,
                group_size=group_size,
                devices=used,
                sizes_bytes=tuple(sizes),
                threads=threads,
                samples=options.samples,
            )
            for backend in options.backends or BACKENDS
            if not unusable[backend]
        ]
    passes = palindrome(first_pass, range(options.repetitions))
    return tuple(replace(spec, repetition=number) for spec, number in passes)
