"""Measurements of collectives on this node, each in fresh processes of its own, and the self-test
of a backend by the smallest of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dpbench.launch.failures import RanksFailed
from dpbench.launch.machine import Machine
from dpbench.launch.ranks import run_ranks, scratch_folder
from dpbench.measure.collective_operation import measure_collective
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import Status
from dpbench.specs.collective import CollectiveSpec
from dpbench.specs.traits import BACKENDS
from dpbench.temporary import temporary_folder

SELF_TEST_SECONDS = 60.0
"""Time limit of a self-test, which takes a second or two unless the machine is busy."""


def run_collective(
    spec: CollectiveSpec, *, time_limit_seconds: float, logs: Path
) -> CollectiveRecord:
    """Run the measurement in separate processes, and leave none behind; see `recorded` for what its
    record lacks. A failure never raises; it leaves the ranks' output in `logs`."""
    call = partial(measure_collective, spec)
    try:
        with scratch_folder(logs, spec.label) as scratch:
            ranks = run_ranks(call, spec.group_size, scratch, time_limit_seconds)
    except RanksFailed as failed:
        return CollectiveRecord(spec=spec, **failed.outcome)
    return CollectiveRecord(spec=spec, status=Status.COMPLETED, ranks=tuple(ranks))


def self_test(backend: str, machine: Machine) -> CollectiveRecord:
    """Run the smallest all-reduce of the backend between two ranks (on one GPU, with NCCL: a single
    rank); skipped where the backend cannot be used."""
    gpus = machine.gpus[:2] if BACKENDS[backend].cuda_only else ()
    devices = tuple(f"cuda:{gpu.index}" for gpu in gpus) or ("cpu", "cpu")
    spec = CollectiveSpec(
        collective="all_reduce",
        backend=backend,
        group_size=len(devices),
        devices=devices,
        sizes_bytes=(4096,),
        threads=1,
    )
    if reason := machine.missing_backends.get(backend):
        return CollectiveRecord(spec=spec, status=Status.SKIPPED, reason=reason)
    with temporary_folder() as logs:
        return run_collective(spec, time_limit_seconds=SELF_TEST_SECONDS, logs=logs)
