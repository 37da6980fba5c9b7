"""Several hosts on one machine: ranks that say that they are somewhere else."""

from __future__ import annotations

from dpbench.parallel.hosts import membership


def pretend_host(name: object) -> None:
    """Let the groups that this process makes from now on take it for one of that host."""
    membership.host_key = lambda: f"stand-in {name}"
