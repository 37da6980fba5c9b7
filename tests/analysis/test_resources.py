"""Joules per item, worked by hand."""

from __future__ import annotations

from dpbench.analysis.resources import joules_per_item
from dpbench.records import TrialRecord
from tests.analysis.builders import rank, record, trial, window


def run(*devices_and_joules: tuple[str, float | None], repetition: int = 0) -> TrialRecord:
    """Every rank takes 50 samples."""
    ranks = [
        rank(number, window([1.0], 50), device=device, energy_joules=joules)
        for number, (device, joules) in enumerate(devices_and_joules)
    ]
    spec = trial(group_size=len(ranks), repetition=repetition)
    return record(spec, ranks)


def test_the_energy_of_all_devices_is_shared_by_all_samples() -> None:
    found = joules_per_item([run(("cuda:0", 100.0), ("cuda:1", 300.0))])
    assert found is not None
    assert (found.value, found.unit, found.basis) == (4.0, "J/image", "single value")


def test_a_device_that_ranks_share_counts_once() -> None:
    found = joules_per_item([run(("cuda:0", 390.0), ("cuda:0", 410.0))])
    assert found is not None
    assert found.value == 4.0


def test_repetitions_give_an_interval() -> None:
    found = joules_per_item([run(("cuda:0", 100.0)), run(("cuda:0", 400.0), repetition=1)])
    assert found is not None
    assert (round(found.value, 9), found.sample_size, found.basis) == (4.0, 2, "repetitions")


def test_a_device_that_did_not_tell_leaves_the_trial_out() -> None:
    silent = run(("cuda:0", 100.0), ("cuda:1", None))
    assert joules_per_item([silent]) is None
    assert joules_per_item([run(("cpu", None))]) is None
    assert joules_per_item([silent, run(("cuda:0", 200.0))]) == joules_per_item(
        [run(("cuda:0", 200.0))]
    )
