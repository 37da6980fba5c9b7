"""Logs of Horovod's synthetic benchmarks, as pytorch_synthetic_benchmark.py prints them.

    Model: resnet50
    Batch size: 32
    Number of GPUs: 4
    Iter #0: 252.1 img/sec per GPU
    …
    Img/sec per GPU: 252.5 +-1.3
    Total img/sec on 4 GPU(s): 1010.0 +-5.2

The total is the speed of rank 0 times the number of ranks. The number after +- is 1.96 standard
deviations of the iterations: their spread, not the uncertainty of their mean. So it is no interval
of the speed; that is computed here from the iterations, if the log has them. A file may hold
several runs; equal ones are repetitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path

from dpbench.analysis.estimate import LogMean
from dpbench.analysis.imported.lines import LogLine, read_lines
from dpbench.analysis.published import PublishedSpeed
from dpbench.errors import StoreError

NAME = "horovod"
ITEM = "images"
_MODEL = re.compile(r"Model: ([\w.+/-]{1,40})", re.ASCII)
_BATCH = re.compile(r"Batch size: (\S+)")
_DEVICES = re.compile(r"Number of (\w+)s: (\S+)")
_ITERATION = re.compile(r"Iter #([0-9]+): (\S+) img/sec per (\w+)")
_PER_DEVICE = re.compile(r"Img/sec per (\w+): (\S+) \+-(\S+)")
_TOTAL = re.compile(r"Total img/sec on (\S+) (\w+)\(s\): (\S+) \+-(\S+)")
ROUNDING = 0.05
"""Rounding of speeds, which are printed with one decimal."""


@dataclass(slots=True)
class _Run:
    """The data of a run read so far; a total ends it."""

    first: LogLine
    model: str | None = None
    batch_size: int | None = None
    group_size: int | None = None
    iterations: list[float] = field(default_factory=list)
    per_device: float | None = None
    total: float | None = None


def read_horovod(path: Path) -> tuple[PublishedSpeed, ...]:
    """The speeds of a log; raises StoreError that names the line."""
    runs = list(_runs(path))
    if not runs:
        raise StoreError(
            f"{path}: no line 'Total img/sec on N GPU(s): …' in it, as Horovod's synthetic "
            "benchmarks print at their end"
        )
    groups: dict[tuple[int, int | None], list[_Run]] = {}
    for run in runs:
        if run.model != runs[0].model:
            raise run.first.error(
                f"runs of one model in a file, here {runs[0].model}; import each model from its own"
            )
        assert run.group_size is not None
        groups.setdefault((run.group_size, run.batch_size), []).append(run)
    for group in groups.values():
        _check_differ(group)
    return tuple(_speed(group) for group in groups.values())


def _check_differ(runs: list[_Run]) -> None:
    """Refuse equal runs: one that was pasted twice would look like two that agree."""
    seen: dict[tuple[float, ...], LogLine] = {}
    for run in runs:
        if run.iterations:
            key = (run.total or 0.0, *run.iterations)
            if (first := seen.setdefault(key, run.first)) is not run.first:
                raise run.first.error(
                    f"another run than the one from line {first.number} on, whose speeds are all "
                    "the same"
                )


def _runs(path: Path) -> Iterable[_Run]:
    run: _Run | None = None
    for line in read_lines(path):
        if run is None:
            run = _Run(line)
        _take(line, run)
        if run.total is not None:
            yield run
            run = None
    if run is not None and (run.iterations or run.per_device is not None):
        raise StoreError(
            f"{path}, line {run.first.number}: the run that starts here has no line "
            "'Total img/sec on …': it was cut short; take it out of the file"
        )


def _take(line: LogLine, run: _Run) -> None:
    """Read a line; lines of other libraries are ignored."""
    if found := _MODEL.fullmatch(line.text):
        run.model, run.first = found[1], line
    elif found := _BATCH.fullmatch(line.text):
        run.batch_size = line.whole(found[1], "the batch size")
    elif found := _DEVICES.fullmatch(line.text):
        run.group_size = line.whole(found[2], f"the number of {found[1]}s")
    elif found := _ITERATION.fullmatch(line.text):
        if int(found[1]) != len(run.iterations):
            raise line.error(f"iteration #{len(run.iterations)}")
        run.iterations.append(line.positive(found[2], "the speed"))
    elif found := _PER_DEVICE.fullmatch(line.text):
        run.per_device = line.positive(found[2], "the speed")
        _check_mean(line, run)
    elif found := _TOTAL.fullmatch(line.text):
        _take_total(line, run, found)


def _check_mean(line: LogLine, run: _Run) -> None:
    if run.iterations and run.per_device is not None:
        mean = fsum(run.iterations) / len(run.iterations)
        if abs(mean - run.per_device) > 2 * ROUNDING:
            raise line.error(f"the mean of the {len(run.iterations)} iterations, {mean:.1f}")


def _take_total(line: LogLine, run: _Run, found: re.Match[str]) -> None:
    count = line.whole(found[1], "the number of ranks")
    if run.group_size not in (None, count):
        raise line.error(f"the total of {run.group_size}")
    total = line.positive(found[3], "the speed")
    if run.per_device is not None:
        whole = count * run.per_device
        if abs(whole - total) > ROUNDING * (count + 1):
            raise line.error(f"{count} times the speed of one, {whole:.1f}")
    run.group_size, run.total = count, total


def _speed(runs: list[_Run]) -> PublishedSpeed:
    """The speed of equal runs: for one run with the spread of its iterations, for several with that
    between them."""
    first = runs[0]
    assert first.group_size is not None
    totals = [run.total for run in runs if run.total is not None]
    notes: tuple[str, ...] = ()
    if len(totals) > 1:
        speed = LogMean.of_runs(totals)
    elif len(first.iterations) > 1:
        speed = LogMean.of_batches(totals[0], first.iterations)
    else:
        speed = LogMean.of_single(totals[0])
        notes = ("+- in the log is the spread of its iterations, no interval of their mean",)
    model = f" of {first.model}" if first.model else ""
    return PublishedSpeed(
        implementation=NAME,
        backend=None,
        group_size=first.group_size,
        batch_size=first.batch_size,
        item=ITEM,
        speed=speed,
        source=f"Horovod's synthetic benchmark{model}, the speed of rank 0 times the ranks",
        notes=notes,
    )
