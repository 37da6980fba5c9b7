"""`dpbench check` from its options to its verdict, for the command and for `dpbench.check`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic

from dpbench import folders, units
from dpbench.analysis.change import ALPHA
from dpbench.analysis.comparisons.comparison import Comparison, compare_sides
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import INTERIM_ALPHA, deciding, judge
from dpbench.errors import (
    INCONCLUSIVE,
    PASSED,
    REGRESSED,
    WRONG_GRADIENTS,
    NotComparable,
    UsageError,
)
from dpbench.files import require_free, write_inside, write_output
from dpbench.messages import option_words, say
from dpbench.options.check import CheckOptions
from dpbench.options.model import Subject
from dpbench.options.reading import read_options
from dpbench.options.shared import MAX_WORD
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status
from dpbench.report.answer import Answer
from dpbench.report.answers.check import check_answer, junit
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.check.versions import VersionProcess, baseline_version
from dpbench.run.comparing import load_sides, split_selection
from dpbench.run.interrupts import interruptible
from dpbench.run.results_folders import results_folder
from dpbench.run.sweep.measuring import exit_status
from dpbench.run.sweep.plan import plan_sweep
from dpbench.specs import Configuration, Labels
from dpbench.specs.sweep import palindrome
from dpbench.specs.traits import SINGLE

REPETITIONS_GROWTH = 1.5
"""How many times as many repetitions the next analysis of an inconclusive check has."""
MAX_ANALYSES = 8
"""Most analyses that INTERIM_ALPHA allows: with more, errors are more frequent than stated."""


def check(options: CheckOptions, progress: TrialProgress) -> Answer:
    """Measure what is asked for unless it is stored, judge it, and write the files.

    Raises UsageError, FileError, and NotComparable if there is nothing to compare.
    """
    notes: list[str] = []
    if options.subject is Subject.RESULTS:
        sides, notes = stored_sides(str(options.baseline), str(options.candidate))
        compared = assess(options, *sides, alpha=ALPHA)
    elif options.against is not None:
        compared = check_implementations(options, options.against, progress)
    else:
        compared = check_versions(options, progress)
    status = exit_status_of(compared, strict=options.strict)
    outcome = deciding(compared).outcome
    if not status and outcome == "inconclusive":
        notes.append("inconclusive is an error only with --strict")
    compared = replace(compared, notes=(*notes, *compared.notes))
    answer = check_answer(compared, exit_status=status)
    if options.junit is not None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        write_output(options.junit, junit(compared, strict=options.strict, started_utc=now))
    if options.markdown is not None:
        write_output(options.markdown, f"### dpbench check: {outcome}\n\n{answer.markdown}")
    return answer


def stored_sides(baseline: str, candidate: str) -> tuple[list[Side], list[str]]:
    """Stored results, both folders or parts of them, as in compare; and notes on them.

    Raises NotComparable if there is no baseline, as before the first run of a CI job.
    """
    folder = split_selection(baseline)[0]
    if not (folders.holds_sweep(folder) or folder.is_file()):
        raise NotComparable(f"--baseline {baseline}: {folder} has no sweep to compare with")
    sides, notes = load_sides(baseline, candidate)
    if sides[0].sweep is not sides[1].sweep:
        notes.append(
            "two sweeps: what changed on the machine between them counts as a change; "
            "--against-ref REV measures both versions of your code in turn"
        )
    return sides, notes


def assess(options: CheckOptions, baseline: Side, candidate: Side, *, alpha: float) -> Comparison:
    """Compare the sides, and judge each metric by its tolerance, at the level `alpha`.

    Raises NotComparable and UsageError as `compare_sides` does.
    """
    compared = compare_sides(
        baseline,
        candidate,
        options.tolerances,
        ran_in_turn=options.subject is not Subject.RESULTS,
        force=options.force or options.against_python is not None,  # which is another environment
    )
    return judge(compared, options.tolerances, alpha=alpha)


def check_implementations(
    options: CheckOptions, against: str, progress: TrialProgress
) -> Comparison:
    """Measure the candidate and another implementation in turn, in one sweep, and judge them."""
    folder = results_folder(options.results_dir, options.name, otherwise="check", is_new=True)
    names = (against, *options.measured_implementations)

    wanted = sweep_of_check(options, folder, against)
    with plan_sweep(wanted, options.command("check")) as run:

        def measure(repetitions: range) -> list[Side]:
            sweep = run.measure(progress, repetitions.stop)
            return [Side(label=name, sweep=sweep, where={"implementation": name}) for name in names]

        compared = measure_until_clear(options, measure)
    keep_records(folder)
    return compared


def check_versions(options: CheckOptions, progress: TrialProgress) -> Comparison:
    """Measure the code as it stands, in this Python, and the other version in turn, and judge them.

    Raises UsageError if they cannot be measured.
    """
    folder = results_folder(options.results_dir, options.name, otherwise="check", is_new=True)
    baseline_folder = folder.with_name(f"{folder.name}-baseline")
    if (excess := len(baseline_folder.name.encode()) - folders.MAX_NAME) > 0:
        raise UsageError(
            f"{option_words('name')}: expected a name that is {units.counted(excess, 'byte')} "
            "shorter, as the other version is stored in NAME-baseline"
        )
    require_free(baseline_folder, folders.RESUME_REMEDY)
    # Absolute, as a revision has another working directory.
    sweep = sweep_of_check(options, folder.absolute())
    baseline_sweep = sweep_of_check(options, baseline_folder.absolute())
    command = options.command("check")
    label = "the working directory" if options.against_python is None else "this Python"
    said = set[str]()
    with (
        interruptible(partial(_no_verdict, folder, baseline_folder)),
        baseline_version(options, baseline_sweep, said) as baseline,
    ):
        say(f"starting {label} and {baseline.label}, each in a process of its own")
        planned = baseline.plan(command)
        # Not before, so that neither takes the start of the other for load on the machine.
        with VersionProcess(label, sweep, said) as candidate:
            candidate.plan(command)
            with progress:
                measure = partial(measure_in_turn, (baseline, candidate), planned, progress)
                compared = measure_until_clear(options, measure)
    keep_records(folder, baseline_folder)
    return compared


def _no_verdict(folder: Path, baseline_folder: Path) -> str:
    """Says that there is no verdict, and where the records are."""
    is_stored = baseline_folder.exists()
    return f"no verdict{f'; records are in {folder} and {baseline_folder}' if is_stored else ''}"


def measure_in_turn(
    versions: Sequence[VersionProcess],
    planned: Sequence[Configuration],
    progress: TrialProgress,
    repetitions: range,
) -> list[Side]:
    """Measure these repetitions of both versions, and return all that was measured.

    What disturbs the machine disturbs both, and they are compared repetition by repetition; which
    of them goes first alternates.
    """
    progress.planned([*planned] * 2 * len(repetitions), Labels.among(planned))
    # Ranks inherit the layout of memory of their server, which alone may make a version some
    # percent slower. So another one forks the second half of the first repetitions, and others
    # those that are added.
    renewed_at = repetitions.start or math.ceil(repetitions.stop / 2)
    for version, number in palindrome(versions, repetitions):
        is_renewed = number == renewed_at
        for record in version.measure(number + 1, with_new_server=is_renewed):
            progress.finished(record, version.label)
    return [version.side() for version in versions]


def measure_until_clear(
    options: CheckOptions, measure: Callable[[range], list[Side]]
) -> Comparison:
    """Judge all that was measured whenever `measure` has added some repetitions, until the verdict
    is clear, more of them cannot change it, or they would end after the budget.

    It is a group-sequential test, whose few analyses are planned ahead: a verdict that stopped at
    the first lucky repetition would be wrong more often than stated.
    """
    started = monotonic()
    repetitions = range(options.repetitions)
    for analyses in range(1, MAX_ANALYSES + 1):
        compared = assess(options, *measure(repetitions), alpha=INTERIM_ALPHA)
        verdict = deciding(compared)
        can_change = verdict.outcome == "inconclusive" and verdict.change is not None
        if not can_change or compared.machine_load.spoils_differences or analyses == MAX_ANALYSES:
            break
        seconds = compared.repetition_seconds
        usual = median(seconds)
        spent = monotonic() - started
        # What a round takes beside its repetitions, as the start of new servers of ranks.
        overhead = max(0.0, spent - sum(seconds)) / analyses
        done = repetitions.stop
        goal = math.ceil(REPETITIONS_GROWTH * done)
        more = min(goal - done, math.floor((options.budget - spent - overhead) / usual))
        so_far = f"inconclusive after {done} repetitions"
        if more < 1:
            say(f"{so_far}: one more would end after the budget of {units.seconds(options.budget)}")
            break
        say(f"{so_far}: measuring {more} more, about {units.seconds(overhead + more * usual)}")
        repetitions = range(done, done + more)
    return compared


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


def keep_records(*kept: Path) -> None:
    """Say where the records of a check are, which Git leaves out of the user's repository."""
    for folder in kept:
        write_inside(folder / ".gitignore", b"*\n")
    say(f"records are in {' and '.join(map(str, kept))}")


def exit_status_of(compared: Comparison, *, strict: bool) -> int:
    """The exit status: what failed goes before the outcome, and wrong gradients before all else.

    Raises NotComparable if not a single row has a number on both sides, but the candidate did not
    fail.
    """
    baseline, candidate = compared.baseline.records, compared.candidate.records
    status = exit_status(candidate)
    if exit_status(baseline) == WRONG_GRADIENTS:  # they void a baseline as well
        status = WRONG_GRADIENTS
    is_idle = all(record.status is Status.SKIPPED for record in candidate)
    rows = [row for of_metric in compared.rows.values() for row in of_metric]
    is_compared = any(row.change for row in rows)
    if (is_idle or not status) and not is_compared:
        reasons = [
            f" ({record.status.words}: {record.reason})"
            for record in (*candidate, *baseline)
            if record.status is not Status.COMPLETED and record.reason
        ]
        why = reasons[0] if reasons else ""
        raise NotComparable(f"nothing could be compared: {rows[0].label}: {rows[0].reason}{why}")
    open_end = INCONCLUSIVE if strict else PASSED
    ends = {"pass": PASSED, "regressed": REGRESSED, "inconclusive": open_end}
    return status or ends[deciding(compared).outcome]
