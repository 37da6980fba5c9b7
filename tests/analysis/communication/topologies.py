"""Networks with round figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpbench.analysis.communication.cost_models import Link
from dpbench.analysis.communication.topology import Topology

PLAIN = Topology(
    name="plain",
    ranks_per_node=8,
    intra=Link(latency_seconds=2e-6, bytes_per_second=200e9),
    inter=Link(latency_seconds=10e-6, bytes_per_second=25e9),
    source="made up",
    date="2026-01-01",
)


def topology(**changes: Any) -> Topology:
    """Nodes of 8 at 200 GB/s and 2 µs, 25 GB/s and 10 µs between nodes."""
    return replace(PLAIN, **changes)
