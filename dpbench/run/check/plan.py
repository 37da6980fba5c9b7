"""What a check measures, for how long, and how it is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dpbench.analysis.change import ALPHA
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import ALPHA_OF_A_LOOK, Verdict, assess
from dpbench.errors import StoreError
from dpbench.messages import option_words
from dpbench.options.check import CheckOptions
from dpbench.options.model import options_of
from dpbench.options.reading import read_options
from dpbench.options.shared import MAX_WORD
from dpbench.options.sweep import SweepOptions
from dpbench.run.results import results_folder
from dpbench.run.sweep.plan import SweepPlan, this_node
from dpbench.run.sweep.spec import build_sweep_spec
from dpbench.run.this_machine import device_notes
from dpbench.specs.traits import SINGLE

Sides = list[tuple[Side, Side]]
"""(Baseline, candidate) pairs that are judged together."""


def sweep_options(options: CheckOptions, *against: str) -> SweepOptions:
    """The sweep of the candidates, and of implementations that they are compared with.

    Group sizes that were not asked for are the largest one, unless `single` is measured. Raises
    UsageError.
    """
    of_sweep = options_of(SweepOptions)
    names = {
        name
        for name in CheckOptions.model_fields.keys() & of_sweep
        if of_sweep[name].scope == "measured"
    }
    if options.script_and_arguments:
        names &= {*options.model_fields_set, "warmup", "steps", "repetitions"}
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.script_and_arguments:
        given["script"] = options.candidate
    if options.data_dir is not None:
        given["data_dir"] = options.data_dir.resolve()  # a revision has another directory
    given["implementations"] = (*options.candidates, *against)
    if SINGLE not in given["implementations"]:
        given.setdefault("group_sizes", (MAX_WORD,))
    return read_options(SweepOptions, given)


def plan_check(options: CheckOptions, sweep: SweepOptions) -> SweepPlan:
    """The sweep of a check, in a new folder; raises UsageError and StoreError."""
    folder = results_folder(options.results_dir, options.name, otherwise="check")
    if folder.exists():
        raise StoreError(f"{folder} already exists; choose another {option_words('name')}")
    return plan_judged_sweep(sweep, folder, ["check", *options.command_line()])


def plan_judged_sweep(options: SweepOptions, folder: Path, command: Sequence[str]) -> SweepPlan:
    """The sweep of these options on this machine alone, without what no verdict uses:
    `single`, steps without synchronization and the phases of a step. Raises UsageError."""
    node = this_node(options)
    spec, notes = build_sweep_spec(options, [node])
    base = replace(spec.base, phase_steps=0, gradient_steps=0, wants_unsynced_window=False)
    return SweepPlan(
        spec=replace(spec, base=base, implementations=options.measured_implementations),
        nodes=[node],
        folder=folder,
        command=tuple(command),
        data_dir=options.data_dir,
        notes=(*device_notes(node.machine, options.gpus, node.devices), *notes),
    )


def assess_sides(options: CheckOptions, sides: Sides) -> Verdict:
    """The verdict by the tolerances. Other environments are what --against-python is about."""
    return assess(
        sides,
        options.tolerances,
        force=options.force or options.against_python is not None,
        alpha=ALPHA_OF_A_LOOK if options.baseline is None else ALPHA,
        strict=options.strict,
    )
