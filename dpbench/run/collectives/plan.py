"""From the options of `dpbench comm` to what to measure, with every check, and measuring it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench import store, units
from dpbench.errors import Interrupted, UsageError
from dpbench.files import folder_inside
from dpbench.launch.machine import Machine
from dpbench.messages import say
from dpbench.records.collectives import COLLECTIVES, Collective, CollectiveRecord, CollectiveSpec
from dpbench.records.trial import Status
from dpbench.report.plan import Planned
from dpbench.report.progress.trials import reporter
from dpbench.run.collectives.options import CommOptions
from dpbench.run.interrupts import as_exceptions, end_at_once
from dpbench.run.this_machine import DeviceRequest, devices_for, doubling, here, threads_for
from dpbench.specs.settings import AUTO, Auto
from dpbench.specs.traits import DEFAULT_CAP_MB, DEFAULT_FIRST_CAP_MB, LOCAL_BACKENDS
from dpbench.store import LOGS_FOLDER, CollectiveStore, StoredCollectives
from dpbench.units import BYTE_UNITS, DTYPE_BYTES, KIBI, MEBI, bytes_exact
from dpbench.values import comma_list, known_name, positive_int, shorten

if TYPE_CHECKING:
    from dpbench.launch.collectives import CollectiveLauncher


FACTOR = 4
LARGEST = 2**40
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
    if not match or factor is None or not 0 < int(match[1]) * factor <= LARGEST:
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
    factor = positive_int(f"{option} {shorten(text)}, factor", factor_text) if by else FACTOR
    if smallest > largest:
        raise UsageError(f"{option} {shorten(text)}: the range falls; expected smallest-largest")
    if factor < 2:
        raise UsageError(f"{option} {shorten(text)}: expected a factor of at least 2, as in x4")
    sizes = [smallest]
    while sizes[-1] * factor < largest:
        sizes.append(sizes[-1] * factor)
    return tuple(dict.fromkeys((*sizes, largest)))


ELEMENT_BYTES = DTYPE_BYTES["float32"]
OVERLAP_SIZES = (
    64 * KIBI,
    *(int(cap_mb * MEBI) for cap_mb in (DEFAULT_FIRST_CAP_MB, DEFAULT_CAP_MB)),
)
"""A small message, the first bucket of DistributedDataParallel, and its others."""
BUCKET_SIZES = range(4 * 10**3, 10**8 + 1)
"""Buckets of gradients are hardly ever smaller or larger."""
OF_GRADIENTS: Collective = "all_reduce"
IN_PARTS = ("all_gather", "reduce_scatter")
"""Collectives of which each rank holds an equal part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedComm:
    """Options that are right in themselves; only the machine may still object."""

    options: CommOptions
    collectives: tuple[Collective, ...]
    sizes_bytes: tuple[int, ...]
    overlap_sizes_bytes: tuple[int, ...]
    bucket_sizes_bytes: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def devices(self) -> DeviceRequest:
        return DeviceRequest(
            gpus=self.options.gpus,
            sizes=self.options.group_sizes,
            threads=self.options.threads,
            oversubscribe=self.options.oversubscribe,
        )


def parse(options: CommOptions, notes: list[str]) -> ParsedComm:
    """Checks options against each other; raises UsageError. Looks at nothing but them."""
    sizes = parse_sizes("--sizes", options.sizes, multiple_of=ELEMENT_BYTES, notes=notes)
    collectives = _parse_collectives(options.collectives, notes)

    def special(option: str, text: str | Auto, otherwise: Sequence[int]) -> tuple[int, ...]:
        if text is AUTO:
            return tuple(otherwise)
        return _parse_special_sizes(option, text, sizes, collectives, notes)

    return ParsedComm(
        options=options,
        collectives=collectives,
        sizes_bytes=sizes,
        overlap_sizes_bytes=special(
            "--overlap-sizes",
            options.overlap_sizes,
            [size for size in OVERLAP_SIZES if sizes[0] <= size <= sizes[-1]],
        ),
        bucket_sizes_bytes=special(
            "--bucket-sizes",
            options.bucket_sizes,
            [size for size in sizes if size in BUCKET_SIZES],
        ),
        notes=tuple(notes),
    )


