"""`dpbench check`: is the candidate slower than its baseline, by more than is tolerated?"""

from __future__ import annotations

from dataclasses import fields

import typer

from dpbench.cli.options import command
from dpbench.errors import UsageError
from dpbench.run.gate.options import CheckOptions
from dpbench.settings import Texts

EXIT_STATUSES = """Exit status: 0 pass, or inconclusive without --strict; 1 measuring failed in
some row; 2 usage; 3 regressed; 4 inconclusive with --strict; 5 baseline and candidate cannot be
compared; 6 wrong gradients; 130 interrupted."""

AXES = (
    "implementations",
    "backends",
    "batch_sizes",
    "group_sizes",
    "arch",
    "input_shape",
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
BESIDE = ("against_ref", "against_arch", "against_python")
"""Options that name another version of the code."""
EFFORT = ("repetitions", "budget", "name", "results_dir", "data_dir", "quiet")
"""Options of whatever is measured."""


@command(CheckOptions)
def check(context: typer.Context, typed: Texts) -> int:
    """Check for a performance regression, in CI or by hand.

    dpbench check --arch model.py:make --against-ref origin/main --tolerance 5%
    """
    given = {key for key in (*AXES, *EFFORT, "force") if is_typed(context, key)}
    again = typed["candidate"] is None and typed["baseline"] is not None
    theirs = _theirs(typed) if again else {}
    _check_combination(typed, given - theirs.keys())
    return _execute(typed, theirs)


def _theirs(typed: Texts) -> dict[str, str]:
    """Options that name the user's code."""
    from dpbench.architecture import is_theirs, split_names

    given = {key: typed[key] for key in THEIRS if typed[key] is not None}
    return {key: text for key, text in given.items() if any(map(is_theirs, split_names(text)))}


def _execute(typed: Texts, theirs: dict[str, str]) -> int:
    from dpbench.analysis.fields.levels import METRICS
    from dpbench.run.gate.thresholds import resolve

    thresholds = resolve(typed, METRICS)
    from dpbench.cli.verdict_outputs import Outputs
    from dpbench.run.gate.judging import Gate, check_again, check_against, check_stored
    from dpbench.run.gate.sweep import MeasuredFolder

    outputs = Outputs(**{field.name: typed[field.name] for field in fields(Outputs)})
    target = MeasuredFolder(**{field.name: typed[field.name] for field in fields(MeasuredFolder)})
    gate = Gate(thresholds=thresholds, force=typed["force"], outputs=outputs)
    if any(typed[key] is not None for key in BESIDE):
        from dpbench.run.gate.beside import Other, check_beside

        other = Other(**{key.removeprefix("against_"): typed[key] for key in BESIDE})
        return check_beside(gate, other, {key: typed[key] for key in AXES}, target)
    if typed["against"] is not None:
        return check_against(gate, typed["against"], {key: typed[key] for key in AXES}, target)
    if typed["candidate"] is not None:
        return check_stored(gate, typed["candidate"], typed["baseline"])
    return check_again(gate, typed["baseline"], target, theirs)


def is_typed(context: typer.Context, key: str) -> bool:
    """Tells whether the option was given, rather than left at its default."""
    source = context.get_parameter_source(key)
    return source is not None and source.name == "COMMANDLINE"


def _check_combination(typed: Texts, given: set[str]) -> None:
    """Raises UsageError for options that would have no effect, and for too many or no baseline."""
    candidate, baseline = typed["candidate"], typed["baseline"]
    known = ("baseline", "against", *BESIDE)
    baselines = [_option(key) for key in known if typed[key] is not None]
    if len(baselines) != 1:
        raise UsageError(
            f"{'two baselines' if baselines else 'nothing to compare with'}: expected one of "
            "--baseline DIR (a results folder), --against NAME (an implementation, e.g. "
            "torch-ddp), --against-ref REV (your code at a git revision), --against-arch NAME and "
            "--against-python PATH"
        )
    if baseline is None:
        (option,) = baselines
        value = next(typed[key] for key in known if typed[key] is not None)
        if candidate is not None:
            raise UsageError(
                f"{candidate} with {option} {value}, which measures both now; to compare parts "
                f"of what is stored: {candidate}:implementation=ddp --baseline "
                f"{candidate}:implementation=torch-ddp"
            )
        if "force" in given:
            raise UsageError(
                f"--force has no effect with {option} {value}, which measures both here; "
                "leave it out"
            )
        return
    forbidden = (*AXES, *EFFORT) if candidate is not None else AXES
    done = (
        f"{candidate} is measured" if candidate is not None else f"{baseline} is run again as it is"
    )
    for key in forbidden:
        if key in given:
            raise UsageError(f"{_option(key)} has no effect, as {done}; leave it out")


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"
