"""The options of `dpbench report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import model_validator

from dpbench.errors import UsageError
from dpbench.options.bridge import OptionInfo
from dpbench.options.shared import CHARTS, OUTPUT_PANEL, RowFilter
from dpbench.options.types import Choice, FilePath

LATEST_RESULTS = "the latest in results/"
"""Default of commands that read results, if no folder is given."""
SUFFIXES = {
    ".csv": "csv",
    ".json": "json",
    ".md": "markdown",
    ".tex": "latex",
    ".html": "html",
    ".parquet": "parquet",
}
"""Endings of the files that `report --output` writes rows into, and their formats."""
FORMATS = ("text", *SUFFIXES.values())
LEVELS = ("configuration", "trial", "rank", "step", "collective")


class ReportOptions(RowFilter):
    """Which results to show, and how."""

    path: Annotated[
        FilePath | None,
        OptionInfo(
            "Results folder, or a CSV file of results.",
            "PATH",
            default=LATEST_RESULTS,
            argument=True,
        ),
    ] = None
    format: Annotated[
        Annotated[str, Choice(FORMATS)] | None,
        OptionInfo(
            "Format: text, markdown, latex, html, csv, json or parquet.",
            "NAME",
            OUTPUT_PANEL,
            default="as --output ends, else text",
        ),
    ] = None
    level: Annotated[
        Annotated[str, Choice(LEVELS)],
        OptionInfo(
            "One row per configuration, trial, rank, step or collective.", "NAME", OUTPUT_PANEL
        ),
    ] = "configuration"
    columns: Annotated[
        str | None,
        OptionInfo(
            "Columns to show, by JSON key; seed: the four of torch-ddp's table.",
            "A,B,C",
            OUTPUT_PANEL,
        ),
    ] = None
    charts: Annotated[bool, CHARTS] = True
    as_json: Annotated[
        bool, OptionInfo("Same as --format json.", None, OUTPUT_PANEL, names=("--json",))
    ] = False
    output: Annotated[
        FilePath | None,
        OptionInfo(
            "Folder for the report, or a .csv, .json, .md, .tex, .html or .parquet file.",
            "PATH",
            OUTPUT_PANEL,
            default="PATH/report",
        ),
    ] = None
    open: Annotated[bool, OptionInfo("Open the page in the browser.", None, OUTPUT_PANEL)] = False
    verbose: Annotated[
        bool,
        OptionInfo("Also print how to read the numbers.", None, OUTPUT_PANEL, also=("-v",)),
    ] = False

    @property
    def file(self) -> Path | None:
        """The file that rows are written into."""
        is_file = self.output and self.output.suffix.lower() in SUFFIXES
        return self.output if is_file else None

    @property
    def rows_format(self) -> str | None:
        """The format of rows for documents and programs; None for the table and the page."""
        if self.as_json:
            return "json"
        if self.file is not None and self.format is None:
            return SUFFIXES[self.file.suffix.lower()]
        if self.level != "configuration":
            return "csv" if self.format in (None, "text") else self.format
        return None if self.format == "text" else self.format

    @model_validator(mode="after")
    def _names_one_format_and_place(self) -> ReportOptions:
        if self.as_json and self.format not in (None, "json"):
            raise UsageError(
                f"--json and --format {self.format} contradict each other; give one of them"
            )
        if self.output is not None and self.file is None:
            is_folder = not self.output.suffix or self.output.is_dir()
            place = "" if self.rows_format else "a folder, or "
            if self.rows_format or not is_folder:
                raise UsageError(
                    f"--output {self.output}: expected {place}a file that ends in "
                    f"{', '.join(SUFFIXES)}"
                )
        if self.rows_format == "parquet" and self.file is None:
            raise UsageError("--format parquet is not text; name a file: --output rows.parquet")
        return self
