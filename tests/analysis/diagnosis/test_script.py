"""What a training script does wrong or slowly, from what was measured of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpbench.analysis.analyze import Analysis
from dpbench.analysis.diagnosis.causes import explain_rows
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.diagnosis.factors import IDEAL
from dpbench.analysis.rows import summarize
from dpbench.records.trial import RankMeasurement, TrialRecord, Window
from dpbench.report.answers.explain import explanation_answer, not_separated
from dpbench.report.commands import next_command
from tests.analysis.builders import varied, window
from tests.analysis.diagnosis.scripts import SAMPLES, STEPS, script_sweep
from tests.report.sample import analysis


def sweep(**more: Any) -> list[TrialRecord]:
    return [one for repetition in range(4) for one in script_sweep(repetition, **more)]


def of_group(records: list[TrialRecord]) -> Explanation:
    explained = explain_rows(summarize(records))
    return next(one for one in explained if one.configuration.implementation == "script")


def lines(**more: Any) -> list[str]:
    """The causes as they are printed."""
    found = of_group(sweep(**more))
    text = explanation_answer(Analysis(name="", explanations=(found,)), [found]).text
    return [" ".join(one.split()) for one in text.split("\n\n")[1].split("· ") if one]


def test_causes_are_one_list_in_which_wrong_comes_first_and_unmeasured_last() -> None:
    found = lines(
        as_is=0.100,
        cached=0.060,
        unsynced=0.050,
        differing_parameter="0.weight",
        is_wrapped=True,
        same_samples=True,
        forwards=16,
        reducing_forwards=16,
        threads=2,
    )
    assert found == [
        "wrong: replicas differ, as 0.weight is not the same on all ranks after the warm-up. Load "
        "one checkpoint on all ranks, and change no parameter before wrapping",
        "wrong: all ranks train on the same samples, as their batches are equal. Use DataLoader(…, "
        "sampler=DistributedSampler(dataset)), and call sampler.set_epoch(epoch) before each epoch",
        "40.3 ± 0.5 % of the step is the input pipeline, which slows a single rank as much and so "
        "is no factor of efficiency: a step takes 100 ms, and 60 ms with the batch kept in memory. "
        "Make its transforms cheaper, cache their output or run them before training, or use fewer "
        "ranks; more num_workers would not help, as 2 ranks already fill 2 cores",
        "up to about 38 % of the step is averaging gradients 4 times per optimizer step instead of "
        "once (a part of communication). Put all micro-steps but the last, forward and backward, "
        "in model.no_sync()",
        "cost not measured: 2 ranks compute with 2 threads each, on 2 cores. "
        "Call torch.set_num_threads(1), or remove that call and use --threads 1",
    ]


@pytest.mark.parametrize(
    ("facts", "kind", "price", "text"),
    [
        ({"differing_parameter": "a"}, "never synchronized", None, "ranks train models of their"),
        ({"finds_unused": True}, "find unused", None, "search for unused parameters"),
        ({"sync_batch_norms": 3}, "sync batch norm", 0.02, "SyncBatchNorm (3 layers), which"),
        ({"devices": ("cuda:0", "cuda:1"), "gpu": "A"}, "shared gpu", None, "on 1 GPU instead of"),
        ({"threads": 4, "cores": 4}, "threads", None, "with 4 threads each, on 4 cores"),
        ({"threads": 1, "cores": 16}, "threads", None, "with 1 thread each, on 16 cores"),
    ],
)
def test_each_fault_is_named_with_the_most_that_it_can_cost_and_after_a_busy_machine_without(
    facts: dict[str, Any], kind: str, price: float | None, text: str
) -> None:
    (cause,) = of_group(sweep(**facts)).causes
    assert (cause.kind, text in cause.text) == (kind, True)
    assert (cause.share and cause.share.value) == pytest.approx(price, abs=0.005)
    assert (cause.standing == "part of a loss") == (price is not None)
    (fact,) = of_group(sweep(**facts, others=1.8)).causes
    assert (fact.share, fact.text, fact.remedy) == (None, cause.text, cause.remedy)
    assert fact.standing == ("wrong" if cause.standing == "wrong" else "not measured")


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"cached": 0.046},
        {"cached": None},
        {"finds_unused": True, "has_unused": True},
        {"devices": ("cuda:0", "cuda:0"), "gpu": "A"},
        {"threads": 1, "cores": 2},
        {"threads": 2, "cores": 4},
    ],
)
def test_facts_that_are_no_faults_are_not_named(facts: dict[str, Any]) -> None:
    assert of_group(sweep(**facts)).causes == ()


def test_a_script_is_not_advised_what_it_has() -> None:
    slow: dict[str, Any] = {"unsynced": 0.040, "single": 0.040}
    (once,) = lines(**slow)
    assert ". Accumulate gradients over 4 micro-steps with no_sync(), which leaves" in once
    slow["forwards"] = 16
    (four,) = lines(**slow)
    assert four.endswith(". Use a larger batch, or take more micro-steps per optimizer step")
    (gloo,) = lines(**slow, group_class="ProcessGroupGloo")
    assert '. Try --backends shm, or in the script init_process_group("shm") after' in gloo
    on_gpus = {"devices": ("cuda:0", "cuda:1"), "group_class": "ProcessGroupGloo"}
    (nccl,) = lines(**slow, **on_gpus)
    assert '. Try --backends nccl, or in the script init_process_group("nccl"), or' in nccl
    one, more = sweep(threads=1, cores=16), sweep(threads=8, cores=16)
    more = [replace(each, configuration=varied(each.configuration, threads=8)) for each in more]
    assert of_group([*one, *more]).causes == ()


def test_an_input_pipeline_that_noise_hides_is_named_without_its_cost() -> None:
    records = [
        record
        for repetition, cached in enumerate((0.030, 0.030, 0.049, 0.060))
        for record in script_sweep(repetition, cached=cached)
    ]
    (cause,) = of_group(records).causes
    assert cause.standing == "not measured"
    assert cause.text == ("the input pipeline, up to 63 % of the step, which noise hides")


def test_ranks_that_wait_for_samples_leave_their_cores_to_workers() -> None:
    def waiting(rank: RankMeasurement) -> RankMeasurement:
        timed = replace(rank.timed, cpu_seconds=0.5 * rank.timed.seconds)
        return replace(rank, windows={**rank.windows, "timed": timed})

    records = sweep(cached=0.030)
    assert "2 ranks already fill 2 cores" in of_group(records).causes[0].remedy
    idle = [replace(record, ranks=tuple(map(waiting, record.ranks))) for record in records]
    assert of_group(idle).causes[0].alternatives[0].values == {"data_workers": (0, 2)}


def test_what_the_sweep_has_is_compared_and_not_advised() -> None:
    loads = {"cached": 0.030, "cores": 3}
    assert lines(**loads)[0].endswith("persistent_workers=True) (now num_workers=0)")
    records = [
        replace(one, configuration=varied(one.configuration, data_workers=count))
        for count in (0, 2)
        for one in sweep(**loads, as_is=0.050 * (1 + count), loader_workers=count)
    ]
    found = [one for one in explain_rows(summarize(records)) if one.trains_together]
    text = explanation_answer(Analysis(name="", explanations=(*found,)), found[:1]).text
    assert "· script(2 workers) ×2: 0.333 ± 0.003 × as fast as script(0 workers) ×2" in text
    assert found[0].causes[0].remedy.endswith("training; num_workers=2 was measured, too")


def test_the_explanation_of_a_stored_script_is_followed_by_its_remedy_too() -> None:
    records = sweep(finds_unused=True)
    following, took = next_command(analysis(records), explained=of_group(records)).split("   # ")
    assert following == "dpbench sweep --find-unused auto,off"
    assert took == "about 12 s", "two values of three rows of 1 s, in two repetitions"
    as_off = [
        replace(one, configuration=varied(one.configuration, find_unused="off")) for one in records
    ]
    following = next_command(analysis(records), explained=of_group([*records, *as_off]))
    assert following == "dpbench report demo --open"


@pytest.mark.parametrize(("steps", "everywhere"), [(20, True), (40, False), (160, True)])
def test_slow_first_steps_are_blamed_for_themselves_only(steps: int, everywhere: bool) -> None:
    """The script as it is comes first in each round, so that only it has slow steps."""

    def timed(seconds: float, slow: int = 0) -> Window:
        each = window((seconds + 0.2,) * slow + (seconds,) * (steps - slow), steps * SAMPLES)
        return replace(each, segment_steps=(5,) * (steps // 5))

    def changed(rank: RankMeasurement) -> RankMeasurement:
        if not rank.script:
            return replace(rank, windows={"timed": timed(0.048, 4 * everywhere)})
        noise = rank.timed.step_seconds[0] / 0.050
        kept = timed(0.049 * noise)
        windows = {"timed": timed(0.050 * noise, 4), "unsynced": kept, "cached": kept}
        return replace(rank, windows=windows)

    found = of_group([replace(one, ranks=tuple(map(changed, one.ranks))) for one in sweep()])
    (cause,) = found.causes
    assert cause.kind == "warm-up"
    assert cause.remedy.startswith("Try --warmup ")
    assert cause.share is not None
    assert cause.share.value == pytest.approx(0.8 / (0.8 + steps * 0.05), rel=0.2)


def test_a_script_that_does_not_run_alone_has_no_factors_of_one_rank() -> None:
    one = of_group(sweep(single=None))
    assert IDEAL in one.breakdown.missing
    text = " ".join(explanation_answer(Analysis(name="", explanations=(one,)), [one]).text.split())
    assert text.startswith("train.py on 2 ranks: 50.2 ± 0.5 ms a step.")
    assert "`single` has no completed repetition" in text


def test_without_distributed_data_parallel_communication_is_not_separated() -> None:
    found = of_group(sweep(unsynced=None))
    assert any("has no DistributedDataParallel" in note for note in not_separated(found))


@pytest.mark.parametrize(("slow", "is_named"), [(0.056, False), (0.080, True)])
def test_ranks_that_wait_now_and_then_are_named_where_it_costs_a_tenth(
    slow: float, is_named: bool
) -> None:
    """A few percent are lost in any script whose steps are short."""

    def alone(rank: RankMeasurement, repetition: int) -> RankMeasurement:
        own = 0.0005 * (rank.rank == repetition % 2)  # now one rank is the slowest, now the other
        seconds = (0.050, slow) * 2 if rank.rank else (slow, 0.050) * 2
        bare = window([one + own for one in seconds], STEPS * SAMPLES)
        return replace(rank, windows={**rank.windows, "unsynced": bare}) if rank.script else rank

    records = sweep(as_is=slow + 0.001, cached=None)
    found = of_group(
        [
            replace(one, ranks=tuple(alone(rank, one.repetition) for rank in one.ranks))
            for one in records
        ]
    )
    waiting = next(one for one in found.breakdown.factors if "waiting" in one.parts)
    assert waiting.share.value > 0.05
    assert any("samples equally long" in cause.remedy for cause in found.causes) is is_named
