"""The fastest row, what ties with it, or why none is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.fastest import Fastest, average_ratios, find_fastest
from dpbench.analysis.rows import summarize
from dpbench.records.trial import HostLoad, Status, TrialRecord
from dpbench.specs import WorkloadSpec
from tests.analysis.builders import noisy_sweep, record, runs, trial
from tests.builders import WORKLOAD


def of(*groups: Sequence[TrialRecord]) -> Fastest:
    return find_fastest(summarize([record for group in groups for record in group]))


def averages(*groups: Sequence[TrialRecord]) -> list[tuple[str, Estimate, str]]:
    return [*average_ratios(summarize([record for group in groups for record in group]))]


def test_whoever_ties_with_the_best_is_named_nearest_first() -> None:
    found = of(
        runs(trial("ddp", "gloo"), (100, 130, 160)),
        runs(trial("ddp", "shm"), (140, 150, 160)),
        runs(trial("torch-ddp", "gloo"), (141, 142, 143)),
        runs(trial("torch-ddp", "shm"), (10, 10.1, 10.2)),
        runs(trial("dp", "threads"), (9,)),  # a single run shows nothing
    )
    assert found.row is not None
    assert found.row.series == "ddp/shm"
    assert [row.series for row in found.rivals] == ["torch-ddp/gloo", "ddp/gloo", "dp"]
    assert [row.series for row in found.ties] == ["torch-ddp/gloo"]


def test_a_row_that_ran_once_is_no_test_and_makes_no_other_one_stricter() -> None:
    """The t test of the first two gives p = 0.04, which two tests would double."""
    ours, theirs = runs(trial(), (100, 104, 108)), runs(trial("torch-ddp"), (93, 96, 98))
    once = runs(trial("dp", "threads"), (99,))
    assert [row.series for row in of(ours, theirs, once).rivals] == ["dp"]


def test_a_backend_that_is_faster_in_all_implementations_is_named() -> None:
    slow, fast = (100.0, 101.0, 99.0), (110.0, 111.0, 109.0)
    groups = [
        runs(trial(name, backend, 2), speeds)
        for name in ("ddp", "torch-ddp")
        for backend, speeds in (("gloo", slow), ("shm", fast))
    ]
    ((first, ratio, second),) = averages(*groups, runs(trial("single", "none"), (90.0, 91.0, 92.0)))
    assert (first, second, round(ratio.value, 2)) == ("shm", "gloo", 1.1)
    assert averages(*groups[::2]) == averages(*groups[:2]) == []
    batches = [
        runs(trial(name, group_size=2, batch_size=n), (n, n + 1))
        for n in (8, 16)
        for name in ("ddp", "dp")
    ]
    assert averages(*batches) == [], "speeds at two batch sizes do not compete"


def test_averages_are_over_all_batch_sizes() -> None:
    groups = [
        runs(trial("ddp", backend, 2, batch_size=size), (speed, speed + 1, speed - 1))
        for size, gloo, shm in ((32, 100.0, 110.0), (64, 200.0, 260.0))
        for backend, speed in (("gloo", gloo), ("shm", shm))
    ]
    ((first, ratio, _),) = averages(*groups)
    assert (first, ratio.value) == ("shm", pytest.approx((1.1 * 1.3) ** 0.5, rel=1e-4))


def test_a_setting_that_is_faster_on_average_is_named_as_its_option() -> None:
    groups = [
        runs(trial(name, "gloo", 2, bucket_cap_mb=cap), speeds)
        for name in ("ddp", "torch-ddp")
        for cap, speeds in ((None, (100.0, 101.0, 99.0)), (5.0, (110.0, 111.0, 109.0)))
    ]
    ((first, _, second),) = averages(*groups)
    assert (first, second) == ("--bucket-cap-mb 5", "--bucket-cap-mb auto")


PASSES = (100.0, 120.0, 100.0, 120.0, 100.0, 120.0)
"""Speeds that vary by a fifth from pass to pass, and together."""
FIRST = runs(trial("ddp"), PASSES)
SECOND = runs(trial("torch-ddp"), [0.95 * speed for speed in PASSES])


def test_repetitions_in_turn_show_a_lead_that_the_intervals_hide() -> None:
    found = of(FIRST, SECOND)
    assert found.rivals == ()
    assert found.lead is not None
    ratio, nearest = found.lead
    assert (nearest.series, ratio.value) == ("torch-ddp/gloo", pytest.approx(1 / 0.95))
    equal = of(runs(trial("ddp"), [0.9495 * speed for speed in reversed(PASSES)]), SECOND)
    assert [row.series for row in equal.rivals] == ["ddp/gloo"]
    few = of([one for one in (*FIRST, *SECOND) if one.repetition < 4])
    assert (few.lead, len(few.rivals)) == (None, 1)


def test_independent_copies_are_never_the_best() -> None:
    found = of(
        runs(trial(), (100, 101, 99)),
        runs(trial(group_size=2), (150, 151, 149)),
        runs(trial("independent", "none"), (100, 101, 99)),
        runs(trial("independent", "none", 2), (200, 201, 199)),
    )
    assert found.row is not None
    assert found.row.label == "ddp/gloo ×2, batch 32"


WORKLOADS = (WORKLOAD, replace(WORKLOAD, optimizer="adamw"))
"""Settings that are not the default make no other implementation, whatever the label says."""
TIMED_OUT = record(trial(), status=Status.TIMED_OUT, reason="no step in 30 s")
FAILED = record(trial("torch-ddp"), status=Status.FAILED, reason="rank 0 ended")


def test_nothing_is_named_where_nothing_completed_or_the_highest_speed_is_too_noisy() -> None:
    assert of(noisy_sweep()).reason == "the speeds are too noisy"
    assert of([TIMED_OUT, FAILED]).reason == "no configuration completed (failed, timed out)"


@pytest.mark.parametrize("workload", WORKLOADS)
def test_single_is_not_the_fastest_where_what_was_asked_for_failed(
    workload: WorkloadSpec,
) -> None:
    single = runs(trial("single", "none", workload=workload), (100, 101, 99))
    copies = runs(trial("independent", "none", 2, workload=workload), (200, 201, 199))
    fastest = of(single, copies).row
    assert fastest is not None
    assert fastest.implementation == "single"
    failed = replace(TIMED_OUT, configuration=trial(workload=workload))
    found = of(single, [failed])
    assert found.reason == "no configuration but single completed (timed out)"


def test_a_busy_machine_has_no_fastest_row_and_the_lead_of_repetitions_in_turn() -> None:
    load = HostLoad(cores=2, during=1.8, stolen=0.0)
    records = [replace(record, host_load=load) for record in (*FIRST, *SECOND)]
    found = find_fastest(summarize(records), is_spoiled=True)
    assert found.load == "other programs slowed down 2 of 2 rows"
    assert found.lead is not None
    failed = find_fastest(summarize([FAILED]), is_spoiled=True)
    assert failed.reason == "no configuration completed (failed)"
