"""A check from its options, for the command and for `dpbench.check`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dpbench.errors import UsageError
from dpbench.files import write_text
from dpbench.options.bridge import Given, Layer, file_layers, option_name, read
from dpbench.options.check import CheckOptions, RepeatedOptions
from dpbench.options.shared import MachineOptions
from dpbench.run import presets

if TYPE_CHECKING:
    from dpbench.analysis.comparisons.verdict import Assessment
    from dpbench.report.answer import Answer
    from dpbench.run.gate.judging import Judged
    from dpbench.run.gate.thresholds import Thresholds

PLACE = ("results_dir", "quiet", "data_dir", "name")
AXES = tuple(
    name
    for name in (*RepeatedOptions.model_fields, *MachineOptions.model_fields)
    if name not in PLACE
)
"""Options that say what is measured."""
MEASURING = (*AXES, "repetitions", "budget", *(name for name in PLACE if name != "quiet"))
"""Options that have no effect where nothing is measured."""
BASELINES = ("baseline", "against", "against_ref")
"""Options that name what the candidate is compared with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The verdict, what is printed of it, and the exit status of the command."""

    assessment: Assessment
    answer: Answer
    exit_status: int


def check(given: Given, *, embedded: bool = False) -> CheckResult:
    """Measure what is `given` unless it is stored, judge it, and write the files.

    `embedded` leaves the signal handlers of the calling program alone. Raises UsageError,
    StoreError, and NotComparable if there is nothing to compare.
    """
    options = read(CheckOptions, *file_layers(CheckOptions, given, presets.find), Layer("", given))
    _require_one_baseline(options, given.keys())
    from dpbench.report.verdict import answer
    from dpbench.run.gate.thresholds import thresholds_of

    for path in (options.junit, options.markdown):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UsageError(f"{path}: expected the name of a file in a folder that exists")
    thresholds = thresholds_of(options)
    assessment, exit_status = _judged(options, thresholds, embedded=embedded)
    failed = (f"{label}: {how}" for label, how, _ in assessment.failures)
    notes = [*failed, *assessment.notes, thresholds.describe()]
    _write_files(options, assessment, notes)
    found = answer(assessment, notes, exit_status=exit_status)
    return CheckResult(assessment=assessment, answer=found, exit_status=exit_status)


def _judged(options: CheckOptions, thresholds: Thresholds, *, embedded: bool) -> Judged:
    from dpbench.run.gate.judging import MeasuredFolder, check_against, check_stored

    if options.candidate is not None and options.baseline is not None:
        return check_stored(thresholds, options.candidate, options.baseline)
    target = MeasuredFolder(
        **{key: getattr(options, key) for key in PLACE},
        command=("check", *options.words()),
        embedded=embedded,
    )
    axes = {key: getattr(options, key) for key in AXES}
    if options.against is not None:
        return check_against(thresholds, options.against, axes, target)
    from dpbench.run.gate.beside import check_beside

    return check_beside(thresholds, str(options.against_ref), axes, target)


def _require_one_baseline(options: CheckOptions, given: Collection[str]) -> None:
    """Raises UsageError unless there is one baseline, and for options that would have no effect."""
    baselines = [key for key in BASELINES if getattr(options, key) is not None]
    is_stored = baselines == ["baseline"]
    if len(baselines) != 1 or is_stored != (options.candidate is not None):
        typed = [f"{_option(key)} {getattr(options, key)}" for key in baselines]
        got = " ".join([*filter(None, [options.candidate]), *typed]) or "nothing"
        raise UsageError(
            f"got {got} to compare; expected one of --against-ref REV (your code at a Git "
            "revision), --against NAME (an implementation) and a candidate with --baseline DIR "
            "(stored results)"
        )
    reason = f"{options.candidate} is stored" if is_stored else "both sides are measured here"
    for key in MEASURING if is_stored else ("force",):
        if key in given:
            raise UsageError(f"{_option(key)} has no effect, as {reason}; leave it out")


def _option(key: str) -> str:
    return option_name(CheckOptions, key)


def _write_files(options: CheckOptions, assessment: Assessment, notes: Sequence[str]) -> None:
    from dpbench.report.verdict_files import junit, pull_request

    if options.junit is not None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        text = junit(assessment, strict=options.strict, notes=notes, started_utc=now)
        write_text(options.junit, text)
    if options.markdown is not None:
        write_text(options.markdown, pull_request(assessment.verdict, notes))
