"""`dpbench compare`: reads two sides, and compares them configuration by configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpbench.messages import warn
from dpbench.options.results import CompareOptions
from dpbench.run.results import load_sides

if TYPE_CHECKING:
    from dpbench.report.answer import Answer


def compare(options: CompareOptions) -> Answer:
    """Compare two sweeps, or two selections of one; raises UsageError, FileError, and
    NotComparable."""
    from dpbench.analysis.comparisons.comparison import compare_sides
    from dpbench.report.answers.compare import comparison_answer

    (before, now), warnings = load_sides(options.baseline, options.candidate)
    warn(*warnings)
    compared = compare_sides(before, now, force=options.force)
    return comparison_answer(compared, options.metric, within=options.within)
