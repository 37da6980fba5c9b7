"""The sweep that a check measures: its options, its plan, and its records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dpbench.options.check import CheckOptions
from dpbench.options.reading import read_options
from dpbench.options.shared import MAX_WORD
from dpbench.options.sweep import SweepOptions
from dpbench.run.sweep.plan import SweepPlan, plan_sweep
from dpbench.specs.command_line import CommandLine
from dpbench.specs.traits import SINGLE


def sweep_of_check(options: CheckOptions, folder: Path, *against: str) -> SweepOptions:
    """The sweep into this folder of the candidate, and of an implementation that it is compared
    with.

    Group sizes that were not asked for are the largest one, and 1 if `single` is measured. Raises
    UsageError.
    """
    given = options.model_dump(exclude_unset=True, include={*SweepOptions.model_fields})
    for name in ("warmup", "steps", "repetitions"):  # a sweep has other defaults
        given[name] = getattr(options, name)
    if options.candidate is None:
        given["batch_sizes"] = options.batch_sizes
    else:
        given["script"] = options.candidate
    if options.data_dir is not None:
        given["data_dir"] = options.data_dir.resolve()  # a revision has another directory
    given["implementations"] = (*options.measured_implementations, *against)
    given |= {"results_dir": folder.parent, "name": folder.name}
    alone = (1,) if SINGLE in given["implementations"] else ()
    given.setdefault("group_sizes", (*alone, MAX_WORD))
    return read_options(SweepOptions, given)


@contextmanager
def plan_for_verdict(options: SweepOptions, command: CommandLine) -> Iterator[SweepPlan]:
    """The plan of the sweep as by `plan_sweep`, without what no verdict uses: `single`, steps
    without synchronization and the phases of a step. Its folder names the check's `command`."""
    with plan_sweep(options) as plan:
        base = replace(plan.sweep.spec.base, is_instrumented=False)
        measured = options.measured_implementations
        spec = replace(plan.sweep.spec, base=base, implementations=measured)
        yield replace(plan, sweep=replace(plan.sweep, spec=spec, command=command))
