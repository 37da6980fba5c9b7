"""`dpbench check` from its options to its verdict, for the command and for `dpbench.check`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from dpbench import folders
from dpbench.analysis.change import ALPHA
from dpbench.analysis.comparisons.matching import Side
from dpbench.analysis.comparisons.verdict import Verdict, assess, deciding
from dpbench.errors import INCONCLUSIVE, PASSED, REGRESSED, WRONG_GRADIENTS, NotComparable
from dpbench.files import write_output
from dpbench.options.check import CheckOptions, CheckStored
from dpbench.records.trial import Status
from dpbench.report.answer import Answer
from dpbench.report.answers.check import check_answer, junit
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.check.interim import InterimAnalyses
from dpbench.run.check.measured_sweep import keep_records, plan_for_verdict, sweep_of_check
from dpbench.run.check.versions import check_versions
from dpbench.run.results import load_sides, new_folder, split_selection
from dpbench.run.sweep.measuring import exit_status, open_run


def run_check(options: CheckStored, progress: TrialProgress) -> Answer:
    """Measure what is asked for unless it is stored, judge it, and write the files.

    Raises UsageError, FileError, and NotComparable if there is nothing to compare.
    """
    notes: list[str] = []
    if not isinstance(options, CheckOptions):
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
    folder = new_folder(options.results_dir, options.name, otherwise="check")
    wanted = sweep_of_check(options, folder, against)
    (checked,) = options.measured_implementations
    with (
        plan_for_verdict(wanted, options.command("check")) as plan,
        open_run(plan, progress) as run,
    ):
        analyses = InterimAnalyses(options)
        while analyses.repetitions:
            run.until(analyses.repetitions)
            measured = partial(Side, sweep=folders.load_sweep(folder), run_id=str(folder))
            baseline = measured(label=against, where={"implementation": against})
            candidate = measured(label=checked, where={"implementation": checked})
            analyses.judge(baseline, candidate)
    keep_records(folder)
    return analyses.verdicts


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
    if (is_idle or not status) and not any(row.change for one in verdicts for row in one.rows):
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
