"""Causes: of large losses beyond the noise, and remedies that were not tried already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpbench.analysis.analyze import Analysis
from dpbench.analysis.diagnosis.causes import explain_rows
from dpbench.analysis.diagnosis.explanation import Cause, fastest_by_work
from dpbench.analysis.rows import summarize
from dpbench.records.trial import GpuState, TrialRecord
from dpbench.report.answers.explain import factors_table, not_separated, verdict_sentence
from dpbench.report.commands import next_command
from tests.analysis.builders import (
    PASSED,
    rank,
    record,
    steps_of,
    trial,
    varied,
    weak_sweep,
    window,
)
from tests.report.sample import analysis

MS = 1e-3
LABEL, DP = "ddp/gloo ×2, batch 32", "dp ×2, batch 32"
PASSES = 3
SHARED_GPU: dict[str, Any] = {"devices": ("cuda:0", "cuda:0")}
LESS_OFTEN = "--accumulate 4, which leaves about a quarter of this loss"


def row(
    implementation: str, timed: Sequence[float], without: Sequence[float] = (), **changes: Any
) -> list[TrialRecord]:
    """Repetitions from the milliseconds of a step on each process, and without synchronization."""
    seconds, bare = ([each * MS for each in one] for one in (timed, without))
    return [
        steps_of(implementation, seconds, bare or None, repetition=repetition, **changes)
        for repetition in range(PASSES)
    ]


def on_shm(milliseconds: float) -> list[TrialRecord]:
    return row("ddp", [milliseconds] * 2, [10, 10], backend="shm")


ALONE, COPIES = row("single", [10]), row("independent", [10, 10])
LOSS = [*ALONE, *COPIES, *row("ddp", [20, 20], [10, 10])]
"""Everything is free but communication."""
WAITING = [*ALONE, *COPIES, *row("ddp", [16, 16], [10, 16])]
BY_DP = row("dp", [20], [16], group_size=2)


def causes_on(label: str, records: Sequence[TrialRecord]) -> tuple[Cause, ...]:
    found = {one.row.label: one for one in explain_rows(summarize(records))}
    return found[label].causes


def repeated() -> list[TrialRecord]:
    return [record for i in range(PASSES) for record in weak_sweep(i, slower=1 + 0.1 * i)]


def test_the_largest_loss_comes_first_and_small_ones_are_not_mentioned() -> None:
    found = causes_on(LABEL, repeated())
    assert [cause.kind for cause in found] == ["communication", "contention", "wrapper"]
    assert found[0].share.value == pytest.approx(0.3)
    assert (found[0].text, found[0].remedy) == (
        "exposed communication on gloo",
        f"Try --backends shm, or try {LESS_OFTEN}",
    )


def test_one_replica_gets_no_advice_beside_several() -> None:
    alone = [*ALONE, *row("ddp", [20], [20])]
    label = LABEL.replace("×2", "×1")
    assert [cause.kind for cause in causes_on(label, alone)] == ["wrapper"]
    assert causes_on(label, [*repeated(), *alone]) == ()


def noisy(*milliseconds: float, without: Sequence[float]) -> list[TrialRecord]:
    """Repetitions of ddp that differ."""
    return [
        steps_of("ddp", [step * MS] * 2, [bare * MS] * 2, repetition=repetition)
        for repetition, (step, bare) in enumerate(zip(milliseconds, without, strict=True))
    ]


def test_a_loss_is_named_if_its_share_or_its_ratio_is_beyond_the_noise() -> None:
    assert causes_on(LABEL, [*ALONE, *COPIES, *noisy(9, 30, 12, without=[10, 10, 10])]) == ()
    # Other load slows whole repetitions, and communication stays half of each step.
    (found,) = causes_on(LABEL, [*ALONE, *noisy(20, 180, 12, without=[10, 90, 6])])
    assert (found.kind, found.share.value) == ("communication", pytest.approx(0.5))
    # Two copies take twice as long, which is half of one step and a tenth of the next.
    slow = [*row("independent", [20, 20]), *noisy(20, 200, 200, without=[20, 20, 20])]
    (found,) = causes_on(LABEL, [*ALONE, *slow])
    assert (found.kind, found.is_uncertain) == ("contention", True)


@pytest.mark.parametrize(
    ("label", "records", "expected"),
    [
        (
            LABEL,
            [*ALONE, *row("independent", [14, 14]), *row("ddp", [14, 14], [14, 14])],
            {"contention": "No setting removes it, as they share cores"},
        ),
        # What the sweep has is advised as measured, or not at all.
        (
            LABEL,
            [*LOSS, *on_shm(12)],
            {"communication": "Try --backends shm (better in this sweep), or try --acc"},
        ),
        (LABEL, [*LOSS, *on_shm(25)], {"communication": f"gloo. Try {LESS_OFTEN}"}),
        (
            LABEL,
            [*LOSS, *on_shm(20), *row("ddp", [20, 20], [10, 10], accumulate=4)],
            {"communication": ". No other setting is known to reduce it"},
        ),
        (DP, [*ALONE, *COPIES, *BY_DP], {"wrapper": "ddp, with a", "communication": "ddp, with"}),
        (DP, [*LOSS, *BY_DP], {"wrapper": ". Try --acc", "communication": ". Try --acc"}),
        (
            "independent ×2, batch 32",
            [*ALONE, *row("independent", [10, 16])],
            {"waiting": "copies that are slower than the typical one"},
        ),
    ],
)
def test_a_loss_has_the_remedy_that_was_not_tried(
    label: str, records: Sequence[TrialRecord], expected: dict[str, str]
) -> None:
    found = {cause.kind: f"{cause.text}. {cause.remedy}" for cause in causes_on(label, records)}
    assert found.keys() == expected.keys()
    assert all(words in found[kind] for kind, words in expected.items())


@pytest.mark.parametrize(("unsynced", "loss"), [((10, 14), "waiting"), ((14, 14), "wrapper")])
def test_a_loss_that_a_gain_makes_up_for_is_no_cause(unsynced: tuple[int, int], loss: str) -> None:
    """Steps without synchronization take 14 ms on the slower rank, and those with it 12."""
    records = [*ALONE, *COPIES, *row("ddp", [12, 12], unsynced)]
    assert causes_on(LABEL, records) == ()
    found = {one.row.label: one for one in explain_rows(summarize(records))}[LABEL]
    (note,) = not_separated(found)
    assert note.startswith(f"{loss} and communication together cost 17 % of the step; ")


def test_a_row_that_scales_linearly_has_nothing_to_gain() -> None:
    """100 ± 26 % of linear scaling, in which the wrapper costs 9 % beyond the noise."""
    alone = [steps_of("single", [ms * MS], repetition=n) for n, ms in enumerate((9, 10, 11))]
    records = [*alone, *COPIES, *row("ddp", [10, 10], [11, 11])]
    (found,) = (one for one in explain_rows(summarize(records)) if one.trains_together)
    assert found.is_linear
    assert found.causes == ()
    verdict = verdict_sentence(found, ties="dp ×2")
    assert verdict.startswith("Nothing large to fix: ddp/gloo ×2, batch 32 reaches 1")
    assert verdict.endswith(" of linear scaling from single, and ties with dp ×2.")
    assert factors_table([found]).text().count("no loss") == 2, "in its row and in a note"


def test_each_work_has_its_own_fastest_row() -> None:
    slow = weak_sweep(slower=9.0)
    strong = [
        replace(one, configuration=varied(one.configuration, scaling="strong")) for one in slow
    ]
    rows = summarize([*weak_sweep(), *strong])
    found = Analysis(name="", rows=rows, explanations=explain_rows(rows))
    best = fastest_by_work(found.explanations)
    assert [one.row.label.split("/")[0] for one in best] == ["ddp(strong)", "ddp(weak)"]
    parts = found.by_work.items()
    explained = {work: {one.row.work for one in part.explanations} for work, part in parts}
    assert explained == {"strong": {"strong"}, "weak": {"weak"}}


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"devices": ("cuda:0", "cuda:1")}, f"Try --backends nccl, or try {LESS_OFTEN}"),
        (SHARED_GPU | {"replicas_by_node": (1, 1)}, f"Try --backends nccl, or try {LESS_OFTEN}"),
        (SHARED_GPU, f"Try {LESS_OFTEN}"),
        ({"compile": "reduce-overhead"}, "Try --backends shm"),
    ],
)
def test_cuda_ranks_on_gloo_are_sent_to_nccl_and_nothing_is_advised_that_cannot_run(
    settings: dict[str, Any], advice: str
) -> None:
    records = [replace(one, configuration=varied(one.configuration, **settings)) for one in LOSS]
    (found,) = (one for one in explain_rows(summarize(records)) if one.trains_together)
    assert [cause.remedy for cause in found.causes] == [advice]


@pytest.mark.parametrize(
    ("clocks", "why"),
    [
        ((), ""),
        ((1755, 1740), ""),
        ((1755, 1080), ", with an SM clock of 1,080 MHz against 1,755 (thermal)"),
    ],
)
def test_a_slow_rank_is_named(clocks: tuple[int, ...], why: str) -> None:
    (found,) = causes_on(LABEL, [at_clocks(one, *clocks) for one in WAITING])
    assert found.kind == "waiting"
    assert found.text == f"waiting for rank 1 (cpu), the slowest in all 3 repetitions{why}"
    assert "samples" not in found.remedy  # those of digits are equally long


def at_clocks(record: TrialRecord, *clocks: int) -> TrialRecord:
    """The record, with the clocks of its ranks' GPUs; rank 1 is throttled."""
    ranks = [*record.ranks]
    for measured, clock in zip(record.ranks, clocks, strict=False):
        slowdowns = ("thermal",) * measured.rank
        state = GpuState(sm_clock_mhz=clock, slowdowns=slowdowns, processes=1)
        windows = {**measured.windows, "timed": replace(measured.timed, gpu=(state,))}
        ranks[measured.rank] = replace(measured, windows=windows)
    return replace(record, ranks=tuple(ranks))


