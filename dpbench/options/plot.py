"""The options of `dpbench plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import model_validator

from dpbench.errors import UsageError
from dpbench.options.bridge import option
from dpbench.options.shared import OUTPUT_PANEL, RowFilter, results_argument
from dpbench.options.types import Choice, CommaList, FilePath
from dpbench.report.charts.kinds import CHARTS, IMAGE_FORMATS

ALL = "all"


class PlotOptions(RowFilter):
    """Which charts to draw, of which results, and where to."""

    kinds: CommaList[Annotated[str, Choice((*CHARTS, ALL))]] = option(
        (ALL,), "Charts, comma-separated, or all.", "KIND", argument=True
    )
    path: FilePath | None = results_argument()
    format: CommaList[Annotated[str, Choice(tuple(IMAGE_FORMATS))]] = option(
        ("png", "svg"), "Image formats: png, svg, pdf.", "A,B", panel=OUTPUT_PANEL
    )
    output: FilePath | None = option(
        None,
        "Folder, or for one chart a .png, .svg or .pdf file.",
        "PATH",
        panel=OUTPUT_PANEL,
        usual="PATH/report/charts",
    )

    @property
    def file(self) -> Path | None:
        """The file that one chart is written into."""
        is_file = self.output and self.output.suffix.lower()[1:] in IMAGE_FORMATS
        return self.output if is_file else None

    @model_validator(mode="after")
    def _names_one_place(self) -> PlotOptions:
        if self.output is None or (not self.output.suffix or self.output.is_dir()):
            return self
        if self.file is None:
            raise UsageError(
                f"--output {self.output}: expected a folder, or a file that ends in .png, .svg or "
                ".pdf"
            )
        if len(self.kinds) > 1 or self.kinds == (ALL,):
            raise UsageError(f"--output {self.output}: one file for several charts; name a folder")
        if "format" in self.model_fields_set:
            raise UsageError(
                f"--output {self.output}: its ending is the format; leave --format out"
            )
        return self
