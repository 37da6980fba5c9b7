"""`dpbench compare`: two sweeps, or two selections of one, configuration by configuration."""

from __future__ import annotations

from typing import Any

from dpbench.cli.signature import command
from dpbench.messages import print_result, warn
from dpbench.options.reading import read_options
from dpbench.options.results import CompareOptions


@command(CompareOptions)
def compare(typed: dict[str, Any]) -> None:
    """Compare two sweeps, or parts of one: which is faster, and by how much.

    dpbench compare results/before results/after

    dpbench compare results/x:implementation=torch-ddp results/x:implementation=ddp

    Exit status: 0 compared, whatever the result (dpbench check is the gate); 2 usage; 5 the two
    cannot be compared.
    """
    options = read_options(CompareOptions, typed)
    from dpbench.analysis.comparisons.comparison import compare_sides
    from dpbench.report.answers.compare import comparison_answer
    from dpbench.run.results import latest_folders, load_sides

    baseline, candidate = options.baseline, options.candidate
    if baseline is None or candidate is None:
        baseline, candidate = map(str, latest_folders("compare", 2))
    (before, now), warnings = load_sides(baseline, candidate)
    warn(*warnings)
    compared = compare_sides(before, now, force=options.force)
    answer = comparison_answer(compared, options.metric, within=options.within)
    print_result(answer.render(as_json=options.as_json))
