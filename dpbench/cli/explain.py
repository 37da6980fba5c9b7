"""`dpbench explain`: why a configuration is as fast as it is, and what to try."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpbench.cli.options import (
    LATEST_RESULTS,
    OnlyBackends,
    OnlyBatchSizes,
    OnlyGroupSizes,
    OnlyImplementations,
)
from dpbench.errors import UsageError
from dpbench.messages import warn
from dpbench.run.results import filter_choices, parse_filter

if TYPE_CHECKING:
    from dpbench.analysis.configuration import ConfigurationSummary
    from dpbench.analysis.diagnosis.explanation import Explanation


def explain(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", show_default=LATEST_RESULTS, help="Results folder of a sweep."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.")
    ] = False,
    implementations: OnlyImplementations = None,
    backends: OnlyBackends = None,
    group_sizes: OnlyGroupSizes = None,
    batch_sizes: OnlyBatchSizes = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print steps, phases and how to read them.")
    ] = False,
) -> None:
    """Show where scaling efficiency is lost, and what to try.

    dpbench explain results/before-the-change --group-size 2

    Include independent in the sweep to separate contention from the wrapper.
    """
    from dpbench.analysis.comparisons.comparability import environment_notes
    from dpbench.analysis.diagnosis.advice import advise
    from dpbench.analysis.diagnosis.explanation import explain
    from dpbench.analysis.diagnosis.hints import load_notes
    from dpbench.analysis.summary import summarize
    from dpbench.report.explanation import answer
    from dpbench.run.results import latest_folder
    from dpbench.store import load

    wanted = parse_filter(
        implementations=implementations,
        backends=backends,
        group_sizes=group_sizes,
        batch_sizes=batch_sizes,
    )
    folder = folder or latest_folder("explain")
    if folder.is_file():
        raise UsageError(
            f"{folder}: expected a results folder; factors come from the step times of every rank"
        )
    sweep = load(folder)
    rows = summarize(sweep.records)
    everything = explain(sweep.records, rows)
    explanations = [one for one in everything if wanted.passes(one.row)]
    chosen = [row for row in rows if wanted.passes(row)]
    if not explanations:
        raise UsageError(f"{sweep.folder}: {_nothing(rows, chosen, everything)}")
    found = answer(
        explanations,
        advise(explanations, sweep.environments, everything),
        rows=chosen,
        first=load_notes(sweep.records),
        notes=environment_notes(sweep.records, sweep.environments),
        verbose=verbose,
    )
    typer.echo(found.render(as_json=json), nl=False)
    warn(*sweep.warnings)


def _nothing(
    rows: Sequence[ConfigurationSummary],
    chosen: Sequence[ConfigurationSummary],
    explained: Sequence[Explanation],
) -> str:
    """Why there is nothing to explain, and what there would be."""
    if explained:
        what = f"nothing to explain in {chosen[0].label}" if chosen else "no such row"
        return f"{what}; there are {filter_choices([one.row for one in explained])}"
    if not rows:
        return "no trial has ended yet; dpbench sweep --resume continues it"
    why = next((f" ({r.label} {r.status.words}: {r.reason})" for r in rows if r.reason), "")
    return f"nothing to explain, because no row has a speed to compare with `single`{why}"
