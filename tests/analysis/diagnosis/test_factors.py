"""The factors against steps worked by hand, and their product against the efficiency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import geometric_mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.analysis.diagnosis.factors import (
    CONTENDED,
    IDEAL,
    PARTS,
    SHARDED,
    Breakdown,
    break_down,
    trials_by_key,
)
from dpbench.analysis.rows import summarize
from dpbench.analysis.throughput import exposed_communication
from dpbench.records.trial import TrialRecord
from tests.analysis.builders import rank, steps_of, trial, weak_sweep, window
from tests.analysis.builders import record as record_of

MS = 1e-3


def factors_of(record: TrialRecord, others: Sequence[TrialRecord]) -> Breakdown:
    return break_down([record], trials_by_key(others))


def by_parts(factors: Breakdown) -> dict[tuple[str, ...], float]:
    return {found.parts: found.value.value for found in factors.factors}


def test_weak_scaling_by_hand() -> None:
    *others, record = weak_sweep()
    factors = factors_of(record, others)
    assert by_parts(factors) == pytest.approx(
        {
            ("granularity",): 1.0,
            ("contention",): 10 / 12,
            ("wrapper",): 12 / 13,
            ("waiting",): 13 / 14,
            ("communication",): 14 / 20,
        },
        rel=1e-12,
    )
    assert factors.step_seconds.value == pytest.approx(0.020)
    assert factors.missing == ()


def test_the_seconds_of_a_row_are_the_share_of_its_factor() -> None:
    """Factors do not notice that a pass of a busy machine takes three times as long."""
    passes = [one for n, slower in enumerate((1.0, 3.0, 1.2)) for one in weak_sweep(n, slower)]
    row = next(one for one in summarize(passes) if one.label == "ddp/gloo ×2, batch 32")
    breakdown = break_down(row.usable_records, trials_by_key(passes))
    factor = breakdown.factor_of("communication")
    assert factor is not None
    assert factor.share.ends == pytest.approx((0.3, 0.3))
    assert (factor.value.sample_size, factor.value.interval) == (3, pytest.approx((0.7, 0.7)))
    expected = factor.share.scaled(breakdown.step_seconds.value, unit="s").ends
    assert exposed_communication(row.usable_records).ends == pytest.approx(expected)


def test_a_share_may_be_as_large_as_its_ratio_allows() -> None:
    """A pass in which the wrapper seems to gain is long, and counts less in the share."""
    others = [steps_of("single", [10 * MS], repetition=n) for n in range(4)]
    records = [
        steps_of("ddp", [reached * MS], [bare * MS], group_size=2, repetition=n)
        for n, (bare, reached) in enumerate([(10, 12)] * 3 + [(8.6, 43)])
    ]
    factors = break_down(records, trials_by_key(others)).factors
    (wrapper,) = (one for one in factors if "wrapper" in one.parts)
    assert wrapper.share.ends[1] == pytest.approx((1 - wrapper.value.ends[0]) * 0.675)


def test_strong_scaling_with_shards_that_differ_by_hand() -> None:
    """Batch 5 on two ranks: shards of 3 and 2 samples."""
    strong = {"scaling": "strong", "batch_size": 5}
    record = steps_of("ddp", [12 * MS, 12 * MS], [9 * MS, 8 * MS], **strong)
    others = [
        steps_of("single", [10 * MS], scaling="strong", batch_size=5),
        steps_of("single", [7 * MS], scaling="strong", batch_size=3),
        steps_of("single", [6 * MS], scaling="strong", batch_size=2),
        steps_of("independent", [8 * MS, 7 * MS], **strong),
    ]
    factors = factors_of(record, others)
    assert by_parts(factors) == pytest.approx(
        {
            ("granularity",): 10 / (7 + 6),
            ("contention",): 6.5 / 7,
            ("wrapper",): 7 / 8,
            ("waiting",): 8 / 9,
            ("communication",): 9 / 12,
        },
        rel=1e-12,
    )


@pytest.mark.parametrize(
    ("implementation", "unsynced", "merged"),
    [
        ("dp", [15 * MS], ("wrapper", "waiting")),
        ("torch-dp", None, ("wrapper", "waiting", "communication")),
    ],
)
def test_what_one_process_cannot_tell_apart_is_one_factor(
    implementation: str, unsynced: list[float] | None, merged: tuple[str, ...]
) -> None:
    single, copies, *_ = weak_sweep()
    record = steps_of(implementation, [20 * MS], unsynced, group_size=2)
    expected = 12 / (20 if unsynced is None else 15)
    assert by_parts(factors_of(record, [single, copies]))[merged] == pytest.approx(expected)


def test_without_references_factors_are_merged_or_left_out() -> None:
    single, copies, _, record = weak_sweep()
    factors = factors_of(record, [single])
    assert by_parts(factors)[("contention", "wrapper")] == pytest.approx(10 / 13)
    assert factors.missing == (CONTENDED,)
    factors = factors_of(record, [copies])
    assert factors.missing == (IDEAL, SHARDED)
    assert factors.factor_of("granularity") is None
    assert by_parts(factors)[("communication",)] == pytest.approx(0.7)


def test_a_straggler_is_no_contention_and_no_wrapper() -> None:
    """Rank 1 takes 10 ms longer, alone as in a group."""
    others = [steps_of("single", [10 * MS]), steps_of("independent", [10 * MS, 20 * MS])]
    found = by_parts(factors_of(steps_of("ddp", [22 * MS] * 2, [10 * MS, 20 * MS]), others))
    assert found[("contention",)] == found[("wrapper",)] == pytest.approx(1)
    assert found[("waiting",)] == pytest.approx(0.5)


def test_pauses_in_single_steps_are_waiting() -> None:
    """One step of ten takes 60 ms on either rank: 10 ms in the median, 20 ms with all waiting."""
    first, second = [10 * MS] * 10, [10 * MS] * 10
    first[3], second[7] = 60 * MS, 60 * MS
    spec = trial(group_size=2, steps=10)
    ranks = [
        rank(number, window([20 * MS] * 10, 320), unsynced=window(alone, 320))
        for number, alone in enumerate((first, second))
    ]
    copies = steps_of("independent", [10 * MS] * 2, steps=10)
    single = steps_of("single", [10 * MS], steps=10)
    found = by_parts(factors_of(record_of(spec, ranks), [single, copies]))
    assert found[("wrapper",)] == pytest.approx(1)
    assert found[("waiting",)] == pytest.approx(0.5)


SECONDS = st.floats(1e-6, 1e3)


@given(
    passes=st.lists(st.tuples(*[SECONDS] * 7), min_size=1, max_size=4),
    absent=st.sets(st.sampled_from(["independent", "unsynced"])),
)
def test_the_factors_always_multiply_to_the_efficiency(
    passes: list[tuple[float, ...]], absent: set[str]
) -> None:
    references, records = [], []
    for repetition, (alone, *copies, a, b, c, d) in enumerate(passes):
        references.append(steps_of("single", [alone], repetition=repetition))
        if "independent" not in absent:
            references.append(steps_of("independent", copies, repetition=repetition))
        without = None if "unsynced" in absent else [a, b]
        records.append(steps_of("ddp", [c, d], without, repetition=repetition))
    factors = break_down(records, trials_by_key(references))
    product = math.prod(found.value.value for found in factors.factors)
    efficiency = geometric_mean([alone / max(c, d) for alone, *_, c, d in passes])
    assert product == pytest.approx(efficiency, rel=1e-9)
    assert [part for found in factors.factors for part in found.parts] == list(PARTS)
