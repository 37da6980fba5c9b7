"""Causes: of large losses beyond the noise, and remedies that were not tried already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpbench.analysis.diagnosis.causes import explain_rows
from dpbench.analysis.diagnosis.explanation import Cause
from dpbench.analysis.rows import summarize
from dpbench.records.trial import GpuState, Phases, TrialRecord
from dpbench.report.explanation import factors_table
from tests.analysis.builders import PASSED, rank, record, steps_of, trial, weak_sweep, window

MS = 1e-3
LABEL = "ddp/gloo ×2, batch 32"
PASSES = 3
SHARED = ("accumulation_steps", "devices")


def causes_on(label: str, records: Sequence[TrialRecord]) -> tuple[Cause, ...]:
    return {one.row.label: one.causes for one in explain_rows(summarize(records))}[label]


def repeated(passes: int = PASSES) -> list[TrialRecord]:
    return [record for i in range(passes) for record in weak_sweep(i, slower=1 + 0.1 * i)]


def passes(*rows: tuple[Any, ...], **more: Any) -> list[TrialRecord]:
    """The arguments of `steps_of` for each row, in every pass; `single` takes 10 ms a step."""
    return [
        steps_of(*row, repetition=repetition, **(more if row[0] == "dp" else {}))
        for repetition in range(PASSES)
        for row in (("single", [10 * MS]), *rows)
    ]


def phases(*, data_seconds: float) -> Phases:
    """Five instrumented steps that take 4 ms besides loading data."""
    return Phases(
        data_seconds=(data_seconds,) * 5,
        forward_seconds=(1 * MS,) * 5,
        backward_seconds=(2 * MS,) * 5,
        optimizer_seconds=(1 * MS,) * 5,
    )


def one_loss(
    implementation: str = "ddp", *, step: float = 20 * MS, without: float = 10 * MS, **changes: Any
) -> list[TrialRecord]:
    """Everything is free but the difference between the two windows."""
    shared = {key: value for key, value in changes.items() if key in SHARED}
    records = []
    for repetition in range(PASSES):
        at = {"repetition": repetition, **shared}
        records += [
            steps_of("single", [10 * MS], **at),
            steps_of("independent", [10 * MS] * 2, **at),
            steps_of(implementation, [step] * 2, [without] * 2, repetition=repetition, **changes),
        ]
    return records


def test_the_largest_loss_comes_first_and_small_ones_are_not_mentioned() -> None:
    found = causes_on(LABEL, repeated())
    assert [cause.kind for cause in found] == ["communication", "contention", "wrapper"]
    assert found[0].share.value == pytest.approx(0.3)
    assert found[0].text == "exposed communication on gloo"
    assert found[0].remedy == "try shm (same host), or --accumulate 4"


def test_one_replica_gets_no_advice_beside_several() -> None:
    alone = [steps_of("ddp", [20 * MS], [20 * MS], repetition=number) for number in range(3)]
    plain = [steps_of("single", [10 * MS], repetition=number) for number in range(3)]
    label = LABEL.replace("×2", "×1")
    assert [cause.kind for cause in causes_on(label, [*plain, *alone])] == ["wrapper"]
    assert causes_on(label, [*repeated(), *alone]) == ()


def test_a_loss_within_the_noise_gives_no_advice() -> None:
    records = []
    for repetition, step in enumerate([9 * MS, 30 * MS, 12 * MS]):
        records += [
            steps_of("single", [10 * MS], repetition=repetition),
            steps_of("independent", [10 * MS] * 2, repetition=repetition),
            steps_of("ddp", [step] * 2, [10 * MS] * 2, repetition=repetition),
        ]
    assert causes_on(LABEL, records) == ()


def test_a_sure_loss_is_named_where_the_speed_is_too_noisy_to_state() -> None:
    """Other load slows whole repetitions, and communication stays half of each step."""
    records = [
        one
        for repetition, slower in enumerate([1.0, 9.0, 0.6])
        for one in (
            steps_of("single", [10 * MS], repetition=repetition),
            steps_of("ddp", [20 * MS * slower] * 2, [10 * MS * slower] * 2, repetition=repetition),
        )
    ]
    (found,) = causes_on(LABEL, records)
    assert (found.kind, found.share.value) == ("communication", pytest.approx(0.5))


def test_shm_is_advised_as_measured_or_not_at_all() -> None:
    gloo = one_loss()
    faster = one_loss(backend="shm", step=12 * MS)[2::3]
    assert (
        "shm, which hides more of it in this sweep" in causes_on(LABEL, [*gloo, *faster])[0].remedy
    )
    slower = one_loss(backend="shm", step=25 * MS)[2::3]
    assert causes_on(LABEL, [*gloo, *slower])[0].remedy == "try --accumulate 4"


def test_cuda_ranks_on_gloo_are_sent_to_nccl() -> None:
    (found,) = causes_on(LABEL, one_loss(devices=("cuda:0", "cuda:1")))
    assert "try nccl, or" in found.remedy


def test_contention_is_told_from_what_the_implementation_costs() -> None:
    records = passes(("independent", [14 * MS] * 2), ("ddp", [14 * MS] * 2, [14 * MS] * 2))
    (found,) = causes_on(LABEL, records)
    assert found.kind == "contention"
    assert found.remedy.endswith(
        "they share memory bandwidth or cores, whatever the implementation"
    )


def test_a_slow_rank_is_named() -> None:
    records = passes(("independent", [10 * MS] * 2), ("ddp", [16 * MS] * 2, [10 * MS, 16 * MS]))
    kinds = {cause.kind: cause.text for cause in causes_on(LABEL, records)}
    assert kinds["waiting"].startswith("waiting for rank 1 (cpu), the slowest in all 3 repetitions")
    throttled = [at_clocks(one, 1755, 1080) for one in records]
    kinds = {cause.kind: cause.text for cause in causes_on(LABEL, throttled)}
    assert kinds["waiting"].startswith(
        "waiting for rank 1 (cpu), the slowest in all 3 repetitions, with an SM clock of 1,080 MHz "
        "against 1,755 (thermal)"
    )
    alike = [at_clocks(one, 1755, 1740) for one in records]
    assert "SM clock" not in " ".join(cause.text for cause in causes_on(LABEL, alike))


def at_clocks(record: TrialRecord, *clocks: int) -> TrialRecord:
    """The record, with the clocks of its ranks' GPUs; the last one is throttled."""
    states = [
        GpuState(sm_clock_mhz=clock, power_watts=300.0, slowdowns=(), processes=1)
        for clock in clocks
    ]
    states[-1] = replace(states[-1], slowdowns=("thermal",))
    ranks = (
        replace(one, timed=replace(one.timed, gpu=(state,)))
        for one, state in zip(record.ranks, states, strict=False)
    )
    return replace(record, ranks=tuple(ranks))


