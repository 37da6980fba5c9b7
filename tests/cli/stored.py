"""Results folders of records by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dpbench.folders import ResultsFolder
from dpbench.records.environment import Environment
from dpbench.records.trial import TrialRecord
from tests.builders import HERE, command, sweep_spec

NOTHING_MISSING = replace(sweep_spec(), implementations=())
"""Plans no trial, so whatever records a folder has, its sweep is finished."""


def stored(folder: Path, records: Iterable[TrialRecord], environment: Environment = HERE) -> Path:
    """A sweep of dpbench check with these records, all of one environment."""
    with ResultsFolder.create(folder, command("check"), NOTHING_MISSING) as results:
        results.add_environment(environment)
        for record in records:
            results.append(replace(record, environment_ids=(environment.environment_id,)))
    return folder
