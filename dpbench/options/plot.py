"""The options of `dpbench plot`."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

from dpbench.errors import UsageError
from dpbench.options.bridge import option
from dpbench.options.shared import RowFilter, output_option, results_argument
from dpbench.options.types import CommaList, FilePath, one_of
from dpbench.report.charts.kinds import CHARTS, IMAGE_FORMATS

ALL = "all"


class PlotOptions(RowFilter):
    """Which charts to draw, of which results, and where to."""

    kinds: CommaList[Annotated[str, one_of((*CHARTS, ALL))]] = option(
        (ALL,), "Charts, comma-separated, or all.", "KIND", argument=True
    )
    path: FilePath | None = results_argument()
    format: CommaList[Annotated[str, one_of(tuple(IMAGE_FORMATS))]] = output_option(
        ("png", "svg"), "Image formats: png, svg, pdf.", "A,B"
    )
    output: FilePath | None = output_option(
        None, "Folder for the charts.", "FOLDER", usual="PATH/report/charts"
    )

    @model_validator(mode="after")
    def _names_a_folder(self) -> PlotOptions:
        if self.output is not None and self.output.suffix.lower()[1:] in IMAGE_FORMATS:
            raise UsageError(
                f"--output {self.output}: expected a folder; --format chooses the image format"
            )
        return self