def build(parsed: ParsedComm, machine: Machine) -> tuple[CollectiveSpec, ...]:
    """What to measure on this machine, in this order: a palindrome over repetitions.

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
                spec = CollectiveSpec(
                    collective=collective,
                    backend=backend,
                    group_size=group_size,
                    devices=devices[:group_size],
                    sizes_bytes=_rounded_up(parsed.sizes_bytes, whole),
                    threads_per_replica=threads,
                    samples=parsed.options.samples,
                )
                if collective == OF_GRADIENTS:
                    spec = replace(
                        spec,
                        overlap_sizes_bytes=parsed.overlap_sizes_bytes,
                        exchange_sizes_bytes=parsed.bucket_sizes_bytes,
                    )
                yield spec


def _usable_backends(machine: Machine, devices: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        backend
        for backend in LOCAL_BACKENDS
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


def _parse_special_sizes(
    option: str,
    text: str,
    sizes: tuple[int, ...],
    collectives: tuple[Collective, ...],
    notes: list[str],
) -> tuple[int, ...]:
    """Sizes at which more is measured of the collective that reduces gradients; within `sizes`."""
    if text.strip() == "none":
        return ()
    if OF_GRADIENTS not in collectives:
        raise UsageError(
            f"{option} {text}: it is measured of {OF_GRADIENTS} only; add it to --collectives, or "
            f"leave {option} out"
        )
    if not any(character.isdigit() for character in text):
        raise UsageError(f"{option}: {shorten(text)}; expected sizes, as in 1MiB,25MiB, or none")
    special = parse_sizes(option, text, multiple_of=ELEMENT_BYTES, notes=notes)
    if outside := [size for size in special if not sizes[0] <= size <= sizes[-1]]:
        raise UsageError(
            f"{option}: {bytes_exact(outside[0])} is outside of --sizes, which go from "
            f"{bytes_exact(sizes[0])} to {bytes_exact(sizes[-1])}; widen --sizes, or leave it out"
        )
    return special


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One invocation of `dpbench comm`."""

    specs: tuple[CollectiveSpec, ...]
    folder: Path
    time_limit_seconds: float
    command: Sequence[str]
    """The command line after "dpbench"."""
    quiet: bool
    synthetic: bool


def measure_collectives(job: Job, machine: Machine) -> StoredCollectives:
    """Measures what is not stored yet.

    Raises Interrupted, with what was stored, when a signal ends it.
    """
    waiting = _waiting(job)
    with (
        _launcher_for(job, machine) as launcher,
        CollectiveStore.append_to(job.folder, job.command) as results,
        as_exceptions(),
    ):
        _measure(job, waiting, launcher, results, machine)
    return store.load_collectives(job.folder)


def plan_collectives(job: Job, machine: Machine) -> list[Planned[CollectiveSpec]]:
    """The planned measurements, one row per configuration by first run; skipped ones have a
    reason."""
    waiting = _waiting(job)
    with _launcher_for(job, machine) as launcher:
        store.check_place(job.folder)
        reasons = {
            spec: launcher.unusable_reason(spec)
            for spec in dict.fromkeys(spec.configuration for spec in waiting)
        }
    return [
        Planned(spec=spec, runs=sum(one.configuration == spec for one in waiting), reason=reason)
        for spec, reason in reasons.items()
    ]


def _waiting(job: Job) -> list[CollectiveSpec]:
    waiting = _missing(job.specs, _stored_records(job.folder))
    if len(waiting) < len(job.specs):
        stored = len(job.specs) - len(waiting)
        say(f"{stored} of {units.counted(len(job.specs), 'measurement')} are stored already")
    return waiting


def _measure(
    job: Job,
    waiting: Sequence[CollectiveSpec],
    launcher: CollectiveLauncher,
    results: CollectiveStore,
    machine: Machine,
) -> None:
    from dpbench.launch.collectives import run_collectives

    environment = here(machine, synthetic=job.synthetic)
    results.add_environment(environment)
    try:
        with reporter(quiet=job.quiet, noun="measurement") as progress:
            progress.planned(waiting)
            for record in run_collectives(
                waiting,
                launcher,
                environment_id=environment.environment_id,
                time_limit_seconds=job.time_limit_seconds,
                on_start=progress.started,
                on_second_try=lambda spec, why: say(f"{spec.label}: {why}; it is tried once more"),
            ):
                results.append(record)
                progress.finished(record)
    except (KeyboardInterrupt, Interrupted) as error:
        number = getattr(error, "signal_number", signal.SIGINT)
        left = len(_missing(job.specs, _stored_records(job.folder)))
        raise Interrupted(
            number,
            f"interrupted: {len(job.specs) - left} of "
            f"{units.counted(len(job.specs), 'measurement')} are stored in {job.folder}; "
            f"to finish: the same command with --name {job.folder.name}",
        ) from None


@contextmanager
def _launcher_for(job: Job, machine: Machine) -> Iterator[CollectiveLauncher]:
    end_at_once()
    if job.synthetic:
        from dpbench.launch.synthetic import SyntheticCollectives

        yield SyntheticCollectives()
        return
    from dpbench.launch.collectives import ElasticCollectives

    yield ElasticCollectives(machine, folder_inside(job.folder, LOGS_FOLDER))


def _stored_records(folder: Path) -> Sequence[CollectiveRecord]:
    return store.load_collectives(folder).records if store.holds_collectives(folder) else ()


def _missing(
    specs: Sequence[CollectiveSpec], records: Sequence[CollectiveRecord]
) -> list[CollectiveSpec]:
    """Measurements without a completed record: failed ones are measured again."""
    done = {
        record.collective.collective_id
        for record in records
        if record.status in (Status.COMPLETED, Status.SKIPPED)
    }
    return [spec for spec in specs if spec.collective_id not in done]


def exit_status(specs: Sequence[CollectiveSpec], records: Sequence[CollectiveRecord]) -> int:
    """1 if one of `specs` failed or none completed, else 0; of what ran twice the last run
    counts."""
    wanted = {spec.collective_id for spec in specs}
    ended = {record.collective.collective_id: record.status for record in records}
    statuses = {status for name, status in ended.items() if name in wanted}
    failed = statuses - {Status.COMPLETED, Status.SKIPPED}
    return 1 if failed or Status.COMPLETED not in statuses else 0
