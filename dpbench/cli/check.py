"""`dpbench check`: is the candidate slower than its baseline, by more than is tolerated?"""

from __future__ import annotations

from dataclasses import fields

import typer

from dpbench.cli.check_options import CheckOptions
from dpbench.cli.options import Texts, command
from dpbench.errors import UsageError

EXIT_STATUSES = """Exit status: 0 pass, or inconclusive without --strict; 1 measuring failed in
some row; 2 usage; 3 regressed; 4 inconclusive with --strict; 5 baseline and candidate cannot be
compared; 6 wrong gradients; 130 interrupted."""

AXES = (
    "implementations",
    "backends",
    "batch_sizes",
    "group_sizes",
    "arch",
    "step",
    "data",
    "steps",
    "warmup",
    "gpus",
    "threads",
    "oversubscribe",
)
"""Options that say what is measured; a sweep that is run again has its own."""
THEIRS = ("arch", "step", "data")
"""Options that may name code of the user's; a sweep of such code is run again only where they do
so here too."""
EFFORT = ("repetitions", "budget", "name", "results_dir", "data_dir", "quiet")
"""Options of whatever is measured."""


@command(CheckOptions)
def check(context: typer.Context, typed: Texts) -> int:
    """Check for a regression: regressed, pass or inconclusive, on whole runs, row by row.

    dpbench check --against torch-ddp --tolerance 5%
    """
    candidate, baseline, against = typed["candidate"], typed["baseline"], typed["against"]
    given = {key for key in (*AXES, *EFFORT, "force") if is_typed(context, key)}
    theirs = _theirs(typed) if candidate is None and against is None else {}
    _check_combination(candidate, baseline, against, given - theirs.keys())
    return _execute(typed, theirs)


def _theirs(typed: Texts) -> dict[str, str]:
    """What names code of the user's."""
    from dpbench.architecture import is_theirs

    given = {key: typed[key] for key in THEIRS if typed[key] is not None}
    return {key: name for key, name in given.items() if is_theirs(name)}


def _execute(typed: Texts, theirs: dict[str, str]) -> int:
    from dpbench.analysis.fields.levels import METRICS
    from dpbench.cli.thresholds import resolve

    thresholds = resolve(typed, METRICS)
    from dpbench.cli.gate import Gate, check_again, check_against, check_stored
    from dpbench.cli.gate_sweep import Target
    from dpbench.cli.verdict_outputs import Outputs

    outputs = Outputs(**{field.name: typed[field.name] for field in fields(Outputs)})
    target = Target(**{field.name: typed[field.name] for field in fields(Target)})
    gate = Gate(thresholds=thresholds, force=typed["force"], outputs=outputs)
    if typed["against"] is not None:
        return check_against(gate, typed["against"], {key: typed[key] for key in AXES}, target)
    if typed["candidate"] is not None:
        return check_stored(gate, typed["candidate"], typed["baseline"])
    return check_again(gate, typed["baseline"], target, theirs)


def is_typed(context: typer.Context, key: str) -> bool:
    """Tells whether the option was given, rather than left at its default."""
    source = context.get_parameter_source(key)
    return source is not None and source.name == "COMMANDLINE"


def _check_combination(
    candidate: str | None, baseline: str | None, against: str | None, given: set[str]
) -> None:
    """Raises UsageError for options that would have no effect, and for too many or no baseline."""
    if (baseline is None) == (against is None):
        raise UsageError(
            f"{'two baselines' if baseline else 'nothing to compare with'}: expected one of "
            "--baseline DIR (a results folder) and --against NAME (an implementation, e.g. "
            "torch-ddp)"
        )
    if against is not None:
        if candidate is not None:
            raise UsageError(
                f"{candidate} with --against {against}, which measures both now; to compare parts "
                f"of what is stored: {candidate}:implementation=ddp --baseline "
                f"{candidate}:implementation={against}"
            )
        if "force" in given:
            raise UsageError(
                f"--force has no effect with --against {against}, which measures both here; "
                "leave it out"
            )
        return
    forbidden = (*AXES, *EFFORT) if candidate is not None else AXES
    done = (
        f"{candidate} is measured" if candidate is not None else f"{baseline} is run again as it is"
    )
    for key in forbidden:
        if key in given:
            raise UsageError(f"--{key.replace('_', '-')} has no effect, as {done}; leave it out")
