"""What a script's rank is to do: what the launcher tells the program that watches the script.

It goes as JSON on the command line of a fresh Python.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptTask:
    """One rank's part of a trial of a script."""

    rank: int
    size: int
    """Ranks of the trial, which start together and compare notes even where each trains alone."""
    address: str
    port: int
    """Where the launcher's store listens."""
    communicates: bool
    """Whether the ranks train together, so that steps are measured in several modes."""
    warmup_steps: int
    timed_steps: int
    """Timed steps of each mode, or the fewest if they fill `window_seconds`."""
    window_seconds: float
    needed_steps: int
    """Optimizer steps that the script should take, for the message to one that takes fewer."""
    replaced: dict[str, dict[str, Any]]
    """Values of arguments, in the place of the script's own, by the name of the call."""
    takes_ours: bool
    """Whether dpbench's wrapper takes the place of torch's."""
    result: str
    """The file for what was measured."""
    stack: str
    """The file for the stack of a rank that takes too long."""
    deadline: float
    """When it takes too long, on the host's monotonic clock."""

    def json(self) -> str:
        return json.dumps(asdict(self))


def read_task(text: str) -> ScriptTask:
    """The task that `ScriptTask.json` wrote."""
    return ScriptTask(**json.loads(text))
