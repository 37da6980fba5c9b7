"""`dpbench compare`: two sweeps, or two selections of one, configuration by configuration."""

from __future__ import annotations

from typing import Annotated, Any

from dpbench.messages import print_result, warn
from dpbench.options.bridge import command, read_options, read_value
from dpbench.options.reading import CompareOptions
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
    from dpbench.analysis.metrics import COMPARED_METRICS

    for name in options.metric:
        read_value("--metric", Annotated[str, one_of(tuple(COMPARED_METRICS))], name)
    from dpbench.analysis.comparisons.comparison import compare_sides
    from dpbench.cli.show_results import latest
    from dpbench.report.comparison import comparison_answer
    from dpbench.run.results import load_sides

    baseline, candidate = options.baseline, options.candidate
    if baseline is None or candidate is None:
        baseline, candidate = map(str, latest("compare", 2))
    (before, now), warnings = load_sides(baseline, candidate)
    warn(*warnings)
    metrics = dict.fromkeys(options.metric, options.within)
    compared = compare_sides(before, now, metrics, force=options.force)
    print_result(comparison_answer(compared, within=options.within).render(as_json=options.as_json))
