"""What a training script does wrong, from what was measured of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpbench.analysis.diagnosis.advice import explain_rows
from dpbench.analysis.diagnosis.explanation import Explanation
from dpbench.analysis.rows import summarize
from dpbench.records.trial import Window
from dpbench.report.explanation import answer
from tests.analysis.builders import window
from tests.analysis.diagnosis.scripts import SAMPLES, script_sweep


def explained(**more: Any) -> Explanation:
    records = [one for repetition in range(4) for one in script_sweep(repetition, **more)]
    return next(
        one for one in explain_rows(summarize(records)) if one.trial.implementation == "script"
    )


def text_of(one: Explanation) -> str:
    return answer([one]).text


def test_the_input_pipeline_is_the_share_that_a_kept_batch_saves() -> None:
    found = explained(cached=0.030, loader_workers=2, keeps_workers=True).breakdown.input
    assert found is not None
    assert found.share.value == pytest.approx(0.4, abs=0.01)
    assert found.cached_seconds.value == pytest.approx(0.030)
    assert found.share.sample_size == 4


def test_a_slow_input_pipeline_is_named_first_with_what_the_loader_lacks() -> None:
    text = text_of(explained(cached=0.030, loader_workers=2, keeps_workers=True))
    assert text.startswith("train.py on 2 ranks: 1.6")
    assert "Input pipeline: 40.3 ± 0.5 % of the step. With the batch kept in memory" in text
    assert "Try: DataLoader(num_workers=…); this run had num_workers=2." in text


@pytest.mark.parametrize("cached", [0.046, 0.055, None])
def test_a_loader_that_costs_little_or_was_not_kept_from_working_is_not_blamed(
    cached: float | None,
) -> None:
    assert explained(cached=cached).symptoms == ()


def test_slow_first_steps_are_not_blamed_on_the_input_pipeline() -> None:
    """The script as it is comes first in each round, so that it has more of them."""

    def windows(slow: int) -> Window:
        return window((0.250,) * slow + (0.050,) * (40 - slow), 40 * SAMPLES)

    records = [
        replace(
            one,
            ranks=tuple(
                replace(rank, timed=windows(6), without_sync=windows(4), cached=windows(4))
                if rank.script
                else rank
                for rank in one.ranks
            ),
        )
        for repetition in range(4)
        for one in script_sweep(repetition)
    ]
    found = next(o for o in explain_rows(summarize(records)) if o.trial.implementation == "script")
    assert found.breakdown.slow_first_steps == 8
    assert found.symptoms == ()
    assert found.breakdown.input is not None
    assert found.breakdown.input.share.value == pytest.approx(0)


def test_averaging_in_every_micro_step_is_named() -> None:
    (symptom,) = explained(reducing_forwards=16).symptoms
    assert symptom.text == "Gradients are averaged 4 times per optimizer step"
    assert symptom.remedy.startswith("with model.no_sync()")


@pytest.mark.parametrize(
    ("facts", "kind", "text"),
    [
        ({"differing_parameter": "0.weight"}, "never synchronized", "Ranks train models of their"),
        (
            {"differing_parameter": "0.weight", "is_wrapped": True},
            "replicas differ",
            "0.weight is not the same on all ranks",
        ),
        ({"same_samples": True, "is_wrapped": True}, "same samples", "their batches are equal"),
        ({"finds_unused": True}, "find unused", "find_unused_parameters=True looks for unused"),
    ],
)
def test_each_fact_that_is_a_fault_is_named(facts: dict[str, Any], kind: str, text: str) -> None:
    (symptom,) = explained(**facts).symptoms
    assert symptom.kind == kind
    assert text in symptom.text


def test_unused_parameters_that_were_found_are_no_fault() -> None:
    assert explained(finds_unused=True, has_unused=True).symptoms == ()


def test_ranks_on_one_gpu_are_named() -> None:
    (symptom,) = explained(devices=("cuda:0", "cuda:1"), gpu="GPU-1").symptoms
    assert symptom.text == "The parameters of 2 ranks are on 1 GPU instead of 2"
    assert explained(devices=("cuda:0", "cuda:0"), gpu="GPU-1").symptoms == ()


@pytest.mark.parametrize(
    ("threads", "cores", "remedy"),
    [(4, 4, "torch.set_num_threads(2)"), (1, 16, "OMP_NUM_THREADS=8"), (1, 2, None), (2, 4, None)],
)
def test_threads_that_do_not_fit_the_cores_are_named(
    threads: int, cores: int, remedy: str | None
) -> None:
    found = [one.remedy for one in explained(threads=threads, cores=cores).symptoms]
    assert len(found) == (remedy is not None)
    assert all(one.startswith(str(remedy)) for one in found)


def test_sync_batch_norm_is_named_with_the_factor_that_contains_it() -> None:
    (symptom,) = explained(sync_batch_norms=3).symptoms
    assert symptom.text.startswith("SyncBatchNorm (3 layers) communicates in every forward pass")


def test_a_script_that_does_not_run_alone_has_no_factors_of_one_rank() -> None:
    one = explained(single=None)
    assert one.breakdown.efficiency is None
    text = " ".join(text_of(one).split())
    assert text.startswith("train.py on 2 ranks: 50 ± 0.2 ms a step.") or "ms a step" in text
    assert "`single` has no completed repetition" in text


def test_without_distributed_data_parallel_communication_is_not_separated() -> None:
    one = explained(without_sync=None)
    assert any("has no DistributedDataParallel" in note for note in one.notes)
