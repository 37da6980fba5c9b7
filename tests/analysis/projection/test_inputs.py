"""What a sweep tells a simulation, and traces that are of another model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpbench.analysis.projection.inputs import (
    require_same_gradients,
    require_trace_of,
    simulation_inputs,
)
from dpbench.analysis.projection.stragglers import expected_maximum
from dpbench.errors import UsageError
from dpbench.records.trial import Status, TrialRecord
from dpbench.specs import TrialSpec
from tests.analysis.builders import steps_of, trial, weak_sweep
from tests.analysis.projection.traces import (
    GRADIENT_BYTES,
    STEP_SECONDS,
    gradient_trace,
    traced_sweep,
    with_trace,
)

DDP = trial("ddp", "gloo", 2, timed_steps=4)


def sweep() -> list[TrialRecord]:
    return [record for i in range(3) for record in traced_sweep(i)]


def without(records: list[TrialRecord], implementation: str, size: int) -> list[TrialRecord]:
    return [
        r for r in records if (r.trial.implementation, r.trial.group_size) != (implementation, size)
    ]


def test_the_trace_is_that_of_the_implementation_alone() -> None:
    found = simulation_inputs(sweep(), DDP)
    assert found.trace_source == "ddp/gloo ×1, batch 32"
    assert len(found.traces) == 3
    assert found.trace.step_seconds == pytest.approx(STEP_SECONDS)
    assert found.tracing_overhead.value == pytest.approx(1.0)
    assert not any("stands in" in note for note in found.notes)


def test_the_speed_alone_is_that_of_the_trials_that_were_traced() -> None:
    """Windows of 11 ms a step with ddp, of 10 ms with single."""
    found = simulation_inputs(sweep(), DDP)
    assert (found.alone.value, found.alone.sample_size) == (pytest.approx(32 / 0.011), 3)
    stand_in = simulation_inputs(without(sweep(), "ddp", 1), DDP)
    assert stand_in.alone.value == pytest.approx(32 / 0.010)


def test_single_stands_in_where_the_implementation_was_not_traced() -> None:
    found = simulation_inputs(without(sweep(), "ddp", 1), DDP)
    assert found.trace_source == "single ×1, batch 32"
    assert "what wrapping the module costs is not in it" in found.notes[0]


def test_another_backend_of_the_implementation_comes_before_single() -> None:
    found = simulation_inputs(sweep(), trial("ddp", "shm", 2))
    assert found.trace_source == "ddp/gloo ×1, batch 32"


def test_contention_is_that_of_independent_copies() -> None:
    found = simulation_inputs(sweep(), DDP)
    assert list(found.contention) == [2]
    assert found.contention[2].value == pytest.approx(12.5 / 10)
    assert simulation_inputs(without(sweep(), "independent", 2), DDP).contention == {}


def test_stragglers_are_those_of_the_series_without_synchronization() -> None:
    found = simulation_inputs(sweep(), DDP)
    assert found.noise is not None
    # 13 and 14 ms: the slower of the two takes 14 ÷ 13.5 of their mean.
    share = expected_maximum(found.noise, 2) / expected_maximum(found.noise, 1)
    assert share == pytest.approx(14 / 13.5, rel=1e-4)
    assert found.noise.residual_cv == pytest.approx(0.0, abs=1e-9)
    assert (found.noise.ranks, found.noise.rank_steps) == (2, 3 * 2 * 4)
    assert any("steps of ddp/gloo ×2, batch 32 without" in note for note in found.notes)


def test_else_those_of_independent_copies() -> None:
    found = simulation_inputs(without(sweep(), "ddp", 2), DDP)
    assert any("steps of independent ×2, batch 32 without" in note for note in found.notes)


def test_without_a_group_nothing_is_known_of_stragglers() -> None:
    records = without(without(sweep(), "ddp", 2), "independent", 2)
    found = simulation_inputs(records, DDP)
    assert found.noise is None
    assert any("stragglers were not measured" in note for note in found.notes)


def test_in_strong_scaling_the_trace_is_at_the_batch_of_a_replica() -> None:
    records = [
        with_trace(steps_of("ddp", [0.01], [0.01], batch_size=size), gradient_trace((step,)))
        for size, step in ((32, 0.01), (16, 0.006))
    ]
    strong = trial("ddp", "gloo", 2, 32, scaling="strong")
    assert simulation_inputs(records, strong).trace.step_seconds == pytest.approx(0.006)


def test_of_rows_that_differ_in_their_steps_each_has_its_own_trace() -> None:
    compared = ("timed_steps",)
    several = [
        replace(record, trial=replace(record.trial, timed_steps=steps, compared=compared))
        for steps, records in ((4, sweep()), (8, without(sweep(), "ddp", 1)))
        for record in records
    ]
    own, other = (replace(DDP, timed_steps=steps, compared=compared) for steps in (4, 8))
    assert simulation_inputs(several, own).trace_source == "ddp(4 steps)/gloo ×1, batch 32"
    assert simulation_inputs(several, other).trace_source == "single(8 steps) ×1, batch 32"
    absent = replace(other, timed_steps=9)
    assert simulation_inputs(several, absent).trace_source.startswith("ddp")


def test_trials_of_other_work_do_not_count() -> None:
    other = replace(DDP, workload=replace(DDP.workload, architecture="mlp"))
    differing = [{"threads_per_replica": 2}, {"batch_size": 64}, {"accumulation_steps": 4}]
    for changed in (other, *(replace(DDP, **values) for values in differing)):
        with pytest.raises(UsageError, match="no gradient trace"):
            simulation_inputs(sweep(), changed)
    on_gpus: TrialSpec = replace(DDP, devices=("cuda:0", "cuda:1"))
    with pytest.raises(UsageError, match="no gradient trace"):
        simulation_inputs(sweep(), on_gpus)


def test_without_a_trace_the_error_has_the_command() -> None:
    with pytest.raises(UsageError) as caught:
        simulation_inputs(weak_sweep(), DDP)
    assert str(caught.value).endswith(
        "measure it with dpbench sweep --arch mnist_cnn --implementations single,ddp "
        "--backends gloo --group-sizes 1,2 --batch-sizes 32"
    )


def test_a_trial_that_failed_gives_no_trace() -> None:
    failed = [replace(record, status=Status.FAILED) for record in traced_sweep()]
    with pytest.raises(UsageError, match="no gradient trace"):
        simulation_inputs(failed, DDP)


def test_repetitions_of_another_model_are_refused() -> None:
    records = [*traced_sweep(0), *traced_sweep(1, gradient_dtypes=("float64",) * 8)]
    with pytest.raises(UsageError, match="another model or dtype"):
        simulation_inputs(records, DDP)


def test_a_trace_of_other_gradients_than_the_sweep_reduced_is_refused() -> None:
    def reducing(nbytes: int) -> list[TrialRecord]:
        return [
            replace(
                record,
                ranks=tuple(replace(rank, reduced_bytes_per_step=nbytes) for rank in record.ranks),
            )
            if record.trial.group_size == 2
            else record
            for record in traced_sweep()
        ]

    assert simulation_inputs(reducing(8 * GRADIENT_BYTES), DDP).trace.total_bytes == 8 * 2**20
    with pytest.raises(UsageError, match="another model or dtype than the sweep's"):
        simulation_inputs(reducing(4 * GRADIENT_BYTES), DDP)


def at_batch(records: list[TrialRecord], batch_size: int, slower: float) -> list[TrialRecord]:
    """The same trials at another batch, whose copies take `slower` times as long together."""

    def changed(record: TrialRecord) -> TrialRecord:
        if record.trial.implementation == "independent":
            steps = [0.012 * slower, 0.013 * slower]
            return steps_of(
                "independent", steps, batch_size=batch_size, repetition=record.trial.repetition
            )
        return replace(record, trial=replace(record.trial, batch_size=batch_size))

    return [changed(record) for record in records]


def test_contention_and_stragglers_are_those_of_the_batch() -> None:
    records = [*sweep(), *at_batch(sweep(), 128, slower=2.0)]
    small, large = (
        simulation_inputs(records, replace(DDP, batch_size=batch)) for batch in (32, 128)
    )
    assert small.contention == simulation_inputs(sweep(), DDP).contention
    assert (small.contention[2].value, small.contention[2].sample_size) == (pytest.approx(1.25), 3)
    assert large.contention[2].value == pytest.approx(2.5)


def test_a_batch_that_never_ran_without_synchronization_is_named() -> None:
    rest = without(without(at_batch(sweep(), 128, 1.0), "ddp", 2), "independent", 2)
    found = simulation_inputs([*sweep(), *rest], replace(DDP, batch_size=128))
    assert any("without synchronization at batch 128:" in note for note in found.notes)


def test_copies_that_are_not_slower_together_are_remarked() -> None:
    assert not any("copies at once" in note for note in simulation_inputs(sweep(), DDP).notes)
    found = simulation_inputs(at_batch(sweep(), 32, slower=0.7), DDP)
    [note] = [note for note in found.notes if "copies at once" in note]
    assert note.startswith("2 copies at once took 0.875 (0.875 to 0.875) times as long as one")


def test_traces_of_one_model_agree() -> None:
    require_same_gradients({"a": gradient_trace((0.01,)), "b": gradient_trace((0.02, 0.03))})
    require_same_gradients({"a": gradient_trace()})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": ("other", *(f"layer{i}" for i in range(1, 8)))}, "gradient of other"),
        ({"gradient_dtypes": ("bfloat16",) * 8}, "layer0 in bfloat16, expected float32"),
        ({"gradient_bytes": (4,) * 8}, "4 bytes of layer0, expected 1,048,576"),
        (
            {
                "parameters": ("layer0",),
                "gradient_bytes": (GRADIENT_BYTES,),
                "gradient_dtypes": ("float32",),
            },
            "got 1 gradients, expected 8",
        ),
    ],
)
def test_another_model_or_dtype_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match="trace of b is of another model or dtype than") as caught:
        require_same_gradients({"a": gradient_trace(), "b": gradient_trace(**changes)})
    assert words in str(caught.value)


def test_a_trace_must_reduce_as_many_bytes_as_the_sweep() -> None:
    require_trace_of(gradient_trace(), "a", 8 * GRADIENT_BYTES)
    with pytest.raises(UsageError, match="8,388,608 bytes, and a step reduces 4,194,304"):
        require_trace_of(gradient_trace(), "a", 4 * GRADIENT_BYTES)
