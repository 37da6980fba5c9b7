"""The task of a script's rank, for tests of what watches it."""

from __future__ import annotations

from typing import Any

from dpbench.measure.script.task import ScriptTask


def task(**changes: Any) -> ScriptTask:
    fields: dict[str, Any] = {
        "rank": 0,
        "size": 1,
        "address": "",
        "port": 0,
        "communicates": True,
        "warmup_steps": 4,
        "timed_steps": 10,
        "window_seconds": 0.0,
        "needed_steps": 34,
        "replaced": {},
        "takes_ours": False,
        "result": "",
        "stack": "",
        "deadline": 0.0,
    }
    return ScriptTask(**fields | changes)
