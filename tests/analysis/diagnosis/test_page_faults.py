"""When keeping freed memory is advised: where it was measured to gain, or may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from dpbench.analysis.configuration import by_configuration
from dpbench.analysis.diagnosis.page_faults import memory_advice
from dpbench.records import TrialRecord
from dpbench.specs import KEEP, SYSTEM
from tests.analysis.builders import runs, trial

STEPS = 4
SPEEDS = (1000.0, 1001.0, 999.0)
STEP_SECONDS = 2 * 32 / 1000


def measured(
    allocator: str | None, faults: int | None, speeds: Sequence[float] = SPEEDS, batch: int = 32
) -> list[TrialRecord]:
    """Runs of ddp ×2 whose ranks count `faults` page faults in each step."""
    spec = trial(group_size=2, allocator=allocator, batch_size=batch)
    return [
        replace(
            record,
            ranks=tuple(
                replace(
                    rank,
                    timed=replace(
                        rank.timed, page_faults=None if faults is None else faults * STEPS
                    ),
                )
                for rank in record.ranks
            ),
        )
        for record in runs(spec, speeds)
    ]


def texts(*groups: list[TrialRecord]) -> list[str]:
    return [one.text for one in memory_advice(by_configuration(chain.from_iterable(groups)))]


def test_a_gain_that_was_measured_is_told_with_its_interval() -> None:
    (text,) = texts(measured(SYSTEM, 9000), measured(KEEP, 3, [speed * 1.1 for speed in SPEEDS]))
    assert text.startswith("ddp/gloo ×2, batch 32: --allocator keep makes it 10 % faster (95 %")
    assert "9,000 page faults per step without it, 3 with it" in text


def test_nothing_is_advised_where_keeping_memory_gained_nothing() -> None:
    assert texts(measured(SYSTEM, 9000), measured(KEEP, 3)) == []


def test_many_page_faults_are_a_reason_to_measure_what_keeping_memory_gains() -> None:
    many = int(0.06 * STEP_SECONDS / 0.5e-6)
    few = int(0.04 * STEP_SECONDS / 0.5e-6)
    (text,) = texts(measured(SYSTEM, many))
    assert text.startswith(f"ddp/gloo ×2, batch 32: {many:,} page faults per step")
    assert text.endswith("measure what keeping it gains: --allocator system,keep")
    assert texts(measured(SYSTEM, few)) == []


def test_rows_with_many_page_faults_share_a_line() -> None:
    (text,) = texts(measured(SYSTEM, 9000), measured(SYSTEM, 90_000, batch=64))
    assert text.startswith("ddp/gloo ×2, batch 64 (and 1 more row): 90,000 page faults")


def test_results_older_than_the_count_are_left_alone() -> None:
    assert texts(measured(None, None), measured(SYSTEM, None, batch=64)) == []
