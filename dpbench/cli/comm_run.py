"""What `dpbench comm` does once its options are right: run, store, report."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpbench import store, units
from dpbench.cli.comm_plan import OF_GRADIENTS
from dpbench.cli.interrupts import as_exceptions, end_at_once
from dpbench.cli.messages import say
from dpbench.cli.progress import reporter
from dpbench.cli.sizes import size_text
from dpbench.cli.this_machine import here
from dpbench.collectives import CollectiveRecord, CollectiveSpec
from dpbench.errors import Interrupted
from dpbench.files import folder_inside
from dpbench.launch.machine import Machine
from dpbench.records import Status
from dpbench.report.terminal import bullet
from dpbench.store import LOGS_FOLDER, CollectiveStore

if TYPE_CHECKING:
    from dpbench.launch.collectives import CollectiveLauncher

PLAN_HEADERS = ("Collective", "Backend", "Group", "Sizes", "Devices", "Runs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One invocation of `dpbench comm`."""

    specs: tuple[CollectiveSpec, ...]
    folder: Path
    time_limit_seconds: float
    charts: bool
    dry_run: bool
    as_json: bool
    quiet: bool
    synthetic: bool


def execute(job: Job, machine: Machine) -> int:
    """Runs the job and returns its exit status.

    Raises Interrupted, with what was stored, when a signal ends it.
    """
    waiting = _missing(job.specs, _stored_records(job.folder))
    if len(waiting) < len(job.specs):
        stored = len(job.specs) - len(waiting)
        say(f"{stored} of {units.counted(len(job.specs), 'measurement')} are stored already")
    with _launcher_for(job, machine) as launcher:
        if job.dry_run:
            store.check_place(job.folder)
            return _show_plan(job, waiting, launcher)
        with CollectiveStore.append_to(job.folder, sys.argv[1:]) as results, as_exceptions():
            _measure(job, waiting, launcher, results, machine)
    return _report(job)


def _measure(
    job: Job,
    waiting: Sequence[CollectiveSpec],
    launcher: CollectiveLauncher,
    results: CollectiveStore,
    machine: Machine,
) -> None:
    from dpbench.launch.collectives import run

    environment = here(machine, synthetic=job.synthetic)
    results.add_environment(environment)
    try:
        with reporter(quiet=job.quiet, noun="measurement") as progress:
            progress.planned(waiting)
            for record in run(
                waiting,
                launcher,
                environment_id=environment.environment_id,
                time_limit_seconds=job.time_limit_seconds,
                on_start=progress.started,
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
        from dpbench.launch.synthetic_collectives import SyntheticCollectives

        yield SyntheticCollectives()
        return
    from dpbench.launch.collectives import ElasticCollectives

    yield ElasticCollectives(machine, folder_inside(job.folder, LOGS_FOLDER))


def _stored_records(folder: Path) -> Sequence[CollectiveRecord]:
    return store.load_collectives(folder).records if store.holds_collectives(folder) else ()


def _missing(
    specs: Sequence[CollectiveSpec], records: Sequence[CollectiveRecord]
) -> list[CollectiveSpec]:
    """What has no completed record: what failed is measured again."""
    done = {
        record.collective.collective_id
        for record in records
        if record.status in (Status.COMPLETED, Status.SKIPPED)
    }
    return [spec for spec in specs if spec.collective_id not in done]


def _show_plan(job: Job, waiting: Sequence[CollectiveSpec], launcher: CollectiveLauncher) -> int:
    """Prints what would be measured in the order of its first run, and what will be skipped."""
    configurations = list(dict.fromkeys(spec.configuration for spec in waiting))
    rows = [
        {
            "collective": spec.collective,
            "backend": spec.backend,
            "group_size": spec.group_size,
            "sizes_bytes": list(spec.sizes_bytes),
            "overlap_sizes_bytes": list(spec.overlap_sizes_bytes),
            "bucket_sizes_bytes": list(spec.exchange_sizes_bytes),
            "devices": list(spec.devices),
            "runs": sum(one.configuration == spec for one in waiting),
            "reason": launcher.unusable_reason(spec),
        }
        for spec in configurations
    ]
    if job.as_json:
        print(json.dumps(rows, indent=1))
    elif rows:
        print(_table(rows))
        for line in _beside_the_table(rows):
            print(bullet(line))
    say(
        f"{units.counted(len(waiting), 'measurement')} in {job.folder}, "
        f"{units.seconds(job.time_limit_seconds)} each at most; nothing was stored"
    )
    return 0


def _table(rows: Sequence[dict[str, Any]]) -> str:
    from dpbench.report.table import text_table
    from dpbench.report.terminal import write_table

    cells = []
    for row in rows:
        sizes = _sizes(row["sizes_bytes"])
        runs = "skipped" if row["reason"] else f"{row['runs']:,}"
        devices = ", ".join(row["devices"])
        cells.append(
            [row["collective"], row["backend"], str(row["group_size"]), sizes, devices, runs]
        )
    words = ("Collective", "Backend", "Sizes", "Devices")
    return write_table(text_table(PLAN_HEADERS, cells, words=words))


def _beside_the_table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What else is measured of all-reduces, and why what is skipped is."""
    reduced = [row for row in rows if row["collective"] == OF_GRADIENTS]
    if reduced and (sizes := reduced[0]["overlap_sizes_bytes"]):
        yield f"{OF_GRADIENTS} also while the ranks compute: {', '.join(map(size_text, sizes))}"
    if reduced and (sizes := reduced[0]["bucket_sizes_bytes"]):
        yield f"{OF_GRADIENTS} also as a bucket of gradients in a step, {_sizes(sizes)}"
    for row in rows:
        if row["reason"]:
            yield f"{row['collective']} on {row['backend']} ×{row['group_size']}: {row['reason']}"


def _sizes(sizes: Sequence[int]) -> str:
    first, last = size_text(sizes[0]), size_text(sizes[-1])
    return first if len(sizes) == 1 else f"{len(sizes)} sizes, {first} to {last}"


def _report(job: Job) -> int:
    from dpbench.cli.collectives_report import show_collectives

    stored = store.load_collectives(job.folder)
    show_collectives(stored, as_json=job.as_json, charts=job.charts)
    say(f"records are in {job.folder}")
    wanted = {spec.collective_id for spec in job.specs}
    return exit_status([r for r in stored.records if r.collective.collective_id in wanted])


def exit_status(records: Sequence[CollectiveRecord]) -> int:
    """1 if something failed or nothing completed, else 0; of what ran twice the last run counts."""
    ended = {record.collective.collective_id: record.status for record in records}
    statuses = {*ended.values()}
    failed = statuses - {Status.COMPLETED, Status.SKIPPED}
    return 1 if failed or Status.COMPLETED not in statuses else 0
