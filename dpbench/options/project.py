"""The options of `dpbench project`."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

from dpbench.options.bridge import Options, option
from dpbench.options.shared import OUTPUT_PANEL, RowFilter, json_option, printed, refuse_if
from dpbench.options.types import CommaList, FilePath, PositiveNumber, WholeNumber

GroupSize = Annotated[int, WholeNumber(least=1, most=10_000_000)]
DEFAULT_LATENCY_US = 10.0
"""Latency per message of a network of which only the bandwidth is given."""


class NetworkOptions(Options):
    """The network to simulate."""

    panel = "Network"
    topology: str | None = option(
        None,
        "Simulate on a network: h100-nvswitch-ndr, a TOML file, or measured (by comm).",
        "NAME|FILE.toml",
    )
    bandwidth: Annotated[float, PositiveNumber(least=1e-6, most=1e6)] | None = option(
        None, "Simulate on a network with this bandwidth per replica.", "GB/s"
    )
    latency: Annotated[float, PositiveNumber(most=1e6)] | None = option(
        None, "Latency per message, with --bandwidth.", "µs", usual=f"{DEFAULT_LATENCY_US:g}"
    )
    comm: FilePath | None = option(
        None, "Results folder of dpbench comm with the measured collectives.", "DIR", usual="PATH"
    )


class ProjectOptions(NetworkOptions, RowFilter):
    """What to project, and on which network."""

    path: FilePath = option(
        ..., "Results folder, or a CSV file of group sizes and speeds.", "PATH", argument=True
    )
    group_sizes: CommaList[GroupSize] | None = option(
        None,
        "Numbers of replicas.",
        "N,N",
        also=("--group-size",),
        usual="the measured ones, 2 and 4 times the largest; on a network 8, 64, 1000",
    )
    output: FilePath | None = option(
        None, "Folder for the chart (PNG and SVG).", "DIR", panel=OUTPUT_PANEL
    )
    as_json: bool = json_option("Print one JSON object.")
    verbose: bool = printed("Also print the assumptions.", "--verbose", "-v")

    @property
    def simulates(self) -> bool:
        """Whether a network is named."""
        named = (self.topology, self.bandwidth, self.comm)
        return any(one is not None for one in named)

    @model_validator(mode="after")
    def _names_one_network(self) -> ProjectOptions:
        refuse_if(
            self.topology is not None and self.bandwidth is not None,
            "--topology and --bandwidth both name a network; give one of them",
        )
        refuse_if(
            self.latency is not None and self.bandwidth is None,
            "--latency takes --bandwidth too",
        )
        return self
