"""`dpbench check`, which looks for a regression."""

from __future__ import annotations

from collections.abc import Set
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dpbench.errors import UsageError
from dpbench.files import write_text
from dpbench.messages import print_result
from dpbench.options.bridge import Layer, command, file_layers, option_name, read
from dpbench.options.check import CheckOptions, RepeatedOptions
from dpbench.options.shared import MachineOptions
from dpbench.run import presets

if TYPE_CHECKING:
    from dpbench.analysis.comparisons.verdict import Assessment

PLACE = ("results_dir", "quiet", "data_dir", "name")
AXES = tuple(
    name
    for name in (*RepeatedOptions.model_fields, *MachineOptions.model_fields)
    if name not in PLACE
)
"""Options that say what is measured."""
MEASURING = (*AXES, "repetitions", "budget", *PLACE)
"""Options that have no effect where nothing is measured."""
BASELINES = ("baseline", "against", "against_ref")
"""Options that name what the candidate is compared with."""


@command(CheckOptions)
def check(given: dict[str, Any]) -> int:
    """Check for a performance regression, in CI or by hand.

    dpbench check --arch model.py:make --against-ref origin/main --tolerance 5%

    Compares your code with a Git revision (--against-ref), implementations with
    another one (--against), or two stored sweeps (CANDIDATE --baseline DIR).

    Exit status: 0 pass, or inconclusive without --strict; 1 some row failed;
    2 usage; 3 regressed; 4 inconclusive with --strict; 5 no baseline, or one
    that cannot be compared; 6 wrong gradients; 130 interrupted.
    """
    options = read(CheckOptions, *file_layers(CheckOptions, given, presets.find), Layer("", given))
    _check_combination(options, given.keys())
    from dpbench.run.gate.judging import MeasuredFolder, check_against, check_stored
    from dpbench.run.gate.thresholds import thresholds_of

    thresholds = thresholds_of(options)
    for path in (options.junit, options.markdown):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UsageError(f"{path}: expected the name of a file in a folder that exists")
    target = MeasuredFolder(**{key: getattr(options, key) for key in PLACE})
    axes = {key: getattr(options, key) for key in AXES}
    if options.candidate is not None and options.baseline is not None:
        found = check_stored(thresholds, options.candidate, options.baseline)
    elif options.against is not None:
        found = check_against(thresholds, options.against, axes, target)
    else:
        from dpbench.run.gate.beside import check_beside

        found = check_beside(thresholds, str(options.against_ref), axes, target)
    assessment, exit_status = found
    _write(options, assessment, thresholds.describe(), exit_status)
    return exit_status


def _check_combination(options: CheckOptions, given: Set[str]) -> None:
    """Raises UsageError unless there is one baseline, and for options that would have no effect."""
    baselines = [key for key in BASELINES if getattr(options, key) is not None]
    is_stored = baselines == ["baseline"]
    if len(baselines) != 1 or is_stored != (options.candidate is not None):
        typed = [f"{_option(key)} {getattr(options, key)}" for key in baselines]
        got = " ".join([*filter(None, [options.candidate]), *typed]) or "nothing"
        raise UsageError(
            f"got {got} to compare; expected one of --against-ref REV (your code at a Git "
            "revision), --against NAME (an implementation) and CANDIDATE --baseline DIR (stored "
            "results)"
        )
    reason = f"{options.candidate} is stored" if is_stored else "both sides are measured here"
    for key in MEASURING if is_stored else ("force",):
        if key in given:
            raise UsageError(f"{_option(key)} has no effect, as {reason}; leave it out")


def _option(key: str) -> str:
    return option_name(CheckOptions, key)


def _write(options: CheckOptions, assessment: Assessment, held: str, exit_status: int) -> None:
    """Prints the table, or JSON, and writes the files; `held` tells the tolerances."""
    from dpbench.report.verdict import answer
    from dpbench.report.verdict_files import junit, pull_request

    failed = (f"{label}: {how}" for label, how, _ in assessment.failures)
    notes = [*failed, *assessment.notes, held]
    found = answer(assessment, notes, exit_status=exit_status)
    print_result(found.render(as_json=options.as_json))
    if options.junit is not None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        text = junit(assessment, strict=options.strict, notes=notes, started_utc=now)
        write_text(options.junit, text)
    if options.markdown is not None:
        write_text(options.markdown, pull_request(assessment.verdict, notes))
