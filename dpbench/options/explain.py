"""The options of `dpbench explain`."""

from __future__ import annotations

from dpbench.options.shared import RowFilter, json_option, printed, results_argument
from dpbench.options.types import FilePath


class ExplainOptions(RowFilter):
    """Which rows of a sweep to explain, and how much to print."""

    folder: FilePath | None = results_argument("Results folder of a sweep.", "DIR")
    as_json: bool = json_option("Print one JSON object with all rows.")
    verbose: bool = printed(
        "Also print the phases of a step and how to read the numbers.", "--verbose", "-v"
    )
