"""The options of `dpbench comm`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from dpbench.options.bridge import option
from dpbench.options.shared import (
    GROUP_NAMES,
    HELP,
    Backend,
    MeasuringOptions,
    Repetitions,
    charts_option,
    gpus_option,
    json_option,
    name_option,
)
from dpbench.options.types import MOST, CommaList, Count, Duration, Gpus, one_of, split_commas
from dpbench.records.collectives import COLLECTIVES
from dpbench.units import BYTE_UNITS

ELEMENT_BYTES = 4  # of float32
RANGE_FACTOR = 4
LARGEST_BYTES = 2**40
_SIZE = re.compile(r"([0-9]{1,18})\s*([A-Za-z]+)")
_UNITS = {name.lower(): factor for name, factor in BYTE_UNITS.items()}


def _sizes(value: Any) -> tuple[int, ...]:
    """Rising message sizes in bytes: a list, or a range, which holds both its ends."""
    if not isinstance(value, str) or "-" not in value:
        return tuple(sorted({*map(_size, split_commas(value))}))
    smallest, largest = map(_size, value.split("-", 1))
    if smallest > largest:
        raise ValueError("expected smallest-largest, as in 4B-256MB")
    sizes = [smallest]
    while sizes[-1] * RANGE_FACTOR < largest:
        sizes.append(sizes[-1] * RANGE_FACTOR)
    return tuple(dict.fromkeys((*sizes, largest)))


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


Sizes = Annotated[
    tuple[int, ...],
    BeforeValidator(_sizes),
    PlainSerializer(lambda sizes: [f"{size}B" for size in sizes], when_used="json"),
]


class CommOptions(MeasuringOptions):
    """Every option of `dpbench comm`; None leaves it to dpbench."""

    gpus: Gpus | None = gpus_option()
    collectives: Annotated[
        CommaList[Annotated[str, one_of(COLLECTIVES)]],
        BeforeValidator(lambda value: list(COLLECTIVES) if value == "all" else value),
    ] = option(
        ("all_reduce",),
        "Collectives: all_reduce, broadcast, all_gather, reduce_scatter, or all.",
        "A,B",
        names=("--collectives", "--collective"),
    )
    backends: CommaList[Backend] | None = option(
        None, HELP["backends"], "A,B", names=("--backends", "--backend"), usual="all that work here"
    )
    group_sizes: CommaList[Annotated[int, Field(ge=2, le=MOST)]] | None = option(
        None,
        "Numbers of ranks to measure.",
        "N,N",
        names=GROUP_NAMES,
        usual="2, 4, 8, … up to --gpus",
    )
    sizes: Sizes = option(
        _sizes("4B-256MB"),
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
        300.0, "Time limit per collective, backend, group size and repetition.", "TIME", usual="5m"
    )
    name: str | None = name_option("Name of the results folder.", "the time and collectives")
    charts: bool = charts_option()
    as_json: bool = json_option()
