"""What `dpbench explain` answers, for the command and for `dpbench.explain`."""

from __future__ import annotations

import os
import shlex
import shutil

from dpbench.analysis.analyze import analyze
from dpbench.analysis.diagnosis.explanation import fastest_by_work
from dpbench.analysis.sentences import noise_warnings
from dpbench.errors import Interrupted, TrainingFailed, UsageError
from dpbench.folders import LOGS_FOLDER, Sweep, load_sweep
from dpbench.messages import say
from dpbench.options.explain import ExplainOptions
from dpbench.options.model import Subject
from dpbench.options.shared import MAX_WORD
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status
from dpbench.report.answer import Answer
from dpbench.report.answers.explain import explanation_answer
from dpbench.report.progress.trials import TrialProgress
from dpbench.run.results_folders import results_to_read
from dpbench.specs.traits import SCRIPT

TAIL_LINES = 12
"""Lines that are shown of what a script wrote to stderr before it failed."""


def explain(options: ExplainOptions, progress: TrialProgress) -> Answer:
    """Explain rows of a results folder, or of a script, which is measured first. Where the speeds
    are too noisy, the answer says which, and what is known in spite of that.

    Raises UsageError if no row can be explained, FileError, and TrainingFailed.
    """
    is_stored = options.subject is Subject.RESULTS
    if is_stored:
        sweep = load_sweep(results_to_read("explain", options.results_or_script))
    else:
        sweep = _measure(options, progress)
    analysis = analyze(sweep)
    all_rows = analysis.rows
    if not analysis.explanations:
        failed = next((row for row in analysis.rows if row.reason), None)
        why = f" ({failed.label} {failed.status.words}: {failed.reason})" if failed else ""
        raise UsageError(
            f"{sweep.folder}: nothing to explain, because no row has a speed to compare with "
            f"`single`{why}"
        )
    there = options.choices([explanation.row for explanation in analysis.explanations])
    options.require_rows(all_rows, analysis.name)
    analysis = analysis.select(options.keeps)
    if not (explanations := analysis.explanations):
        what = f"nothing to explain in {analysis.rows[0].label}"
        raise UsageError(f"{sweep.folder}: {what}; there are {there}")
    clear = [e for e in explanations if not e.row.noisy_estimates]
    shown = clear if options.wanted and clear else fastest_by_work(explanations)
    asked = [e for e in explanations if options.wanted or e.trains_together] or shown
    noise = [*noise_warnings([e.row for e in asked], all_rows, "explain")]
    last_command = None if is_stored else options.command("explain").again(name=None)
    return explanation_answer(
        analysis, shown, noise=noise, last_command=last_command, verbose=options.verbose
    )


def _measure(options: ExplainOptions, progress: TrialProgress) -> Sweep:
    """Measure the script as `dpbench sweep` does, in the largest group only.

    A row that fails has no further repetitions. Raises TrainingFailed if all ranks together do,
    whose folder stays only if it was there before or something was measured, and Interrupted, which
    says how to finish and explain it.
    """
    from dpbench.run.sweep.plan import plan_sweep

    given = options.model_dump(mode="json", exclude_unset=True)
    script = given.pop("results_or_script", None)
    wanted = SweepOptions(script=script, group_sizes=(MAX_WORD,), **given)
    with plan_sweep(wanted) as run:
        is_new = not os.path.lexists(run.sweep.folder)
        try:
            stored = run.measure(progress)
        except Interrupted as stopped:
            afterwards = shlex.join(["dpbench", "explain", str(run.sweep.folder)])
            raise Interrupted(stopped.signal_number, f"{stopped}; then {afterwards}") from None
    of_script = [r for r in stored.records if r.configuration.implementation == SCRIPT]
    failed = next((r for r in of_script if r.status is not Status.COMPLETED), None)
    if failed is None:
        say(f"records are in {stored.folder}")
        return stored
    reason = f"{failed.configuration.workload.architecture}: {failed.reason}"
    logs = stored.folder / LOGS_FOLDER
    if any(record.ranks for record in stored.records):
        reason += f"; its output is in {logs}"
        if any(record.status is Status.COMPLETED for record in of_script):
            rest = shlex.join(["dpbench", "explain", str(stored.folder)])
            reason += f"; explain the rest: {rest}"
        raise TrainingFailed(reason)
    printed = [path.read_text(errors="replace") for path in logs.glob("*/*.stderr")]
    say(*max(printed, key=len, default="").splitlines()[-TAIL_LINES:])
    if is_new:  # and not an empty folder of the user's
        shutil.rmtree(stored.folder)
    raise TrainingFailed(reason)
