"""The options of `dpbench project`."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

from dpbench.options.bridge import Options, option
from dpbench.options.shared import OUTPUT_PANEL, RowFilter, json_option, printed, refuse_if
from dpbench.options.types import CommaList, FilePath, Percent, PositiveNumber, WholeNumber

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


class QuestionOptions(Options):
    """What to ask of a simulation."""

    panel = "Questions"
    change: tuple[str, ...] | None = option(
        None,
        "Simulate a change, e.g. bandwidth=2 or accumulate=4; may be repeated.",
        "NAME=NUMBER",
        repeated=True,
    )
    efficiency: Percent | None = option(
        None, "Find the smallest batch size that keeps this scaling efficiency.", "P%"
    )


class ProjectOptions(QuestionOptions, NetworkOptions, RowFilter):
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
        """Whether a network, or a question that takes one, is named."""
        named = (self.topology, self.bandwidth, self.latency, self.comm, self.efficiency)
        return bool(self.change) or any(one is not None for one in named)

    @model_validator(mode="after")
    def _names_one_network_and_question(self) -> ProjectOptions:
        refuse_if(
            self.topology is not None and self.bandwidth is not None,
            "--topology and --bandwidth both name a network; give one of them",
        )
        refuse_if(
            self.latency is not None and self.bandwidth is None,
            "--latency takes --bandwidth too; to change a network, use --change",
        )
        refuse_if(
            bool(self.change) and self.efficiency is not None,
            "--change and --efficiency: give one of them",
        )
        return self
