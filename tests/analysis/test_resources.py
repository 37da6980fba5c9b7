"""Energy per item and shares of peaks, worked by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.resources import counted_flops, joules_per_item, peak_of, utilisation
from dpbench.analysis.summary import summarize
from dpbench.records.environment import Accelerator, Environment
from dpbench.records.trial import Status, TrialRecord
from tests.analysis.builders import rank, record, trial, window


def run(*devices_and_joules: tuple[str, float | None], repetition: int = 0) -> TrialRecord:
    """Every rank takes 50 samples."""
    ranks = [
        rank(number, window([1.0], 50), device=device, energy_joules=joules)
        for number, (device, joules) in enumerate(devices_and_joules)
    ]
    spec = trial(group_size=len(ranks), repetition=repetition)
    return record(spec, ranks)


@pytest.mark.parametrize(
    ("devices_and_joules", "per_image"),
    [
        ([("cuda:0", 100.0), ("cuda:1", 300.0)], 4.0),
        ([("cuda:0", 390.0), ("cuda:0", 410.0)], 4.0),  # ranks that share a GPU read all of it
        ([("cuda:0", 100.0), ("cuda:1", None)], None),
        ([("cpu", None)], None),
    ],
)
def test_the_energy_of_all_devices_is_shared_by_all_samples(
    devices_and_joules: list[tuple[str, float | None]], per_image: float | None
) -> None:
    assert joules_per_item(run(*devices_and_joules)) == per_image


H100 = "NVIDIA H100 80GB HBM3"
SPEED = Estimate(
    value=1000.0, low=900.0, high=1100.0, unit="images/s", sample_size=5, basis="repetitions"
)


def machine(*names: str) -> Environment:
    return Environment(
        hostname="host",
        system="Linux",
        kernel="6",
        python="3.11",
        cpu="Some CPU",
        cores=2,
        memory_bytes=1,
        accelerators=tuple(
            Accelerator(index=index, name=name, memory_bytes=1) for index, name in enumerate(names)
        ),
    )


def test_the_part_of_the_peak_is_that_of_all_devices() -> None:
    """1,000 images/s of 6.7 GFLOP are 6.7 TFLOP/s, of 2 × 67 TFLOP/s."""
    spec = trial(group_size=2, devices=("cuda:0", "cuda:1"))
    found = utilisation(6.7e9, spec, SPEED, machine(H100, H100))
    assert (found.achieved.value, found.achieved.unit) == (6.7e12, "FLOP/s")
    assert found.mfu is not None
    assert (found.mfu.value, found.mfu.low, found.mfu.high) == pytest.approx((0.05, 0.045, 0.055))
    assert (found.mfu.sample_size, found.mfu.basis) == (5, "repetitions")
    assert found.note == (
        "MFU: of 134.0 TFLOP/s in float32 without tensor cores (NVIDIA H100 data sheet (SXM), 2023)"
    )


def test_replicas_that_share_a_device_share_its_peak() -> None:
    spec = trial(group_size=2, devices=("cuda:0", "cuda:0"))
    found = utilisation(6.7e9, spec, SPEED, machine(H100))
    assert found.mfu is not None
    assert found.mfu.value == pytest.approx(0.1)


def test_a_device_that_is_not_in_the_table_has_no_mfu_and_a_reason() -> None:
    found = utilisation(1e9, trial(), SPEED, machine())
    assert found.achieved.value == 1e12
    assert found.mfu is None
    assert re.fullmatch(
        r"no MFU: the f32 peak of Some CPU is not in the table of \d{4}-\d\d-\d\d", found.note
    )


def test_a_count_holds_for_all_trials_of_its_workload() -> None:
    """One repetition of one configuration counted; the failed one beside it did not."""
    timed = [rank(0, window([0.1], 32))]
    counted = record(replace(trial(), repetition=1), timed, flops_per_item=6.7e9)
    assert counted_flops([record(trial()), counted]) == {trial().workload: 6.7e9}
    rows = summarize(
        [record(trial(), status=Status.FAILED), counted, record(trial("torch-ddp"), timed)],
        environments={counted.environment_id: machine(H100)},
    )
    speeds = [row["flops_per_second"] for row in rows]
    assert [speed is not None for speed in speeds] == [True, True]


def test_uncounted_operations_are_a_note_where_there_is_a_gpu() -> None:
    run = record(trial(), [rank(0, window([0.1], 32))])
    (row,) = summarize([run], environments={run.environment_id: machine(H100)})
    assert row["mfu"] is None
    assert "no FLOP/s and MFU: no trial of this workload counted its operations" in row.notes


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("Tesla V100-SXM2-16GB", 15.7),
        ("A100-SXM4-40GB", 19.5),
        ("NVIDIA A100 80GB PCIe", 19.5),
        ("NVIDIA A100-SXM4-80GB", 19.5),
        (H100, 67.0),
        ("NVIDIA H100 PCIe", 51.0),
        ("NVIDIA H200", 67.0),
        ("NVIDIA L4", 30.3),
        ("NVIDIA L40S", 91.6),
        ("NVIDIA GeForce RTX 3090", 35.6),
        ("NVIDIA GeForce RTX 4090", 82.6),
        ("AMD Instinct MI300X", 163.4),
    ],
)
def test_known_devices_are_found_by_their_drivers_names(name: str, teraflops: float) -> None:
    peak = peak_of(name)
    assert peak is not None
    assert peak.flops_per_second == teraflops * 1e12
    assert re.search(r"20\d\d", peak.source)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA L40",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
    ],
)
def test_a_slice_or_another_edition_gets_no_wrong_peak(name: str) -> None:
    assert peak_of(name) is None
