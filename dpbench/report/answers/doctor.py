"""`dpbench doctor`: the machine, the versions, and whether each backend works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from statistics import median

from dpbench import units
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import Status
from dpbench.report.answer import Answer
from dpbench.report.table import Table, text_column
from dpbench.requirements import PYTHON, TORCH


def doctor_answer(environment: Environment, tests: Sequence[CollectiveRecord]) -> Answer:
    """The machine, the versions, and whether each backend works, from an all-reduce on each."""
    lines = (
        *environment_lines(environment),
        ("needs", f"Python {PYTHON}, torch {TORCH}, or later"),
        *(("backend", f"{test.spec.backend}: {self_test_words(test)}") for test in tests),
    )
    return Answer(
        paragraphs=(environment_table(lines),),
        data={
            "environment": asdict(environment),
            "backends": [
                {
                    "backend": test.spec.backend,
                    "passed": test.status is Status.COMPLETED,
                    "ranks": test.spec.group_size if test.status is not Status.SKIPPED else 0,
                    "seconds": median_seconds(test),
                    "reason": test.reason,
                }
                for test in tests
            ],
        },
    )


def self_test_words(test: CollectiveRecord) -> str:
    """Whether the backend works, in words."""
    seconds = median_seconds(test)
    if seconds is None:
        return f"{'not usable' if test.status is Status.SKIPPED else 'failed'}: {test.reason}"
    ranks = units.counted(test.spec.group_size, "rank")
    return f"works: 4 KiB all-reduce between {ranks} in {units.seconds(seconds)} (median)"


def median_seconds(test: CollectiveRecord) -> float | None:
    """The time of the slowest rank; None if the test did not complete."""
    return max((median(timings[0].seconds) for timings in test.ranks), default=None)


def environment_table(lines: Iterable[tuple[str, str]]) -> Table:
    """Labels and texts as a table without headers."""
    labels, texts = zip(*lines, strict=True)
    return Table(
        columns=(
            text_column("", labels, key="label"),
            text_column("", texts, key="text", folds=True),
        ),
    )


def environment_lines(environment: Environment) -> Iterator[tuple[str, str]]:
    """Labels and texts: the system, its processors and GPUs, versions and variables."""
    system = f"{environment.system} {environment.kernel}"
    yield "system", f"{system}, Python {environment.python}, {environment.hostname}"
    memory = units.bytes_binary(environment.memory_bytes)
    cores = f"{units.counted(environment.cores, 'usable core')} ({environment.affinity})"
    yield "cpu", f"{environment.cpu}, {cores}, {memory}"
    if environment.quota_cores is not None:
        yield "quota", f"{environment.quota_cores:g} cores' worth of time (cgroup)"
    unknown = "unknown: this machine does not show it, as usual in a VM"
    yield "governor", environment.governor or unknown
    for gpu in environment.accelerators:
        size = units.bytes_binary(gpu.memory_bytes)
        yield f"gpu {gpu.index}", f"{gpu.name}, {size}, {gpu.uuid or 'no uuid'}"
        if gpu.links:
            yield "", f"to each GPU: {' '.join(gpu.links)}"
    if not environment.accelerators:
        build = f"CUDA {environment.cuda}" if environment.cuda else "a CPU build"
        yield "gpu", f"none visible (torch is {build})"
    if environment.gpu_driver:
        yield "driver", f"NVIDIA {environment.gpu_driver}"
    yield (
        "versions",
        ", ".join(map(" ".join, environment.versions.items())),
    )
    for name, value in environment.variables.items():
        yield "variable", f"{name}={value}"
    if environment.git_commit is not None:
        yield "commit", environment.git_commit
