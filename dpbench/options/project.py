"""The options of `dpbench project`."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

from dpbench.errors import UsageError
from dpbench.options.bridge import OptionInfo
from dpbench.options.shared import OUTPUT_PANEL, RowFilter, json_option
from dpbench.options.types import CommaList, Efficiency, FilePath, PositiveNumber, WholeNumber

NETWORK_PANEL, QUESTION_PANEL = "Network", "Questions"
LARGEST_GROUP = 10_000_000
DEFAULT_LATENCY_US = 10.0
"""Latency per message of a network of which only the bandwidth is given."""


class ProjectOptions(RowFilter):
    """What to project, and on which network."""

    path: Annotated[
        FilePath,
        OptionInfo(
            "Results folder, or a CSV file of group sizes and speeds.", "PATH", argument=True
        ),
    ]
    group_sizes: Annotated[
        CommaList[Annotated[int, WholeNumber(least=1, most=LARGEST_GROUP)]] | None,
        OptionInfo(
            "Numbers of replicas.",
            "N,N",
            also=("--group-size",),
            default="the measured ones, 2 and 4 times the largest; on a network 8, 64, 1000",
        ),
    ] = None
    topology: Annotated[
        str | None,
        OptionInfo(
            "Simulate on a network: h100-nvswitch-ndr, a TOML file, or measured (by comm).",
            "NAME|FILE.toml",
            NETWORK_PANEL,
        ),
    ] = None
    bandwidth: Annotated[
        Annotated[float, PositiveNumber(least=1e-6, most=1e6)] | None,
        OptionInfo("Simulate on a network with this bandwidth per replica.", "GB/s", NETWORK_PANEL),
    ] = None
    latency: Annotated[
        Annotated[float, PositiveNumber(most=1e6)] | None,
        OptionInfo(
            "Latency per message, with --bandwidth.",
            "µs",
            NETWORK_PANEL,
            default=f"{DEFAULT_LATENCY_US:g}",
        ),
    ] = None
    comm: Annotated[
        FilePath | None,
        OptionInfo(
            "Results folder of dpbench comm with the measured collectives.",
            "DIR",
            NETWORK_PANEL,
            default="PATH",
        ),
    ] = None
    change: Annotated[
        tuple[str, ...] | None,
        OptionInfo(
            "Simulate a change, e.g. bandwidth=2 or accumulate=4; may be repeated.",
            "NAME=NUMBER",
            QUESTION_PANEL,
            repeated=True,
        ),
    ] = None
    efficiency: Annotated[
        Efficiency | None,
        OptionInfo(
            "Find the smallest batch size that keeps this scaling efficiency.",
            "P%",
            QUESTION_PANEL,
        ),
    ] = None
    output: Annotated[
        FilePath | None,
        OptionInfo("Folder to draw the projection into (PNG and SVG).", "DIR", OUTPUT_PANEL),
    ] = None
    as_json: Annotated[bool, json_option("Print one JSON object.")] = False
    verbose: Annotated[
        bool, OptionInfo("Also print what is assumed.", None, OUTPUT_PANEL, also=("-v",))
    ] = False

    @property
    def simulates(self) -> bool:
        """Whether a network, or a question that takes one, is named."""
        named = (self.topology, self.bandwidth, self.latency, self.comm, self.efficiency)
        return bool(self.change) or any(one is not None for one in named)

    @model_validator(mode="after")
    def _names_one_network_and_question(self) -> ProjectOptions:
        if self.topology is not None and self.bandwidth is not None:
            raise UsageError("--topology and --bandwidth both name a network; give one of them")
        if self.latency is not None and self.bandwidth is None:
            raise UsageError("--latency takes --bandwidth too; to change a network, use --change")
        if self.change and self.efficiency is not None:
            raise UsageError("--change and --efficiency: give one of them")
        return self