def test_the_command_to_run_next_compares_other_implementations_too() -> None:
    records = [*ALONE, *COPIES, *BY_DP]
    (found,) = (one for one in explain_rows(summarize(records)) if one.trains_together)
    following = next_command(analysis(records), explained=found).split("   # ")[0]
    compared = (
        "--implementations dp,ddp,independent --group-sizes 2 --batch-sizes 32 --threads 1 "
        "--accumulate 1,4"
    )
    assert following == f"dpbench sweep {compared}"


def test_rare_slow_steps_are_named_where_their_noise_hides_every_factor() -> None:
    """One step in ten takes 40 ms longer, others in each window."""
    records = []
    rng = np.random.default_rng(0)
    for repetition in range(4):
        windows = [
            window((2 * MS + 40 * MS * (rng.random(100) < 0.1)).tolist(), 3200) for _ in range(3)
        ]
        spec, plain = trial(group_size=2, steps=100), trial("single", "none", steps=100)
        passed: dict[str, Any] = {"verification": PASSED, "repetition": repetition}
        ranks = [rank(n, windows[0], unsynced=windows[1 + n]) for n in range(2)]
        records.append(record(spec, ranks, **passed))
        steady = window([2 * MS] * 100, 3200)
        records.append(record(plain, [rank(0, steady)], **passed))
    (found,) = causes_on(LABEL, records)
    assert found.kind == "slow steps"
    assert found.share.value == pytest.approx(0.66, abs=0.05)
    assert found.text == "rare slow steps (1 in 10, 40 ms longer than the others)"


