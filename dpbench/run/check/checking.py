"""`dpbench check` from its options to its verdict, for the command and for `dpbench.check`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic

from dpbench import folders, units
from dpbench.analysis.change import ALPHA
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import INTERIM_ALPHA, Verdict, assess, deciding
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
from dpbench.specs import Labels, TrialSpec
from dpbench.specs.sweep import palindrome
from dpbench.specs.traits import SINGLE

REPETITIONS_GROWTH = 1.5
"""How many times as many repetitions the next analysis of an inconclusive check has."""
MAX_ANALYSES = 8
"""Most analyses that INTERIM_ALPHA allows: with more, errors are more frequent than stated."""


def run_check(options: CheckOptions, progress: TrialProgress) -> Answer:
    """Measure what is asked for unless it is stored, judge it, and write the files.

    Raises UsageError, FileError, and NotComparable if there is nothing to compare.
    """
    notes: list[str] = []
    if options.subject is Subject.RESULTS:
        baseline, candidate, notes = stored_sides(str(options.candidate), str(options.baseline))
        verdicts = assess(baseline, candidate, options.tolerances, force=options.force, alpha=ALPHA)
    elif options.against is not None:
        verdicts = check_implementations(options, options.against, progress)
    else:
        verdicts = check_versions(options, progress)
    status = exit_status_of(verdicts, strict=options.strict)
    outcome = deciding(verdicts).outcome
    if not status and outcome == "inconclusive":
        notes.append("inconclusive is an error only with --strict")
    answer = check_answer(verdicts, notes, exit_status=status)
    if options.junit is not None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        write_output(options.junit, junit(verdicts, notes, strict=options.strict, started_utc=now))
    if options.markdown is not None:
        write_output(options.markdown, f"### dpbench check: {outcome}\n\n{answer.markdown}")
    return answer


def stored_sides(candidate: str, baseline: str) -> tuple[Side, Side, list[str]]:
    """Stored results, both folders or parts of them, as in compare; and notes on them.

    Raises NotComparable if there is no baseline, as before the first run of a CI job.
    """
    folder = split_selection(baseline)[0]
    if not (folders.holds_sweep(folder) or folder.is_file()):
        raise NotComparable(f"--baseline {baseline}: {folder} has no sweep to compare with")
    (before, now), notes = load_sides(baseline, candidate)
    if before.run_id != now.run_id:
        notes.append(
            "two sweeps: what changed on the machine between them counts as a change; "
            "--against-ref REV measures both versions of your code in turn"
        )
    return before, now, notes


def check_implementations(
    options: CheckOptions, against: str, progress: TrialProgress
) -> tuple[Verdict, ...]:
    """Measure the candidate and another implementation in turn, in one sweep, and judge them."""
    folder = results_folder(options.results_dir, options.name, otherwise="check", is_new=True)
    wanted = sweep_of_check(options, folder, against)
    (checked,) = options.measured_implementations
    with plan_sweep(wanted, options.command("check"), only_speeds=True) as run:
        analyses = InterimAnalyses(options)
        while analyses.repetitions:
            sweep = run.measure(progress, analyses.repetitions)
            measured = partial(Side, sweep=sweep, run_id=str(folder))
            baseline = measured(label=against, where={"implementation": against})
            candidate = measured(label=checked, where={"implementation": checked})
            analyses.judge(baseline, candidate)
    keep_records(folder)
    return analyses.verdicts


def check_versions(options: CheckOptions, progress: TrialProgress) -> tuple[Verdict, ...]:
    """Measure the code as it stands, in this Python, and the other version in turn, and judge them.

    What disturbs the machine disturbs both, and they are compared repetition by repetition; which
    of them goes first alternates. Raises UsageError if they cannot be measured.
    """
    folder = results_folder(options.results_dir, options.name, otherwise="check", is_new=True)
    before = folder.with_name(f"{folder.name}-baseline")
    if (excess := len(before.name.encode()) - folders.MAX_NAME) > 0:
        raise UsageError(
            f"{option_words('name')}: expected a name that is {units.counted(excess, 'byte')} "
            "shorter, as the other version is stored in NAME-baseline"
        )
    require_free(before, folders.RESUME_REMEDY)
    # Absolute, as a revision has another working directory.
    sweep = sweep_of_check(options, folder.absolute())
    sweep_before = sweep_of_check(options, before.absolute())
    command = options.command("check")
    label = "the working directory" if options.against_python is None else "this Python"
    said = set[str]()

    def interrupted_words() -> str:
        return f"no verdict{f'; records are in {folder} and {before}' if before.exists() else ''}"

    with ExitStack() as stack:
        stack.enter_context(interruptible(interrupted_words))
        then = stack.enter_context(baseline_version(options, sweep_before, before, said))
        say(f"starting {label} and {then.label}, each in a process of its own")
        planned = then.plan(sweep_before, command)
        # Not before, so that neither takes the start of the other for load on the machine.
        now = stack.enter_context(VersionProcess(label, folder, said))
        now.plan(sweep, command)
        stack.enter_context(progress)
        trials = [TrialSpec(configuration=each) for each in planned]
        analyses = InterimAnalyses(options)
        done = 0
        while analyses.repetitions:
            goal = analyses.repetitions
            progress.planned(trials * 2 * (goal - done), Labels.among(planned))
            # Ranks inherit the layout of memory of their server, which alone may make a version
            # some percent slower. So another one forks the second half of the first repetitions,
            # and others those that are added.
            renewed_at = done or math.ceil(goal / 2)
            for version, number in palindrome((then, now), range(done, goal)):
                is_renewed = number == renewed_at
                for record in version.measure(number + 1, with_new_server=is_renewed):
                    progress.finished(record, version.label)
            done = goal
            analyses.judge(then.side(), now.side())
    keep_records(folder, before)
    return analyses.verdicts


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


class InterimAnalyses:
    """The interim analyses of a group-sequential test, from now on: a verdict that stopped at the
    first lucky repetition would be wrong more often than stated."""

    def __init__(self, options: CheckOptions) -> None:
        self.repetitions = options.repetitions
        """Repetitions that the next analysis needs; 0 after the last one."""
        self.verdicts: tuple[Verdict, ...] = ()
        """The verdicts of the latest analysis."""
        self._options = options
        self._started = monotonic()
        self._count = 0

    def judge(self, baseline: Side, candidate: Side) -> None:
        """Judge the sides, which have as many repetitions as were needed."""
        options = self._options
        self.verdicts = assess(
            baseline,
            candidate,
            options.tolerances,
            force=options.force or options.against_python is not None,  # which is another one
            alpha=INTERIM_ALPHA,
        )
        self._count += 1
        more = self._repetitions_to_add(deciding(self.verdicts))
        self.repetitions = self.repetitions + more if more else 0

    def _repetitions_to_add(self, verdict: Verdict) -> int:
        """How many repetitions to add to those of the verdict: none if it is clear, if more of them
        cannot change it, or would end after the budget."""
        can_change = verdict.outcome == "inconclusive" and verdict.change is not None
        is_spoiled = verdict.compared.machine_load.spoils_differences
        if self._count == MAX_ANALYSES or is_spoiled or not can_change:
            return 0
        seconds = verdict.compared.repetition_seconds
        usual = median(seconds)
        budget = self._options.budget
        spent = monotonic() - self._started
        # What a round takes beside its repetitions, as the start of new servers of ranks.
        overhead = max(0.0, spent - sum(seconds)) / self._count
        grown = math.ceil(REPETITIONS_GROWTH * self.repetitions)
        more = min(grown - self.repetitions, math.floor((budget - spent - overhead) / usual))
        so_far = f"{verdict.outcome} after {self.repetitions} repetitions"
        if more < 1:
            say(f"{so_far}: one more would end after the budget of {units.seconds(budget)}")
            return 0
        say(f"{so_far}: measuring {more} more, about {units.seconds(overhead + more * usual)}")
        return more


def exit_status_of(verdicts: Sequence[Verdict], *, strict: bool) -> int:
    """The exit status: what failed goes before the outcome, and wrong gradients before all else.

    Raises NotComparable if not a single row has a number on both sides, but the candidate did not
    fail.
    """
    compared = verdicts[0].compared
    baseline, candidate = compared.baseline.selected(), compared.candidate.selected()
    status = exit_status(candidate)
    if exit_status(baseline) == WRONG_GRADIENTS:  # they void a baseline as well
        status = WRONG_GRADIENTS
    is_idle = all(record.status is Status.SKIPPED for record in candidate)
    is_compared = any(row.change for verdict in verdicts for row in verdict.rows)
    if (is_idle or not status) and not is_compared:
        row = verdicts[0].rows[0]
        reasons = [
            f" ({record.status.words}: {record.reason})"
            for record in (*candidate, *baseline)
            if record.status is not Status.COMPLETED and record.reason
        ]
        why = reasons[0] if reasons else ""
        raise NotComparable(f"nothing could be compared: {row.pair.label}: {row.reason}{why}")
    open_end = INCONCLUSIVE if strict else PASSED
    ends = {"pass": PASSED, "regressed": REGRESSED, "inconclusive": open_end}
    return status or ends[deciding(verdicts).outcome]
