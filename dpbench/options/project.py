"""The options of `dpbench project`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field, model_validator

from dpbench.options.bridge import option
from dpbench.options.shared import GROUP_NAMES, RowFilter, json_option, printed, refuse_if
from dpbench.options.types import CommaList, FilePath

GroupSize = Annotated[int, Field(ge=1, le=10_000_000)]
LATENCY_US = 10.0
"""Latency per message of a network of which only the bandwidth is given."""
network_option = partial(option, None, panel="Network")


class ProjectOptions(RowFilter):
    """What to project, and on which network."""

    topology: str | None = network_option(
        "Simulate on a network: a preset such as h100-nvswitch-ndr, or a TOML file.",
        "NAME|FILE.toml",
    )
    bandwidth: Annotated[float, Field(gt=0, le=1e6)] | None = network_option(
        f"Simulate a network of this bandwidth per replica, with {LATENCY_US:g} µs per message.",
        "GB/s",
    )
    path: FilePath = option(
        ..., "Results folder, or a CSV file of group sizes and speeds.", "PATH", argument=True
    )
    group_sizes: CommaList[GroupSize] | None = option(
        None,
        "Numbers of replicas.",
        "N,N",
        names=GROUP_NAMES,
        usual="the measured ones, 2 and 4 times the largest; on a network 8, 64, 1000",
    )
    ranks_per_node: GroupSize | None = option(
        None,
        "Replicas that fit one node; beyond it, steps take longer.",
        "N",
        usual="the GPUs of the measured machine; not known for CPUs and published tables",
    )
    as_json: bool = json_option("Print one JSON object.")
    verbose: bool = printed("Also print the assumptions.", names=("--verbose", "-v"))

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
