"""`dpbench compare`: two sweeps, or two selections of one, configuration by configuration."""

from __future__ import annotations

from typing import Annotated, Any

from dpbench.errors import NotComparable
from dpbench.messages import print_result, warn
from dpbench.options.bridge import command, read_options, read_value
from dpbench.options.compare import CompareOptions
from dpbench.options.types import one_of


@command(CompareOptions)
def compare(typed: dict[str, Any]) -> None:
    """Compare two sweeps, or parts of one: which is faster, and by how much.

    dpbench compare results/before results/after

    dpbench compare results/x:implementation=torch-ddp results/x:implementation=ddp

    Exit status: 0 compared, whatever the result (dpbench check is the gate); 2 usage; 5 the two
    cannot be compared.
    """
    options = read_options(CompareOptions, typed)
    from dpbench.analysis.metrics import METRICS

    for name in options.metric:
        read_value("--metric", Annotated[str, one_of(tuple(METRICS))], name)
    from dpbench.analysis.comparisons.comparability import (
        check_environments,
        environment_differences,
    )
    from dpbench.analysis.comparisons.comparison import compare_metric
    from dpbench.analysis.comparisons.matching import match
    from dpbench.cli.show_results import latest
    from dpbench.report.comparison import answer
    from dpbench.run.results import load_sides

    baseline, candidate = options.baseline, options.candidate
    if baseline is None or candidate is None:
        baseline, candidate = map(str, latest("compare", 2))
    sides, warnings = load_sides(baseline, candidate)
    warn(*warnings)
    matched = match(*sides)
    notes = [*check_environments(matched, force=options.force)]
    notes += [f"environments differ: {one}" for one in environment_differences(matched)]
    within = options.within
    found = {name: compare_metric(matched, METRICS[name], within=within) for name in options.metric}
    for name, rows in found.items():
        if not rows:
            raise NotComparable(f"{name} was measured on neither side; take another --metric")
    shown = answer(found, matched, within=within, notes=notes)
    print_result(shown.render(as_json=options.as_json))
