"""`dpbench explain`: why a configuration is as fast as it is, and what to try."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
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
from dpbench.run.results import RowFilter, filter_choices, is_table, parse_filter

if TYPE_CHECKING:
    from dpbench.analysis.configuration import ConfigurationSummary
    from dpbench.store import StoredSweep


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

    A sweep with independent in it tells contention from the wrapper.
    """
    wanted = parse_filter(
        implementations=implementations,
        backends=backends,
        group_sizes=group_sizes,
        batch_sizes=batch_sizes,
    )
    if folder is None:
        from dpbench.run.results import latest_folder

        folder = latest_folder("explain")
    if folder.is_file():
        if is_table(folder):
            raise UsageError(
                f"{folder}: a table of speeds cannot be explained; factors come from the step "
                "times of every rank, which only a results folder holds (dpbench report "
                f"{folder} prints it)"
            )
        raise UsageError(f"{folder}: expected a results folder")
    from dpbench.store import load

    _explain(load(folder), wanted, json=json, verbose=verbose)


def _explain(sweep: StoredSweep, wanted: RowFilter, *, json: bool, verbose: bool) -> None:
    from dpbench.analysis.comparisons.comparability import environment_notes
    from dpbench.analysis.diagnosis.advice import advise
    from dpbench.analysis.diagnosis.explanation import explain
    from dpbench.analysis.diagnosis.hints import load_notes
    from dpbench.analysis.summary import summarize
    from dpbench.report.explanation import answer

    rows = summarize(sweep.records)
    everything = explain(sweep.records, rows)
    chosen = [row for row in rows if wanted.passes(row)]
    explanations = [one for one in everything if wanted.passes(one.row)]
    if not explanations:
        raise UsageError(_nothing(sweep.folder, rows, chosen, [one.row for one in everything]))
    advice = advise(explanations, sweep.environments, everything)
    disturbed = load_notes(sweep.records)
    notes = environment_notes(sweep.records, sweep.environments)
    found = answer(
        explanations,
        advice,
        rows=chosen,
        first=disturbed,
        notes=notes,
        verbose=verbose,
    )
    typer.echo(found.render(as_json=json), nl=False)
    warn(*sweep.warnings)


def _nothing(
    folder: Path,
    rows: Sequence[ConfigurationSummary],
    chosen: Sequence[ConfigurationSummary],
    explained: Sequence[ConfigurationSummary],
) -> str:
    """Why there is nothing to explain, and what there would be."""
    if explained:
        what = f"nothing to explain in {chosen[0].label}" if chosen else "no such row"
        return f"{folder}: {what}; there are {filter_choices(explained)}"
    if not rows:
        return f"{folder}: no trial has ended yet; dpbench sweep --resume goes on with it"
    ends = (f"{r.label} {r.status.words}: {r.reason}" for r in rows if r.reason)
    return (
        f"{folder}: nothing to explain, because no row has a speed to compare with `single`"
        f"{''.join(f' ({end})' for end in islice(ends, 1))}"
    )
