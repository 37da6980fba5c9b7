"""A check from its options, for the command and for `dpbench.check`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from dpbench.errors import UsageError
from dpbench.files import write_output
from dpbench.options.check import CheckOptions
from dpbench.report.answer import Answer
from dpbench.report.progress.trials import TrialProgress
from dpbench.report.verdict import check_answer, junit
from dpbench.run.gate.beside import measure_versions
from dpbench.run.gate.judging import (
    Check,
    exit_status_of,
    measure_implementations,
    stored_sides,
    tolerances_of,
)


def check(options: CheckOptions, progress: TrialProgress) -> Answer:
    """Measure what is asked for unless it is stored, judge it, and write the files.

    The exit status is in the data of the answer. Raises UsageError, StoreError, and NotComparable
    if there is nothing to compare.
    """
    for path in (options.junit, options.markdown):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UsageError(f"{path}: expected the name of a file in a folder that exists")
    wanted = Check(options=options, tolerances=tolerances_of(options), progress=progress)
    notes: list[str] = []
    if options.baseline is not None:
        sides, notes = stored_sides(str(options.candidate), options.baseline)
    elif options.against is not None:
        sides = measure_implementations(wanted, options.against)
    else:
        sides = measure_versions(wanted)
    verdict = wanted.judge(sides)
    status = exit_status_of(verdict, sides, strict=options.strict)
    if not status and verdict.outcome == "inconclusive":
        notes.append("inconclusive is an error only with --strict")
    verdict = replace(verdict, notes=(*notes, *verdict.notes, wanted.describe()))
    found = check_answer(verdict, exit_status=status)
    if options.junit is not None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        text = junit(verdict, strict=options.strict, started_utc=now)
        write_output(options.junit, text)
    if options.markdown is not None:
        heading = f"### dpbench check: {verdict.outcome}"
        write_output(options.markdown, f"{heading}\n\n{found.markdown}")
    return found
