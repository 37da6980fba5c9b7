"""The options of `dpbench comm`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from dpbench.options.bridge import Options, option
from dpbench.options.shared import (
    BACKENDS_HELP,
    Backend,
    FolderOptions,
    GpuOptions,
    MachineOptions,
    Repetitions,
    charts_option,
    json_option,
    name_option,
)
from dpbench.options.types import (
    Choice,
    CommaList,
    Count,
    Duration,
    Kind,
    WholeNumber,
    split_commas,
)
from dpbench.records.collectives import COLLECTIVES
from dpbench.units import BYTE_UNITS, DTYPE_BYTES

ELEMENT_BYTES = DTYPE_BYTES["float32"]
RANGE_FACTOR = 4
LARGEST_BYTES = 2**40
_SIZE = re.compile(r"([0-9]{1,18})\s*([A-Za-z]+)")
_UNITS = {name.lower(): factor for name, factor in BYTE_UNITS.items()}


class Sizes(Kind):
    """Rising message sizes in bytes: a list, or a range, which holds both its ends."""

    def parse(self, value: Any) -> tuple[int, ...]:
        if isinstance(value, str) and "-" in value:
            return _range(value.strip())
        return tuple(sorted({*map(_size, split_commas(value))}))

    def dump(self, value: Any) -> Any:
        return ",".join(f"{size}B" for size in value)


def _size(token: Any) -> int:
    """Bytes, from a whole number with its unit."""
    match = _SIZE.fullmatch(str(token).strip())
    size = int(match[1]) * _UNITS.get(match[2].lower(), 0) if match else 0
    if not 0 < size <= LARGEST_BYTES or size % ELEMENT_BYTES:
        raise ValueError(
            f"{token}: expected a multiple of {ELEMENT_BYTES} B up to 1 TiB, with one of "
            f"{', '.join(BYTE_UNITS)}, as in 25MiB"
        )
    return size


def _range(text: str) -> tuple[int, ...]:
    first, _, last = text.partition("-")
    smallest, largest = _size(first), _size(last)
    if smallest > largest:
        raise ValueError("expected smallest-largest, as in 4B-256MB")
    sizes = [smallest]
    while sizes[-1] * RANGE_FACTOR < largest:
        sizes.append(sizes[-1] * RANGE_FACTOR)
    return tuple(dict.fromkeys((*sizes, largest)))


class MeasuredOptions(Options):
    """What is measured."""

    collectives: Annotated[
        CommaList[Annotated[str, Choice(COLLECTIVES)]],
        BeforeValidator(lambda value: COLLECTIVES if value == "all" else value),
    ] = option(
        ("all_reduce",),
        "Collectives: all_reduce, broadcast, all_gather, reduce_scatter, or all.",
        "A,B",
        also=("--collective",),
    )
    backends: CommaList[Backend] | None = option(
        None,
        BACKENDS_HELP,
        "A,B",
        also=("--backend", "--sync-backend"),
        usual="all that work here",
    )
    group_sizes: CommaList[Annotated[int, WholeNumber(least=2)]] | None = option(
        None,
        "Numbers of ranks to measure.",
        "N,N",
        also=("--group-size",),
        usual="2, 4, 8, … up to --gpus",
    )
    sizes: Annotated[tuple[int, ...], Sizes()] = option(
        _range("4B-256MB"),
        "Message sizes: a range (each 4 times the previous) or a list; B, KB, MiB, ….",
        "FROM-TO|A,B",
        usual="4B-256MB",
    )
    samples: Count = option(
        20, "Timed samples per size; large messages get fewer, at least 5.", "N"
    )
    repetitions: Repetitions = option(
        4, "Repetitions, each in fresh processes; an even number cancels drift.", "N"
    )
    time_limit: Duration = option(
        300.0,
        "Time limit per collective, backend, group size and repetition.",
        "TIME",
        usual="5m",
    )


class CommOptions(FolderOptions, MachineOptions, MeasuredOptions, GpuOptions):
    """Every option of `dpbench comm`; None leaves it to dpbench."""

    name: str | None = name_option("Name of the results folder.", "the time and collectives")
    charts: bool = charts_option()
    as_json: bool = json_option()
