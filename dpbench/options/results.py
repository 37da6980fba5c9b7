"""The options of the commands that read results: `report`, `plot`, `compare`, `project`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from dpbench.errors import UsageError
from dpbench.options import shared
from dpbench.options.model import OptionError, Options, Panel
from dpbench.options.types import CommaList, Count, FilePath, MetricKey, Percent, Positive, one_of
from dpbench.report import FORMATS
from dpbench.report.charts.kinds import CHARTS, IMAGE_FORMATS

FORMAT_OF_ENDING = {".csv": "csv", ".json": "json", ".md": "markdown", ".html": "text"}
"""Endings of the files that `report --output` writes, and what is in them; "text" is the table, for
which a file has the page."""
ALL_CHARTS = "all"
"""The word for all charts, of which some may have nothing to show."""
GroupSize = Annotated[Count, Field(le=10_000_000)]
LATENCY_US = 10.0
"""Latency per message of a network of which only the bandwidth is given."""


class ReportOptions(shared.RowFilter):
    """Which results to show, and how."""

    path: FilePath | None = shared.RESULTS
    format: Annotated[str, one_of(FORMATS)] | None = Panel.OUTPUT.option(
        "Format: text, markdown, csv or json.",
        "NAME",
        usual="from the ending of --output, else text",
    )
    columns: str | None = Panel.OUTPUT.option(
        "Columns, by JSON key; gem: those of the torch-ddp gem.", "A,B,C"
    )
    charts: bool = Panel.OUTPUT.option("Draw charts.", default=True)
    as_json: bool = shared.AS_JSON
    output: FilePath | None = Panel.OUTPUT.option(
        "Folder for the page, or a .html, .csv, .json or .md file.", "PATH", usual="PATH/report"
    )
    open: bool = Panel.OUTPUT.option("Open the page in the browser.")
    verbose: bool = Panel.OUTPUT.option(
        "Also print how to read the numbers.", names=("-v",), printed=True
    )

    @property
    def file(self) -> Path | None:
        """The file that rows, or the page alone, are written into; None for a folder, whose name
        may have a version at its end, as in `out-v1.2`."""
        path = self.output
        if path is None or path.is_dir() or not path.suffix[1:2].isalpha():
            return None
        return path

    @property
    def rows_format(self) -> str | None:
        """The format of rows for documents and programs; None for the table and the page."""
        return next(iter(self._formats() - {"text"}), None)

    def _formats(self) -> set[str]:
        """The formats that the options ask for."""
        ending = FORMAT_OF_ENDING.get(self.file.suffix.lower()) if self.file else "text"
        asked = (self.format, "json" if self.as_json else None, ending if self.output else None)
        return {format for format in asked if format is not None}

    @model_validator(mode="after")
    def _names_one_format_and_place(self) -> ReportOptions:
        if self.file is not None and self.file.suffix.lower() not in FORMAT_OF_ENDING:
            raise UsageError(
                f"--output {self.output}: expected a folder, or a file that ends in "
                f"{', '.join(FORMAT_OF_ENDING)}"
            )
        if len(self._formats()) > 1:
            raise UsageError(
                "--json, --format and --output ask for different formats; leave one out"
            )
        for field in ("open", "charts", "verbose"):
            if self.rows_format and field in self.model_fields_set:
                raise OptionError(field, f": no effect on rows as {self.rows_format}; leave it out")
        return self


class PlotOptions(shared.RowFilter):
    """Which charts to draw, of which results, and where to."""

    kinds: CommaList[Annotated[str, one_of((*CHARTS, ALL_CHARTS))]] = Panel.ARGUMENTS.option(
        "Charts, comma-separated, or all.", "KIND", default=(ALL_CHARTS,)
    )
    path: FilePath | None = shared.RESULTS
    format: CommaList[Annotated[str, one_of(tuple(IMAGE_FORMATS))]] = Panel.OUTPUT.option(
        "Image formats: png, svg, pdf.", "A,B", default=("png", "svg")
    )
    output: FilePath | None = Panel.OUTPUT.option(
        "Folder for the charts.", "FOLDER", usual="PATH/report/charts"
    )

    @model_validator(mode="after")
    def _names_a_folder(self) -> PlotOptions:
        if self.output is not None and self.output.suffix.lower()[1:] in IMAGE_FORMATS:
            raise UsageError(
                f"--output {self.output}: expected a folder; --format chooses the image format"
            )
        return self


class CompareOptions(Options):
    """The two sides of a comparison, what is compared, and how it is shown."""

    baseline: str = Panel.ARGUMENTS.option(
        "Baseline: a results folder, or a part of one as DIR:key=value,key=value.", "A", default=...
    )
    candidate: str = Panel.ARGUMENTS.option("Candidate, written in the same way.", "B", default=...)
    metric: CommaList[MetricKey] = Panel.OPTIONS.option(
        "Metrics, e.g. images_per_second,peak_memory_bytes.",
        "A,B,C",
        default=("images_per_second",),
    )
    within: Percent = Panel.OPTIONS.option(
        "Difference that counts as the same.", "X%", default=0.03
    )
    force: bool = Panel.OPTIONS.option("Compare even if the environments differ.")
    as_json: bool = shared.AS_JSON


class ProjectOptions(shared.RowFilter):
    """What to project, and on which network; its group sizes choose no rows."""

    filters = ("implementation", "backend", "batch_size")
    topology: str | None = Panel.NETWORK.option(
        "Simulate on a network: a preset such as h100-nvswitch-ndr, or a TOML file.",
        "NAME|FILE.toml",
    )
    bandwidth: Annotated[Positive, Field(le=1e6)] | None = Panel.NETWORK.option(
        f"Simulate a network of this bandwidth per replica, with {LATENCY_US:g} µs per message.",
        "GB/s",
    )
    path: FilePath = Panel.ARGUMENTS.option(
        "Results folder, or a CSV file of group sizes and speeds.", "PATH", default=...
    )
    group_sizes: CommaList[GroupSize] | None = Panel.OPTIONS.option(
        "Numbers of replicas.",
        "N,N",
        usual="the measured ones, 2 and 4 times the largest; on a network 8, 64, 1000",
    )
    ranks_per_node: GroupSize | None = Panel.OPTIONS.option(
        "Replicas that fit one node; beyond it, steps take longer.",
        "N",
        usual="the GPUs of the measured machine; not known for CPUs and published tables",
    )
    as_json: bool = shared.AS_JSON
    verbose: bool = Panel.OUTPUT.option("Also print the assumptions.", names=("-v",), printed=True)

    @property
    def simulates(self) -> bool:
        """Whether a network is named."""
        return self.topology is not None or self.bandwidth is not None

    @model_validator(mode="after")
    def _names_one_network(self) -> ProjectOptions:
        if self.topology is not None and self.bandwidth is not None:
            raise UsageError("--topology and --bandwidth both name a network; give one of them")
        if self.simulates and self.ranks_per_node is not None:
            raise UsageError(
                "--ranks-per-node is for predictions without a network; a network has its own: "
                "give ranks_per_node in its TOML file"
            )
        return self
