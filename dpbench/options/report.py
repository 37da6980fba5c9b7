"""The options of `dpbench report`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import model_validator

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

PAGE = "page"
"""The table on the terminal, and the page."""
ENDINGS = {".csv": "csv", ".json": "json", ".md": "markdown", ".html": PAGE}
"""Endings of the files that `report --output` writes, and what is in them."""
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
    def rows_format(self) -> str | None:
        """The format of rows for documents and programs; None for the table and the page."""
        asked = next(iter(self._asked().values()), PAGE)
        return None if asked == PAGE else asked

    @property
    def file(self) -> Path | None:
        """The file that rows, or the page alone, are written into; None for a folder."""
        path = self.output
        return path if path and path.suffix and not path.is_dir() else None

    def _asked(self) -> dict[str, str]:
        """The format that each option asks for, by the option as it was typed."""
        named = PAGE if self.format == "text" else self.format
        ending = ENDINGS.get(self.file.suffix.lower()) if self.file else PAGE
        found = {"--json": "json" if self.as_json else None, f"--format {self.format}": named}
        found[f"--output {self.output}"] = ending if self.output else None
        return {option: asked for option, asked in found.items() if asked is not None}

    @model_validator(mode="after")
    def _names_one_format_and_place(self) -> ReportOptions:
        refuse_if(
            self.file is not None and self.file.suffix.lower() not in ENDINGS,
            f"--output {self.output}: expected a folder, or a file that ends in "
            f"{', '.join(ENDINGS)}",
        )
        refuse_if(
            len({*self._asked().values()}) > 1,
            f"{' and '.join(self._asked())} ask for different formats; leave one out",
        )
        return self
