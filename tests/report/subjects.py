"""Subjects of reports by hand: records in, what a report is about out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpbench.analysis.subject import Subject, of_folder
from dpbench.environment import Environment, capture
from dpbench.records import TrialRecord
from dpbench.store import StoredSweep
from tests.builders import sweep_spec


def stored(
    records: Sequence[TrialRecord],
    *,
    name: str = "demo",
    command: Sequence[str] = ("sweep",),
    environments: dict[str, Environment] | None = None,
    **changes: Any,
) -> StoredSweep:
    """A sweep as if it were read from the folder `name`; `changes` are of its specification."""
    return StoredSweep(
        folder=Path(name),
        spec=sweep_spec(**changes),
        command=tuple(command),
        environments={"e0": capture()} if environments is None else environments,
        records=tuple(records),
        warnings=(),
    )


def subject(records: Sequence[TrialRecord], **changes: Any) -> Subject:
    """The same, analysed."""
    return of_folder(stored(records, **changes))
