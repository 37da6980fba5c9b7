"""Shares of peaks, worked by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dpbench.analysis.frames import row_frame
from dpbench.analysis.resources import peak_items_per_second, peak_of
from dpbench.analysis.rows import summarize
from dpbench.records.trial import Status
from tests.analysis.builders import H100, machine, rank, record, runs, trial, window
from tests.builders import configuration


def test_the_part_of_the_peak_is_that_of_all_devices() -> None:
    """6.7 of 2 × 67 TFLOP/s; replicas that share a device share its peak."""
    spec = trial(group_size=2, devices=("cuda:0", "cuda:1"))
    repetitions = runs(spec, (100.0, 100.0), flops_per_item=6.7e10)
    (row,) = summarize(repetitions, environments={"e0": machine(H100, H100)})
    assert row_frame([row])[["mfu", "mfu_low"]].iloc[0].tolist() == pytest.approx([0.05] * 2)
    assert row.notes[0] == (
        "MFU: of 134.0 TFLOP/s in float32 without tensor cores, which convolutions in TF32 can "
        "exceed (NVIDIA H100 data sheet (SXM), 2023)"
    )
    shared = replace(spec, devices=("cuda:0",) * 2)
    peak, _ = peak_items_per_second(shared, 6.7e10, [machine(H100)])
    assert peak == pytest.approx(1000)


def test_a_device_that_is_not_in_the_table_has_no_mfu_and_a_reason() -> None:
    assert peak_items_per_second(configuration(), 6.7e10, [machine()]) == (None, "")
    on_gpu = configuration(group_size=1, devices=("cuda:0",))
    peak, note = peak_items_per_second(on_gpu, 6.7e10, [machine("Some GPU")])
    assert peak is None
    assert re.fullmatch(
        r"no MFU: the f32 peak of Some GPU is not in the table of \d{4}-\d\d-\d\d", note
    )


def test_a_count_holds_for_all_trials_of_its_workload() -> None:
    """One repetition of one configuration counted; the failed one beside it did not."""
    timed = [rank(0, window([0.1], 32))]
    ours, torch = (trial(name, devices=("cuda:0",)) for name in ("ddp", "torch-ddp"))
    counted = record(ours, timed, flops_per_item=6.7e9, repetition=1)
    rows = summarize(
        [record(ours, status=Status.FAILED), counted, record(torch, timed)],
        environments={counted.environment_ids[0]: machine(H100)},
    )
    assert row_frame(rows)["mfu"].notna().all()


def test_devices_are_found_by_their_drivers_names_and_slices_are_not() -> None:
    known = {"NVIDIA A100 80GB PCIe": 19.5, H100: 67.0, "AMD Instinct MI300X": 163.4}
    for name, teraflops in known.items():
        peak = peak_of(name)
        assert peak is not None
        assert peak[0] == teraflops * 1e12
        assert re.search(r"20\d\d", peak[1])
    for name in ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA L40", "NVIDIA H200 NVL"):
        assert peak_of(name) is None