@pytest.mark.parametrize(
    ("tried", "remedy", "compared"),
    [
        ({}, "--prefetch 2 --data-workers 2", "--prefetch resident,2 --data-workers auto,2"),
        ({"prefetch": 2}, "--data-workers 2", "--data-workers auto,2"),
        ({"prefetch": 2, "data_workers": 2}, "--data-workers 4", "--data-workers 2,4"),
    ],
)
def test_data_that_every_rank_loads_slowly_is_named_though_it_costs_no_efficiency(
    tried: dict[str, int], remedy: str, compared: str
) -> None:
    """Loading takes 16 of the 20 ms of five instrumented steps."""
    slow = {
        "data": (16 * MS,) * 5,
        "forward": (1 * MS,) * 5,
        "backward": (2 * MS,) * 5,
        "optimizer": (1 * MS,) * 5,
    }
    records = [
        replace(one, ranks=tuple(replace(rank, phases={"timed": slow}) for rank in one.ranks))
        for one in [*row("single", [20], **tried), *row("ddp", [20, 20], [20, 20], **tried)]
    ]
    (one,) = explain_rows(summarize(records))
    (found,) = one.causes
    assert (found.kind, found.share.value) == ("data", pytest.approx(0.8))
    assert found.text.startswith("loading data, which slows a single rank as much")
    assert found.remedy == f"Try {remedy}, or use cheaper transforms"
    assert f" {compared}   # about " in next_command(analysis(records), explained=one)
