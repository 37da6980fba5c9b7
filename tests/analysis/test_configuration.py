from __future__ import annotations

from dataclasses import replace

from dpbench.analysis.configuration import by_configuration
from dpbench.records.trial import Status
from tests.analysis.builders import record, trial


def test_the_last_record_of_each_trial_counts() -> None:
    first, second = trial(), replace(trial(), repetition=1)
    other = trial(batch_size=64)
    failed = record(first, status=Status.FAILED)
    again, next_one, larger = record(first), record(second), record(other)
    assert by_configuration([failed, next_one, larger, again]) == {
        first: [again, next_one],
        other: [larger],
    }
