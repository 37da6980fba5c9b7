"""The options of `dpbench comm`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

from dpbench.options.bridge import OptionInfo, with_help
from dpbench.options.shared import (
    BACKENDS,
    CHARTS,
    GROUP_SIZES,
    OUTPUT_PANEL,
    THREADS,
    Backend,
    FolderOptions,
    MachineOptions,
    Repetitions,
    json_option,
    name_option,
)
from dpbench.options.types import (
    Choice,
    CommaList,
    Count,
    Kind,
    WholeNumber,
    duration_of_at_least,
    split_commas,
)
from dpbench.records.collectives import COLLECTIVES
from dpbench.units import BYTE_UNITS, DTYPE_BYTES

MEASURED_PANEL = "What is measured"
SHORTEST_TIME_LIMIT_SECONDS = 1.0
"""Ranks take longer to start."""
ELEMENT_BYTES = DTYPE_BYTES["float32"]
RANGE_FACTOR = 4
LARGEST_BYTES = 2**40
_SIZE = re.compile(r"([0-9]{1,18})\s*([A-Za-z]+)")
_UNITS = {name.lower(): factor for name, factor in BYTE_UNITS.items()}


class Sizes(Kind):
    """Rising message sizes in bytes: a list, or a range, which holds both its ends."""

    schema = {"type": "string"}  # noqa: RUF012 - read only

    def parse(self, value: Any) -> tuple[int, ...]:
        text = value.strip() if isinstance(value, str) else value
        if isinstance(text, str) and "-" in text:
            return _range(text)
        return tuple(sorted({*map(_size, split_commas(text))}))

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
    first, _, rest = text.partition("-")
    last, by, factor_text = rest.partition("x")
    smallest, largest = _size(first), _size(last)
    factor = WholeNumber(least=2).parse(factor_text) if by else RANGE_FACTOR
    if smallest > largest or not isinstance(factor, int):
        raise ValueError("expected smallest-largest, as in 4B-256MB")
    sizes = [smallest]
    while sizes[-1] * factor < largest:
        sizes.append(sizes[-1] * factor)
    return tuple(dict.fromkeys((*sizes, largest)))


def _all(value: Any) -> Any:
    return COLLECTIVES if value == "all" else value


class CommOptions(FolderOptions, MachineOptions):
    """Every option of `dpbench comm`; None leaves it to dpbench."""

    collectives: Annotated[
        CommaList[Annotated[str, Choice(COLLECTIVES)]],
        BeforeValidator(_all),
        OptionInfo(
            "Collectives: all_reduce, broadcast, all_gather, reduce_scatter, or all.",
            "A,B",
            MEASURED_PANEL,
            also=("--collective",),
        ),
    ] = ("all_reduce",)
    backends: Annotated[
        CommaList[Backend] | None,
        OptionInfo(
            BACKENDS.help, "A,B", MEASURED_PANEL, also=BACKENDS.also, default="all that work here"
        ),
    ] = None
    group_sizes: Annotated[
        CommaList[Annotated[int, WholeNumber(least=2)]] | None,
        with_help(
            GROUP_SIZES,
            "Numbers of ranks to measure.",
            panel=MEASURED_PANEL,
            default="2, 4, 8, … up to --gpus",
        ),
    ] = None
    sizes: Annotated[
        tuple[int, ...],
        Sizes(),
        OptionInfo(
            "Message sizes: a range (each 4 times the previous) or a list; B, KB, MiB, ….",
            "FROM-TO|A,B",
            MEASURED_PANEL,
            default="4B-256MB",
        ),
    ] = _range("4B-256MB")
    samples: Annotated[
        Count,
        OptionInfo(
            "Timed samples of each size; large messages get fewer, at least 5.", "N", MEASURED_PANEL
        ),
    ] = 20
    repetitions: Annotated[
        Repetitions,
        OptionInfo(
            "Repetitions, each in fresh processes; an even number cancels drift.",
            "N",
            MEASURED_PANEL,
        ),
    ] = 4
    time_limit: Annotated[
        float,
        duration_of_at_least(SHORTEST_TIME_LIMIT_SECONDS),
        OptionInfo(
            "Time limit per collective, backend, group size and repetition.",
            "TIME",
            MEASURED_PANEL,
            default="5m",
        ),
    ] = 300.0
    threads: Annotated[Count | None, THREADS] = None
    name: Annotated[
        str | None,
        name_option(
            "Name of the results folder; adds to the folder of a sweep.",
            "the time and collectives",
        ),
    ] = None
    charts: Annotated[bool, CHARTS] = True
    dry_run: Annotated[
        bool, OptionInfo("Print what would be measured, and exit.", None, OUTPUT_PANEL)
    ] = False
    as_json: Annotated[
        bool, json_option("Print JSON on stdout, and everything else on stderr.")
    ] = False
