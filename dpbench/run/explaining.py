"""What `dpbench explain` answers, for the command and for `dpbench.explain`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpbench import units
from dpbench.analysis.diagnosis.explanation import (
    Explanation,
    fastest,
    noisiest,
    not_too_noisy,
    trained_together,
)
from dpbench.analysis.diagnosis.hints import code_notes
from dpbench.analysis.repetitions import load_notes
from dpbench.analysis.row import Row, noise_note
from dpbench.analysis.subject import of_folder
from dpbench.errors import DpbenchError, UsageError
from dpbench.messages import say, warn
from dpbench.options.explain import ExplainOptions, ScriptRunOptions
from dpbench.options.shared import LARGEST, RowFilter
from dpbench.options.sweep import SweepOptions
from dpbench.records.trial import Status
from dpbench.report.answer import Answer
from dpbench.report.explanation import answer
from dpbench.report.numbers import plus_minus
from dpbench.run.results import filter_choices, latest_folders
from dpbench.specs.traits import SCRIPT
from dpbench.store import LOGS_FOLDER, load


class ScriptUnmeasured(DpbenchError):
    """The script could not be measured on all ranks; the text says why."""


def explain(options: ExplainOptions) -> Answer:
    """Explain rows of a results folder, or of a script, which is measured first.

    Raises UsageError if no row can be explained, StoreError, and ScriptUnmeasured.
    """
    if options.script_words:
        folder = _measure(options)
    else:
        folder = options.folder or latest_folders("explain")[0]
    if folder.is_file():
        raise UsageError(
            f"{folder}: expected a results folder; factors come from the step times of every rank"
        )
    sweep = load(folder)
    subject = of_folder(sweep)
    rows = [row for row in subject.rows if options.passes(row)]
    explanations = [one for one in subject.explanations if options.passes(one.row)]
    if not subject.explanations:
        failed = next((row for row in subject.rows if row.reason), None)
        why = f" ({failed.label} {failed.status.words}: {failed.reason})" if failed else ""
        raise UsageError(
            f"{folder}: nothing to explain, because no row has a speed to compare with "
            f"`single`{why}"
        )
    if not explanations:
        what = f"nothing to explain in {rows[0].label}" if rows else "no such row"
        there = filter_choices([one.row for one in subject.explanations])
        raise UsageError(f"{folder}: {what}; there are {there}")
    stated = not_too_noisy(explanations)
    noisy = [one.row for one in explanations if one.is_too_noisy]
    chooses = any(getattr(options, name) is not None for name in RowFilter.model_fields)
    shown = stated if chooses else fastest(trained_together(stated) or stated)
    if not shown:  # what a script does wrong is seen whatever its speed
        shown = tuple(one for one in explanations if one.symptoms)
    if not shown and not options.as_json:
        why = "; ".join(
            (_too_noisy(fastest(explanations)[0], subject.rows), *load_notes(sweep.records))
        )
        raise UsageError(f"{folder}: {why}; `dpbench report {folder}` shows what was measured")
    first = (*subject.unfinished, *load_notes(sweep.records))
    warn(*sweep.warnings)
    return answer(
        explanations,
        shown=shown,
        rows=rows,
        first=first,
        notes=(
            *([noise_note(noisy, "explain")] if noisy else []),
            *(note for note in subject.warnings if note not in first),
            *code_notes(subject.rows),
        ),
        verbose=options.verbose,
    )


def _measure(options: ExplainOptions) -> Path:
    """Measure the script as `dpbench sweep` does, in the largest group only, and return the folder.

    A row that fails has no further repetitions. Raises ScriptUnmeasured if all ranks together do.
    """
    from dpbench.report.progress.trials import Reporter
    from dpbench.run.sweep.measuring import measure_sweep

    given = {*ScriptRunOptions.model_fields} & options.model_fields_set
    asked = SweepOptions(
        script=str(options.folder),
        arguments=options.arguments,
        module=options.module,
        group_sizes=(LARGEST,),
        stop_after_failure=True,
        **{name: getattr(options, name) for name in given},
    )
    stored = measure_sweep(asked, Reporter(quiet=options.quiet))
    say(f"records are in {stored.folder}")
    for record in stored.records:
        if record.status is not Status.COMPLETED and record.trial.implementation == SCRIPT:
            kept = f"; its output is in {stored.folder / LOGS_FOLDER}"
            raise ScriptUnmeasured(f"{record.trial.workload.architecture}: {record.reason}{kept}")
    return stored.folder


def _too_noisy(one: Explanation, rows: Sequence[Row]) -> str:
    """Which speed is too noisy to explain a row, its own or one that it is compared with."""
    row, speed = noisiest(one, rows)
    counted = units.counted(row.repetitions, "repetition")
    slow = f"; it has {one.slow_steps.text}" if one.slow_steps else ""
    return (
        f"{one.row.label} is too noisy to explain: {row.label} reached "
        f"{plus_minus(speed, plain_decimals=1)} {speed.unit} in {counted}; measure again with more "
        f"--repetitions{slow}"
    )
