from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dpbench import environment
from dpbench.analysis.hints import Hint, hints
from dpbench.environment import Accelerator, Environment
from dpbench.records import TrialRecord
from tests.analysis.builders import rank, record, run, trial, window

CUDA_DEVICES = tuple(f"cuda:{index}" for index in range(8))


def machine(*names: str, cuda: str | None = "12.8") -> Environment:
    gpus = [Accelerator(index=i, name=name, memory_bytes=2**34) for i, name in enumerate(names)]
    return environment.capture(accelerators=gpus, cuda=cuda)


ALIKE = machine(*["H200"] * 8)


def found(records: Sequence[TrialRecord], here: Environment = ALIKE) -> tuple[Hint, ...]:
    return hints(records, {"e0": here})


def on_gpus(count: int, backend: str = "gloo") -> TrialRecord:
    spec = trial(backend=backend, group_size=count, devices=CUDA_DEVICES[:count])
    return run(spec, 100.0, without_sync=0.5)


def test_gloo_on_four_gpus_is_told_of_nccl() -> None:
    (hint,) = found([on_gpus(1), on_gpus(4)])
    assert (hint.kind, hint.value, hint.unit) == ("nccl", 4, "GPUs")
    assert hint.text.endswith("add --backends gloo,nccl")


@pytest.mark.parametrize(
    "records",
    [
        [on_gpus(3)],
        [on_gpus(4), on_gpus(4, "nccl")],
        [on_gpus(4), record(trial(backend="nccl"), reason="torch was built without nccl")],
        [run(trial(group_size=4), 100.0)],
        [run(trial(group_size=4, devices=("cuda:0",) * 4), 100.0)],
    ],
    ids=["three", "nccl measured", "nccl unusable", "on the CPU", "one GPU shared"],
)
def test_nccl_is_not_advised_where_it_was_tried_or_would_not_help(
    records: list[TrialRecord],
) -> None:
    assert found(records) == ()


def test_nothing_is_advised_for_an_unknown_machine() -> None:
    assert hints([on_gpus(4)], {}) == ()


def uneven_ranks(*step_seconds: float, with_sync: float = 1.0) -> TrialRecord:
    size = len(step_seconds)
    ranks = [
        rank(number, window([with_sync] * 4, 128), without_sync=window([seconds] * 4, 128))
        for number, seconds in enumerate(step_seconds)
    ]
    return record(trial(backend="nccl", group_size=size, devices=CUDA_DEVICES[:size]), ranks)


def test_gpus_that_differ_are_named_with_the_slowest_ranks_share() -> None:
    here = machine("H200", "T4")
    runs = [uneven_ranks(0.2, seconds) for seconds in (0.5, 0.6, 1.8)]
    (hint,) = found(
        [replace(r, trial=replace(r.trial, repetition=i)) for i, r in enumerate(runs)], here
    )
    # slowest ÷ mean is 0.5/0.35, 0.6/0.4, 1.8/1.0: the median is 1.5
    assert hint.kind == "unlike gpus"
    assert hint.value == pytest.approx(1.5)
    assert hint.text == (
        "ddp/nccl ×2, batch 32: its GPUs differ (H200, T4); all wait for the slowest, rank 1 on "
        "cuda:1, whose step takes 1.50 × the mean over ranks (without synchronization; median of "
        "3 repetitions)"
    )


def test_one_process_on_unlike_gpus_has_no_slowest_rank() -> None:
    spec = trial("dp", "threads", group_size=2, devices=CUDA_DEVICES[:2])
    (hint,) = found([record(spec, [rank(0, window([1.0] * 4, 256))])], machine("H200", "T4"))
    assert hint.value is None
    assert hint.text.endswith("all wait for the slowest")


def test_gpus_that_the_trial_did_not_use_do_not_count() -> None:
    assert found([uneven_ranks(0.2, 0.5)], machine("H200", "H200", "T4")) == ()


def test_shards_that_differ_are_told_once_with_their_counts() -> None:
    spec = trial(batch_size=64, group_size=3, scaling="strong")
    also = replace(spec, implementation="torch-ddp")
    (hint,) = found([run(spec, 100.0), run(also, 100.0)])
    assert hint.value == pytest.approx(22 / (64 / 3))
    assert hint.text.startswith(
        "of 3 replicas, 1 takes 22 and 2 take 21 samples of a global batch of 64: gradients are"
    )


def test_a_trial_that_was_not_measured_gives_no_hint() -> None:
    assert found([record(trial(batch_size=64, group_size=3, scaling="strong"))]) == ()
