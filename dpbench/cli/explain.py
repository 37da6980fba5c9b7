"""`dpbench explain`: why a configuration is as fast as it is, and what to try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpbench.errors import UsageError
from dpbench.messages import print_result, warn
from dpbench.options.bridge import Layer, command, read
from dpbench.options.explain import ExplainOptions
from dpbench.options.shared import RowFilter

if TYPE_CHECKING:
    from dpbench.analysis.configuration import ConfigurationSummary
    from dpbench.analysis.diagnosis.explanation import Explanation


@command(ExplainOptions)
def explain(typed: dict[str, Any]) -> None:
    """Show where scaling efficiency is lost, and what to try.

    dpbench explain results/before-the-change --group-size 2

    Without options that choose rows, explains the fastest one with several replicas. Include
    independent in the sweep to separate contention from the wrapper.
    """
    options = read(ExplainOptions, Layer("", typed))
    from dpbench.analysis.comparisons.comparability import environment_notes
    from dpbench.analysis.configuration import noise_note
    from dpbench.analysis.diagnosis.advice import advise
    from dpbench.analysis.diagnosis.explanation import explain, fastest, trained_together
    from dpbench.analysis.diagnosis.hints import load_notes
    from dpbench.analysis.summary import summarize
    from dpbench.report.explanation import answer
    from dpbench.run.results import filter_choices, latest_folder
    from dpbench.store import load

    folder = options.folder or latest_folder("explain")
    if folder.is_file():
        raise UsageError(
            f"{folder}: expected a results folder; factors come from the step times of every rank"
        )
    sweep = load(folder)
    rows = summarize(sweep.records)
    everything = explain(sweep.records, rows)
    chosen = [row for row in rows if options.passes(row)]
    explanations = [one for one in everything if options.passes(one.row)]
    if not everything:
        why = next((f" ({r.label} {r.status.words}: {r.reason})" for r in rows if r.reason), "")
        raise UsageError(
            f"{folder}: nothing to explain, because no row has a speed to compare with "
            f"`single`{why}"
        )
    if not explanations:
        what = f"nothing to explain in {chosen[0].label}" if chosen else "no such row"
        there = filter_choices([one.row for one in everything])
        raise UsageError(f"{folder}: {what}; there are {there}")
    chooses = any(getattr(options, name) is not None for name in RowFilter.model_fields)
    clear = [one for one in explanations if not one.is_too_noisy]
    shown = explanations if chooses else fastest(trained_together(clear) or explanations)
    if all(one.is_too_noisy for one in shown):
        raise UsageError(f"{folder}: {_too_noisy(fastest(shown)[0], rows)}")
    noisy = [one.row for one in explanations if one.is_too_noisy]
    noise = [noise_note(noisy, "explain")] if noisy else []
    found = answer(
        clear,
        advise(clear, everything),
        shown=[one for one in shown if not one.is_too_noisy],
        rows=chosen,
        first=load_notes(sweep.records),
        notes=(*noise, *environment_notes(sweep.records, sweep.environments)),
        verbose=options.verbose,
    )
    print_result(found.render(as_json=options.as_json))
    warn(*sweep.warnings)


def _too_noisy(one: Explanation, rows: Sequence[ConfigurationSummary]) -> str:
    """Which speed is too noisy to explain a row, its own or one that it is compared with."""
    from dpbench import units
    from dpbench.analysis.diagnosis.explanation import noisiest
    from dpbench.report.numbers import plus_minus

    row, speed = noisiest(one, rows)
    counted = units.counted(row.repetitions, "repetition")
    return (
        f"{one.row.label} is too noisy to explain: {row.label} reached "
        f"{plus_minus(speed, plain_decimals=1)} {speed.unit} in {counted}; measure again with more "
        "--repetitions"
    )
