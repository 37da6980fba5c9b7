"""`dpbench doctor`: the machine, the versions, and whether each backend works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from dpbench import units
from dpbench.records.environment import Environment
from dpbench.report.answer import Answer
from dpbench.report.table import Table, text_column
from dpbench.requirements import PYTHON, TORCH, untried_torch, version_words


def machine_answer(here: Environment, backends: Mapping[str, Any]) -> Answer:
    """The machine, the versions, and whether each backend works; `backends` are dataclasses with a
    `text`."""
    lines = (
        *machine_lines(here),
        ("needs", f"Python {version_words(PYTHON)}, torch {version_words(TORCH)}, or later"),
        *(
            ("warning", f"torch {version} is {warning}")
            for name, version in here.versions
            if name == "torch" and (warning := untried_torch(version))
        ),
        *(("backend", f"{name}: {one.text}") for name, one in backends.items()),
    )
    return Answer(
        paragraphs=(machine_table(lines),),
        data={
            "environment": asdict(here),
            "backends": [asdict(one) for one in backends.values()],
        },
    )


def machine_table(lines: Iterable[tuple[str, str]]) -> Table:
    """Labels and texts as a table without headers."""
    labels, texts = zip(*lines, strict=True)
    return Table(
        caption="Environment",
        columns=(
            text_column("", labels, key="label"),
            text_column("", texts, key="text", folds=True),
        ),
    )


def machine_lines(here: Environment) -> Iterator[tuple[str, str]]:
    """Labels and texts: the system, its processors and GPUs, versions and variables."""
    yield "system", f"{here.system} {here.kernel}, Python {here.python}, {here.hostname}"
    memory = units.bytes_binary(here.memory_bytes)
    cores = f"{units.counted(here.cores, 'usable core')} ({here.affinity})"
    yield "cpu", f"{here.cpu}, {cores}, {memory}"
    if here.quota_cores is not None:
        yield "quota", f"{here.quota_cores:g} cores' worth of time (cgroup)"
    yield "governor", here.governor or "unknown: this machine does not show it, as usual in a VM"
    for gpu in here.accelerators:
        size = units.bytes_binary(gpu.memory_bytes)
        yield f"gpu {gpu.index}", f"{gpu.name}, {size}, {gpu.uuid or 'no uuid'}"
        if gpu.links:
            yield "", f"to each GPU: {' '.join(gpu.links)}"
    if not here.accelerators:
        build = f"CUDA {here.cuda}" if here.cuda else "a CPU build"
        yield "gpu", f"none visible (torch is {build})"
    if here.gpu_driver:
        yield "driver", f"NVIDIA {here.gpu_driver}"
    yield "versions", ", ".join(f"{name} {version}" for name, version in here.versions)
    for name, value in here.variables:
        yield "variable", f"{name}={value}"
    if here.git_commit is not None:
        yield "commit", here.git_commit