def test_slow_first_steps_are_told_to_warm_up_longer() -> None:
    slow = [110 * MS] * 5 + [10 * MS] * 45
    records = [
        record(
            trial(group_size=2, timed_steps=50, repetition=repetition),
            [
                rank(n, window(slow, 1600), without_sync=window([10 * MS] * 50, 1600))
                for n in (0, 1)
            ],
        )
        for repetition in range(PASSES)
    ]
    (found,) = causes_on(LABEL, records)
    assert (found.kind, found.remedy) == ("warm-up", "try --warmup 7")


def test_independent_copies_wait_for_nobody() -> None:
    records = passes(("independent", [10 * MS, 16 * MS]))
    (found,) = causes_on("independent ×2, batch 32", records)
    assert (found.kind, found.text) == ("waiting", "copies that are slower than the typical one")
    *_, causes = factors_table(explain_rows(summarize(records))).columns
    assert "the slowest copy against the typical one" in causes.cells


def test_one_process_is_sent_to_ddp() -> None:
    records = passes(("independent", [10 * MS] * 2), ("dp", [20 * MS], [16 * MS]), group_size=2)
    found = causes_on("dp ×2, batch 32", records)
    assert [cause.kind for cause in found] == ["wrapper", "communication"]
    assert all("try ddp" in cause.remedy for cause in found)


def test_rare_slow_steps_are_named_where_their_noise_hides_every_factor() -> None:
    """One step in ten takes 40 ms longer, others in each window."""
    records = []
    rng = np.random.default_rng(0)
    for repetition in range(4):
        windows = [
            window((2 * MS + 40 * MS * (rng.random(100) < 0.1)).tolist(), 3200) for _ in range(3)
        ]
        spec = trial(group_size=2, timed_steps=100, repetition=repetition)
        plain = trial("single", "none", timed_steps=100, repetition=repetition)
        ranks = [rank(n, windows[0], without_sync=windows[1 + n]) for n in range(2)]
        records.append(record(spec, ranks, verification=PASSED))
        steady = window([2 * MS] * 100, 3200)
        records.append(record(plain, [rank(0, steady)], verification=PASSED))
    (found,) = causes_on(LABEL, records)
    assert found.kind == "slow steps"
    assert found.share.value == pytest.approx(0.66, abs=0.05)
    assert found.text == "rare slow steps (1 in 10, 40 ms longer than the others)"


def test_data_that_every_rank_loads_slowly_is_named_though_it_costs_no_efficiency() -> None:
    """Phases as every repetition stores them."""
    slow = phases(data_seconds=16 * MS)
    records = [
        replace(one, ranks=tuple(replace(rank, phases=slow) for rank in one.ranks))
        for repetition in range(3)
        for one in (
            steps_of("single", [20 * MS], repetition=repetition),
            steps_of("ddp", [20 * MS] * 2, [20 * MS] * 2, repetition=repetition),
        )
    ]
    for tried, remedy in (
        ({}, "--prefetch 2 --data-workers 2"),
        ({"prefetch": 2}, "--data-workers 2"),
        ({"prefetch": 2, "data_workers": 2}, "--data-workers 4"),
    ):
        rows = [replace(one, trial=replace(one.trial, **tried)) for one in records]
        ((found,),) = [one.causes for one in explain_rows(summarize(rows))]
        assert (found.kind, found.share.value) == ("data", pytest.approx(0.8))
        assert found.text == "loading data, on every rank"
        assert found.remedy.startswith(f"try {remedy}, or a faster")
