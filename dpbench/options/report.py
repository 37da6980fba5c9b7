"""The options of `dpbench report`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

from dpbench.errors import UsageError
from dpbench.options.shared import (
    RowFilter,
    charts_option,
    json_option,
    output_option,
    printed,
    refuse_if,
    results_argument,
)
from dpbench.options.types import FilePath

SUFFIXES = {".csv": "csv", ".json": "json", ".md": "markdown"}
"""Endings of the files that `report --output` writes rows into, and their formats."""
PAGE_SUFFIX = ".html"
Format = Literal["text", "markdown", "csv", "json"]


class ReportOptions(RowFilter):
    """Which results to show, and how."""

    path: FilePath | None = results_argument()
    format: Format | None = output_option(
        None,
        "Format: text, markdown, csv or json.",
        "NAME",
        usual="from the ending of --output, else text",
    )
    columns: str | None = output_option(
        None, "Columns, by JSON key; seed: those of torch-ddp.", "A,B,C"
    )
    charts: bool = charts_option()
    as_json: bool = json_option("Same as --format json.")
    output: FilePath | None = output_option(
        None,
        "Folder for the page, or a .html, .csv, .json or .md file.",
        "PATH",
        usual="PATH/report",
    )
    open: bool = output_option(False, "Open the page in the browser.")
    verbose: bool = printed("Also print how to read the numbers.", names=("--verbose", "-v"))

    @property
    def page(self) -> Path | None:
        """The file that the page alone is written into."""
        path = self.output
        is_page = path and path.suffix.lower() == PAGE_SUFFIX and not path.is_dir()
        return path if is_page else None

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
        return None if self.format == "text" else self.format

    @model_validator(mode="after")
    def _names_one_format_and_place(self) -> ReportOptions:
        refuse_if(
            self.as_json and self.format not in (None, "json"),
            f"--json and --format {self.format} contradict each other; give one of them",
        )
        if self.output is not None and self.file is None:
            is_place = self.page or not self.output.suffix or self.output.is_dir()
            place, more = ("", ()) if self.rows_format else ("a folder, or ", (PAGE_SUFFIX,))
            if self.rows_format or not is_place:
                raise UsageError(
                    f"--output {self.output}: expected {place}a file that ends in "
                    f"{', '.join((*SUFFIXES, *more))}"
                )
        asked, named = ("json", "--json") if self.as_json else (self.format, "--format")
        wanted = SUFFIXES[self.file.suffix.lower()] if self.file else asked
        refuse_if(
            asked not in (None, wanted),
            f"--output {self.output} is for {wanted}, but {named} asks for {asked}; leave one out",
        )
        return self
