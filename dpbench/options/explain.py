"""The options of `dpbench explain`."""

from __future__ import annotations

from typing import Annotated

from dpbench.options.bridge import OptionInfo
from dpbench.options.report import LATEST_RESULTS
from dpbench.options.shared import OUTPUT_PANEL, RowFilter, json_option
from dpbench.options.types import FilePath


class ExplainOptions(RowFilter):
    """Which rows of a sweep to explain, and how much to print."""

    folder: Annotated[
        FilePath | None,
        OptionInfo("Results folder of a sweep.", "DIR", default=LATEST_RESULTS, argument=True),
    ] = None
    as_json: Annotated[bool, json_option("Print one JSON object with all rows.")] = False
    verbose: Annotated[
        bool,
        OptionInfo(
            "Also print the phases of a step and how to read the numbers.",
            None,
            OUTPUT_PANEL,
            also=("-v",),
        ),
    ] = False
