"""`dpbench doctor`, `dpbench list` and `sweep --dry-run`: the machine, what can be measured on it,
and what would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, NamedTuple

from dpbench import units
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.environment import Environment
from dpbench.records.trial import Status
from dpbench.report.answer import Answer
from dpbench.report.table import MISSING, Column, Table
from dpbench.requirements import PYTHON, TORCH
from dpbench.specs import IDENTITY, Configuration, Labels
from dpbench.specs.nodes import on_nodes


class NameEntry(NamedTuple):
    """A name that commands take."""

    kind: str
    name: str
    reason: str | None
    """Why it cannot be used here; None if it can."""
    description: str


def names_answer(entries: Sequence[NameEntry]) -> Answer:
    """A row for each name if all are of one kind; else one for each kind, in which names that
    cannot be used here are in parentheses."""
    data = [entry._asdict() for entry in entries]
    if len({entry.kind for entry in entries}) == 1:
        described = (
            Column("Name", [entry.name for entry in entries], is_text=True),
            Column("Usable", ["no" if entry.reason else "yes" for entry in entries], is_text=True),
            Column("What", [e.reason or e.description for e in entries], is_text=True),
        )
        return Answer(paragraphs=(Table(columns=described),), data=data)
    names: dict[str, list[str]] = {}
    for entry in entries:
        name = entry.name if entry.reason is None else f"({entry.name})"
        names.setdefault(entry.kind, []).append(name)
    listed = (
        Column("Kind", [*names], is_text=True),
        Column("Names", [*map(", ".join, names.values())], is_text=True),
    )
    more = "(…): cannot be used here. dpbench list KIND has descriptions, options and reasons."
    return Answer(paragraphs=(Table(columns=listed), more), data=data)


def plan_answer(
    runs: Mapping[Configuration, int], reasons: Mapping[Configuration, str], summary: str
) -> Answer:
    """A row for each configuration of a sweep, with the number of its trials that are left, or the
    reason why it is skipped; people get reasons and the summary below it."""
    planned = [*runs]
    labels = Labels.among(runs)
    skipped = Counter(reasons[each] for each in planned if each in reasons)
    batches = [str(each.global_batch_size or MISSING) for each in planned]
    devices = [", ".join(each.devices) for each in planned]
    columns = (
        Column("Implementation", [*map(labels.implementation, planned)], is_text=True),
        Column("Backend", [each.backend for each in planned], is_text=True),
        Column("Size", [f"{each.group_size}{on_nodes(each.replicas_by_node)}" for each in planned]),
        Column("Batch", [str(each.batch_size or MISSING) for each in planned]),
        Column("Global batch", batches, importance=2),
        Column("Devices", devices, is_text=True, importance=1),
        Column("Runs", ["skip" if each in reasons else str(runs[each]) for each in planned]),
    )
    notes = [f"{units.counted(count, 'row')} skipped: {why}" for why, count in skipped.items()]
    return Answer(
        paragraphs=(Table(columns=columns), notes, summary),
        data=[
            {
                "label": labels.label(each),
                **{name: getattr(each, name) for name in IDENTITY},
                "global_batch_size": each.global_batch_size or None,
                "nodes": list(each.replicas_by_node),
                "devices": list(each.devices),
                "runs": runs[each],
                "reason": reasons.get(each),
            }
            for each in planned
        ],
    )


def doctor_answer(environment: Environment, tests: Sequence[CollectiveRecord]) -> Answer:
    """The machine, the versions, and whether each backend works, from an all-reduce on each."""
    lines = [
        *environment_lines(environment),
        ("needs", f"Python {PYTHON}, torch {TORCH}, or later"),
    ]
    backends: list[dict[str, Any]] = []
    for test in tests:
        is_skipped = test.status is Status.SKIPPED
        # The time of the slowest rank; None if the test did not complete.
        seconds = max((median(timings[0].seconds) for timings in test.ranks), default=None)
        if seconds is None:
            words = f"{'not usable' if is_skipped else 'failed'}: {test.reason}"
        else:
            ranks = units.counted(test.spec.group_size, "rank")
            took = units.seconds(seconds)
            words = f"works: 4 KiB all-reduce between {ranks} in {took} (median)"
        lines.append(("backend", f"{test.spec.backend}: {words}"))
        backends.append(
            {
                "backend": test.spec.backend,
                "passed": test.status is Status.COMPLETED,
                "ranks": 0 if is_skipped else test.spec.group_size,
                "seconds": seconds,
                "reason": test.reason,
            }
        )
    return Answer(
        paragraphs=(environment_table(lines),),
        data={"environment": asdict(environment), "backends": backends},
    )


def environment_table(lines: Iterable[tuple[str, str]]) -> Table:
    """Labels and texts as a table without headers."""
    labels, texts = zip(*lines, strict=True)
    return Table(columns=(Column("", labels, is_text=True), Column("", texts, is_text=True)))


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
    yield "versions", ", ".join(map(" ".join, environment.versions.items()))
    for name, value in environment.variables.items():
        yield "variable", f"{name}={value}"
    if environment.git_commit is not None:
        yield "commit", environment.git_commit
