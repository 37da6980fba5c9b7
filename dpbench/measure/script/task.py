"""What a script's rank is to do: what the launcher tells the program that watches the script."""

from __future__ import annotations

from dataclasses import dataclass

from dpbench.specs import TrialSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptTask:
    """One rank's part of a trial of a script. It goes as JSON on the command line of a fresh
    Python."""

    trial: TrialSpec
    rank: int
    port: int
    """Where the launcher's store listens on this host."""
    result: str
    """The file for what was measured."""
    stack: str
    """The file for the stack of a rank that takes too long."""
    deadline: float
    """When it takes too long, on the host's monotonic clock."""
