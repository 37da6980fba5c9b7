"""Remarks on cores, devices, shards and transports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dpbench.analysis.rows import summarize
from dpbench.analysis.sentences import environment_warnings, machine_notes
from dpbench.records.environment import Environment
from dpbench.records.trial import INFINIBAND_UNUSED, GpuState, TrialRecord
from tests.analysis.builders import (
    machine,
    rank,
    record,
    run,
    steps_of,
    trial,
    varied,
    window,
)
from tests.builders import HERE

CUDA_DEVICES = tuple(f"cuda:{index}" for index in range(8))
ALIKE = machine(*["H200"] * 8)


def found(records: Sequence[TrialRecord], here: Environment = ALIKE) -> tuple[str, ...]:
    return tuple(machine_notes(summarize(records), {"e0": here}))


def test_gpus_that_differ_are_named_with_the_slowest_ranks_share() -> None:
    at = {"backend": "nccl", "devices": CUDA_DEVICES[:2]}
    records = [
        steps_of("ddp", [1.0, 1.0], [0.2, seconds], repetition=repetition, **at)
        for repetition, seconds in enumerate((0.5, 0.6, 1.8))
    ]
    (hint,) = found(records, machine("H200", "T4"))
    # The others are ready after 2/5, 2/6 and 2/18 of its step.
    assert hint == (
        "ddp/nccl ×2, batch 32: its GPUs differ (H200, T4); all wait for the slowest, rank 1 on "
        "cuda:1, for 72 % of its step"
    )


def test_page_faults_that_cost_much_of_a_step_on_the_cpu_are_named_with_the_remedy() -> None:
    """1,000 of them take about 1 ms of a step of 10 ms, 400 take a twenty-fifth of it."""

    def measured(faults: int, device: str = "cpu") -> TrialRecord:
        steps = replace(window([0.01] * 10, 320), page_faults=10 * faults)
        spec = trial(devices=(device,))
        return record(spec, [rank(0, steps, device=device)])

    def warned(one: TrialRecord, **variables: str) -> list[str]:
        return [*environment_warnings([one], {"e0": replace(HERE, variables=variables)})]

    assert warned(measured(400)) == warned(measured(1000, "cuda:0")) == []
    assert warned(measured(1000), MALLOC_TRIM_THRESHOLD_="1000000000") == []
    assert warned(measured(1000)) == [
        "up to 1,000 page faults in each step, in 1 of 1 row, make all times longer and less even, "
        "as glibc returns freed memory: put MALLOC_TRIM_THRESHOLD_=1000000000 "
        "MALLOC_MMAP_THRESHOLD_=1000000000 before the command, and before your training"
    ]


def test_shards_that_differ_are_told_once_with_their_counts() -> None:
    spec = trial(batch_size=64, group_size=3, scaling="strong")
    also = varied(spec, implementation="torch-ddp")
    (hint,) = found([run(spec, 100.0), run(also, 100.0)])
    assert hint.startswith(
        "of 3 replicas, 1 takes 22 and 2 take 21 samples of a global batch of 64: gradients are"
    )
    assert hint.endswith("all replicas wait for the largest shard (1.03 × the mean)")


def on_two_gpus(devices: tuple[str, ...], processes: int, *transports: str) -> TrialRecord:
    state = GpuState(sm_clock_mhz=1755, slowdowns=(), processes=processes)
    timed = replace(window([0.1] * 4, 32), gpu=(state,))
    ranks = [rank(number, timed, transports=transports) for number in range(2)]
    return record(trial(backend="nccl", group_size=2, devices=devices), ranks)


def test_other_processes_on_the_gpus_are_noted() -> None:
    own = CUDA_DEVICES[:2]
    assert found([on_two_gpus(own, 1)]) == found([on_two_gpus(("cuda:0",) * 2, 2)]) == ()
    assert found([on_two_gpus(own, 2)]) == (
        "ddp/nccl ×2, batch 32: other processes use cuda:0, cuda:1; stop them and measure again",
    )


def test_sockets_beside_infiniband_are_warned_of() -> None:
    (hint,) = found([on_two_gpus(CUDA_DEVICES[:2], 1, "P2P", INFINIBAND_UNUSED)])
    assert "NCCL sends through sockets, although there is InfiniBand" in hint
    assert found([on_two_gpus(CUDA_DEVICES[:2], 1, "NET/IB")]) == ()


@pytest.mark.parametrize("here", [replace(HERE, cores=2), replace(HERE, cores=64, quota_cores=2.5)])
def test_replicas_that_share_cores_are_told(here: Environment) -> None:
    measured = run(trial(group_size=4), 100.0, environment_ids=("e0",))
    (note,) = environment_warnings([measured, replace(measured, environment_ids=())], {"e0": here})
    assert note == "oversubscribed, 4 threads on 2 cores: ddp/gloo ×4, batch 32"
