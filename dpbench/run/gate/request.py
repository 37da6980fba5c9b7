"""A check from its options, for the command and for `dpbench.check`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dpbench.errors import UsageError
from dpbench.files import as_text, write_file
from dpbench.options.bridge import Given, option_name, read_options
from dpbench.options.check import CheckOptions

if TYPE_CHECKING:
    from dpbench.analysis.comparisons.verdict import Verdict
    from dpbench.report.answer import Answer
    from dpbench.run.gate.judging import Check, Judged

BASELINES = ("baseline", "against", "against_ref", "against_python")
"""Options that name what the candidate is compared with."""
OF_STORED = (
    *("candidate", "baseline", "force", "strict", "tolerance", "metric"),
    *("junit", "markdown", "as_json", "quiet", "config"),
)
"""Options that have an effect where nothing is measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The verdict, what is printed of it, and the exit status of the command."""

    verdict: Verdict
    answer: Answer
    exit_status: int


def as_option(field: str, value: object = None) -> str:
    """An option of `dpbench check` in messages, with its value if there is one."""
    words = [] if field == CheckOptions.first else [option_name(CheckOptions, field)]
    return " ".join([*words, *([] if value is None else [str(value)])])


def check(given: Given, named: Callable[..., str] = as_option) -> CheckResult:
    """Measure what is `given` unless it is stored, judge it, and write the files.

    `named` is how the caller names a field of `CheckOptions`, and its value, in messages. Raises
    UsageError, StoreError, and NotComparable if there is nothing to compare.
    """
    options = read_options(CheckOptions, given)
    _require_one_baseline(options, {*given}, named)
    from dpbench.report.verdict import answer
    from dpbench.run.gate.judging import Check, tolerances_of

    for path in (options.junit, options.markdown):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UsageError(f"{path}: expected the name of a file in a folder that exists")
    wanted = Check(options=options, tolerances=tolerances_of(options))
    verdict, exit_status = _judged(wanted)
    failed = (f"{label}: {how}" for label, how, _ in verdict.failures)
    notes = [*failed, *verdict.notes, wanted.describe()]
    found = answer(verdict, notes, exit_status=exit_status)
    _write_files(options, verdict, notes, found)
    return CheckResult(verdict=verdict, answer=found, exit_status=exit_status)


def _judged(wanted: Check) -> Judged:
    from dpbench.run.gate.judging import check_against, check_stored

    options = wanted.options
    if options.candidate is not None and options.baseline is not None:
        return check_stored(wanted, options.candidate, options.baseline)
    if options.against is not None:
        return check_against(wanted, options.against)
    from dpbench.run.gate.beside import check_beside

    return check_beside(wanted)


def _require_one_baseline(
    options: CheckOptions, given: set[str], named: Callable[..., str]
) -> None:
    """Raises UsageError unless there is one baseline, and for options that would have no effect."""
    options.require_script_or_nothing("a results folder")
    stored = None if options.script_words else options.candidate
    baselines = [key for key in BASELINES if getattr(options, key) is not None]
    is_stored = baselines == ["baseline"]
    if len(baselines) != 1 or is_stored != (stored is not None):
        compared = [*([CheckOptions.first] if stored is not None else []), *baselines]
        got = " ".join(named(key, getattr(options, key)) for key in compared) or "nothing"
        raise UsageError(
            f"got {got} to compare; expected one of {named('against_ref', 'REV')} (your code at a "
            f"Git revision), {named('against_python', 'PATH')} (another environment), "
            f"{named('against', 'NAME')} (an implementation) and "
            f"{named('candidate', 'DIR')} with {named('baseline', 'DIR')} (stored results)"
        )
    reason = f"{stored} is stored" if is_stored else "both sides are measured here"
    for key in sorted(given - {*OF_STORED} if is_stored else given & {"force"}):
        raise UsageError(f"{named(key)} has no effect, as {reason}; leave it out")


def _write_files(
    options: CheckOptions, verdict: Verdict, notes: Sequence[str], found: Answer
) -> None:
    from dpbench.report.verdict import junit

    if options.junit is not None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        text = junit(verdict, strict=options.strict, notes=notes, started_utc=now)
        write_file(options.junit, as_text(text))
    if options.markdown is not None:
        heading = f"### dpbench check: {verdict.outcome}"
        write_file(options.markdown, as_text(f"{heading}\n\n{found.markdown}"))
