"""The options of `dpbench project`."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

from dpbench.options.bridge import Options, option
from dpbench.options.shared import RowFilter, json_option, printed, refuse_if
from dpbench.options.types import CommaList, FilePath, PositiveNumber, WholeNumber

GroupSize = Annotated[int, WholeNumber(least=1, most=10_000_000)]
LATENCY_US = 10.0
"""Latency per message of a network of which only the bandwidth is given."""


class NetworkOptions(Options):
    """The network to simulate."""

    panel = "Network"
    topology: str | None = option(
        None,
        "Simulate on a network: a preset such as h100-nvswitch-ndr, or a TOML file.",
        "NAME|FILE.toml",
    )
    bandwidth: Annotated[float, PositiveNumber(most=1e6)] | None = option(
        None,
        f"Simulate a network of this bandwidth per replica, with {LATENCY_US:g} µs per message.",
        "GB/s",
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
    ranks_per_node: GroupSize | None = option(
        None,
        "Replicas that fit one node; beyond it, steps take longer.",
        "N",
        usual="the GPUs of the measured machine; not known for CPUs and published tables",
    )
    as_json: bool = json_option("Print one JSON object.")
    verbose: bool = printed("Also print the assumptions.", "--verbose", "-v")

    @property
    def simulates(self) -> bool:
        """Whether a network is named."""
        return self.topology is not None or self.bandwidth is not None

    @model_validator(mode="after")
    def _names_one_network(self) -> ProjectOptions:
        refuse_if(
            self.topology is not None and self.bandwidth is not None,
            "--topology and --bandwidth both name a network; give one of them",
        )
        refuse_if(
            self.simulates and self.ranks_per_node is not None,
            "--ranks-per-node is for predictions without a network; a network has its own: give "
            "ranks_per_node in its TOML file",
        )
        return self
