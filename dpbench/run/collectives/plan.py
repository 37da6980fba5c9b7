"""Checks the options of `dpbench comm`, and builds the CollectiveSpecs to measure here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.messages import say
from dpbench.records.collectives import COLLECTIVES, Collective, CollectiveSpec
from dpbench.run.collectives.options import CommOptions
from dpbench.run.this_machine import DeviceRequest, devices_for, doubling, threads_for
from dpbench.specs.settings import AUTO
from dpbench.specs.traits import PROCESS_GROUP_BACKENDS
from dpbench.units import BYTE_UNITS, DTYPE_BYTES
from dpbench.values import comma_list, known_name, positive_int, shorten

RANGE_FACTOR = 4
LARGEST_BYTES = 2**40
_SIZE = re.compile(r"([0-9]{1,18})\s*([A-Za-z]*)")


def parse_size(option: str, token: str) -> int:
    """Bytes, from a whole number with its unit."""
    match = _SIZE.fullmatch(token.strip())
    if match and not match[2]:
        raise UsageError(
            f"{option}: {shorten(token)} has no unit; expected {match[1]}B or {match[1]}MB"
        )
    units = {name.lower(): factor for name, factor in BYTE_UNITS.items()}
    factor = match and units.get(match[2].lower())
    if not match or factor is None or not 0 < int(match[1]) * factor <= LARGEST_BYTES:
        raise UsageError(
            f"{option}: {shorten(token)} is not a size; expected a whole number up to 1 TiB with "
            f"one of {', '.join(BYTE_UNITS)}, as in 25MiB"
        )
    return int(match[1]) * factor


def parse_sizes(option: str, text: str, *, multiple_of: int, notes: list[str]) -> tuple[int, ...]:
    """Rising sizes: those of a list, or of a range, which holds both its ends.

    Raises UsageError for a size that is no multiple of `multiple_of`, the bytes of an element.
    """
    sizes = _range(option, text) if "-" in text else comma_list(option, text, parse_size, notes)
    for size in sizes:
        if size % multiple_of:
            raise UsageError(
                f"{option} {shorten(text)}: {size} B are not whole elements; "
                f"expected multiples of {multiple_of} B"
            )
    return tuple(sorted(sizes))


def _range(option: str, text: str) -> tuple[int, ...]:
    first, _, rest = text.partition("-")
    last, by, factor_text = rest.partition("x")
    if not (first.strip() and last.strip()):
        raise UsageError(f"{option} {shorten(text)}: expected smallest-largest, as in 4B-256MB")
    smallest, largest = parse_size(option, first), parse_size(option, last)
    factor = positive_int(f"{option} {shorten(text)}, factor", factor_text) if by else RANGE_FACTOR
    if smallest > largest:
        raise UsageError(f"{option} {shorten(text)}: the range falls; expected smallest-largest")
    if factor < 2:
        raise UsageError(f"{option} {shorten(text)}: expected a factor of at least 2, as in x4")
    sizes = [smallest]
    while sizes[-1] * factor < largest:
        sizes.append(sizes[-1] * factor)
    return tuple(dict.fromkeys((*sizes, largest)))


ELEMENT_BYTES = DTYPE_BYTES["float32"]
IN_PARTS = ("all_gather", "reduce_scatter")
"""Collectives of which each rank holds an equal part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedComm:
    """Options checked against each other; the machine may still object."""

    options: CommOptions
    collectives: tuple[Collective, ...]
    sizes_bytes: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def devices(self) -> DeviceRequest:
        return DeviceRequest(
            gpus=self.options.gpus,
            sizes=self.options.group_sizes,
            threads=self.options.threads,
            oversubscribe=self.options.oversubscribe,
        )


def parse_comm_options(options: CommOptions, notes: list[str]) -> ParsedComm:
    """Checks options against each other; raises UsageError. Looks at nothing but them."""
    sizes = parse_sizes("--sizes", options.sizes, multiple_of=ELEMENT_BYTES, notes=notes)
    collectives = _parse_collectives(options.collectives, notes)

    return ParsedComm(
        options=options,
        collectives=collectives,
        sizes_bytes=sizes,
        notes=tuple(notes),
    )


def build_collective_specs(parsed: ParsedComm, machine: Machine) -> tuple[CollectiveSpec, ...]:
    """The measurements for this machine in their order: a palindrome over repetitions.

    A drift of the machine then falls on all alike, and the backends of one collective, which are
    compared most often, lie closest together. Says the notes that the user must see.
    """
    notes = list(parsed.notes)
    devices = devices_for(parsed.devices, machine, notes)
    sizes = parsed.options.group_sizes
    several = tuple(size for size in doubling(len(devices)) if size > 1)
    group_sizes = several if sizes is AUTO else sizes
    if not group_sizes:
        asked = "this machine" if parsed.options.gpus is AUTO else parsed.devices.asked
        raise UsageError(
            f"a collective takes at least 2 ranks, and {asked} means 1; expected more, "
            "with --oversubscribe where there is one core or GPU"
        )
    say(*notes)
    threads = threads_for(parsed.devices, machine, max(group_sizes))
    first_pass = list(_configurations(parsed, machine, devices, group_sizes, threads))
    return tuple(
        replace(spec, repetition=repetition)
        for repetition in range(parsed.options.repetitions)
        for spec in (first_pass if repetition % 2 == 0 else reversed(first_pass))
    )


def _configurations(
    parsed: ParsedComm,
    machine: Machine,
    devices: tuple[str, ...],
    group_sizes: tuple[int, ...],
    threads: int,
) -> Iterator[CollectiveSpec]:
    for group_size in group_sizes:
        for collective in parsed.collectives:
            backends = parsed.options.backends
            if backends is AUTO:
                backends = _usable_backends(machine, devices[:group_size])
            for backend in backends:
                whole = ELEMENT_BYTES * (group_size if collective in IN_PARTS else 1)
                yield CollectiveSpec(
                    collective=collective,
                    backend=backend,
                    group_size=group_size,
                    devices=devices[:group_size],
                    sizes_bytes=_rounded_up(parsed.sizes_bytes, whole),
                    threads_per_replica=threads,
                    samples=parsed.options.samples,
                )


def _usable_backends(machine: Machine, devices: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        backend
        for backend in PROCESS_GROUP_BACKENDS
        if machine.unusable_backend_reason(backend, devices) is None
    )


def _rounded_up(sizes: tuple[int, ...], multiple: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(-(-size // multiple) * multiple for size in sizes))


def _parse_collectives(text: str, notes: list[str]) -> tuple[Collective, ...]:
    if text.strip() == "all":
        return COLLECTIVES

    def collective(option: str, token: str) -> Collective:
        if token.strip() == "all":
            raise UsageError(f"{option} {text}: all stands alone; expected {option} all")
        name = known_name(option, token, COLLECTIVES)
        return next(known for known in COLLECTIVES if known == name)

    return comma_list("--collectives", text, collective, notes)
