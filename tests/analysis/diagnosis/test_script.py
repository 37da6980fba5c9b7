"""What a training script does wrong, from what was measured of it."""

from __future__ import annotations

from typing import Any

import pytest

from dpbench.analysis.diagnosis.advice import advise
from dpbench.analysis.diagnosis.explanation import Explanation, explain
from dpbench.analysis.summary import summarize
from dpbench.report.explanation import answer
from tests.analysis.diagnosis.scripts import script_sweep


def explained(**more: Any) -> Explanation:
    records = [one for repetition in range(4) for one in script_sweep(repetition, **more)]
    return next(
        one for one in explain(records, summarize(records)) if one.trial.implementation == "script"
    )


def text_of(one: Explanation) -> str:
    return answer([one], advise([one])).text


def test_the_input_pipeline_is_the_share_that_a_kept_batch_saves() -> None:
    found = explained(cached=0.030, loader_workers=2, keeps_workers=True).factors.input
    assert found is not None
    assert found.share.value == pytest.approx(0.4, abs=0.01)
    assert found.value.value == pytest.approx(0.6, abs=0.01)
    assert found.cached_seconds.value == pytest.approx(0.030)
    assert found.share.sample_size == 4


def test_a_slow_input_pipeline_is_named_first_with_what_the_loader_lacks() -> None:
    text = text_of(explained(cached=0.030, loader_workers=2, keeps_workers=True))
    assert text.startswith("train.py on 2 ranks: 1.6")
    assert "Input pipeline: 40.3 ± 0.5 % of the step. With the batch kept in memory" in text
    assert "Try: DataLoader(num_workers=…, pin_memory=True); this run had num_workers=2." in text


@pytest.mark.parametrize("cached", [0.049, 0.055, None])
def test_a_loader_that_costs_little_or_was_not_kept_from_working_is_not_blamed(
    cached: float | None,
) -> None:
    assert explained(cached=cached).symptoms == ()


def test_averaging_in_every_micro_step_is_named() -> None:
    (symptom,) = explained(reducing_forwards=16).symptoms
    assert symptom.text == "Gradients are averaged 4 times per optimizer step"
    assert symptom.remedy.startswith("with model.no_sync()")


def test_a_script_that_does_not_run_alone_has_no_factors_of_one_rank() -> None:
    one = explained(single=None)
    assert one.factors.efficiency is None
    text = " ".join(text_of(one).split())
    assert text.startswith("train.py on 2 ranks: 50 ± 0.2 ms a step.") or "ms a step" in text
    assert "`single` has no completed repetition" in text


def test_without_distributed_data_parallel_communication_is_not_separated() -> None:
    one = explained(without_sync=None)
    assert any("has no DistributedDataParallel" in note for note in one.notes)
