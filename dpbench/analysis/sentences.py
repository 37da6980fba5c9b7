"""Sentences about results, of two kinds: warnings, that numbers may be wrong or noisy, and notes on
what deserves a change or a second look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dpbench import units
from dpbench.analysis.diagnosis.explanation import slowest_of
from dpbench.analysis.formatting import percent, span
from dpbench.analysis.noise import (
    FREE_THE_MACHINE,
    MAX_ADVISED_REPETITIONS,
    MachineLoad,
    repetitions_advice,
    repetitions_to_state,
)
from dpbench.analysis.resources import KEEP_MEMORY, costly_page_faults, gpu_names
from dpbench.analysis.rows import Row, by_configuration
from dpbench.messages import one_line
from dpbench.records.environment import Environment, comparable_part
from dpbench.records.trial import INFINIBAND_UNUSED, Status, TrialRecord
from dpbench.specs import Labels

MAX_LISTED = 8
"""Configurations that a sentence names; the rest are counted and stand in the table."""


def warnings_on(rows: Sequence[Row], of_folder: Sequence[str], load: MachineLoad) -> Iterator[str]:
    """Warnings before a number of these rows is believed, the most important first."""
    if wrong := [row for row in rows if row.verified is False]:
        yield f"wrong gradients, so their speeds do not count: {labels_of(wrong, rows)}"
    yield from of_folder
    unchecked = [
        row
        for row in rows
        if row.throughput and row.verified is None
        if row.configuration and not row.configuration.workload.script
    ]
    if unchecked:
        yield f"gradients were not compared with one process: {labels_of(unchecked, rows)}"
    if load.spoils_speeds:
        loaded = [row for row in rows if row.is_under_load]
        yield f"{load.note}: {labels_of(loaded, rows)}" if loaded else load.note
    # Under load, slow first steps say nothing about warming up.
    warming = [(row, row.warm_up) for row in rows if row.warm_up and not row.is_under_load]
    if warming:
        longer = percent(max(slow.change for _, slow in warming))
        enough = max(row.sufficient_warmup or 0 for row, _ in warming)
        which = labels_of([row for row, _ in warming], rows)
        yield (
            f"still warming up: {which}; the first steps of a window take up to {longer} longer "
            f"than the rest; try --warmup {enough}"
        )


def environment_warnings(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> Iterator[str]:
    """The differences between the environments of the records, configurations whose replicas shared
    a core or a GPU, and memory that a CPU maps anew in every step."""
    yield from _oversubscribed(records, environments)
    rows = by_configuration(records).values()
    if counts := costly_page_faults(rows, environments):
        yield (
            f"up to {max(counts):,} page faults in each step, in {len(counts)} of "
            f"{units.counted(len(rows), 'row')}, make all times longer and less even, as glibc "
            f"returns freed memory: put {KEEP_MEMORY} before the command, and before your training"
        )
    used = dict.fromkeys(name for record in records for name in record.environment_ids)
    known = [environments[name] for name in used if name in environments]
    if (count := len({*map(comparable_part, used)})) > 1:
        differences = dict.fromkeys(d for e in known[1:] for d in e.differences_from(known[0]))
        listed = "; ".join(differences) or "one of them is not stored"
        yield f"trials ran in {count} environments: {listed}"
    commits = dict.fromkeys(environment.git_commit or "none" for environment in known)
    if len(commits) > 1:
        yield f"trials come from {len(commits)} git commits: {', '.join(commits)}"


def _oversubscribed(
    records: Sequence[TrialRecord], environments: Mapping[str, Environment]
) -> Iterator[str]:
    """One line for each resource that is oversubscribed; cores are those of one node."""
    labels = Labels.among(record.configuration for record in records)
    oversubscribed: dict[tuple[str, str], dict[str, int]] = {}
    for record in records:
        environment = next(map(environments.get, record.environment_ids), None)
        configuration = record.configuration
        if environment is None or not record.ranks:
            continue
        if configuration.devices[0] == "cpu":
            on_one_node = max(configuration.replicas_by_node, default=configuration.group_size)
            needed = on_one_node * configuration.threads
            there = environment.usable_cores
            resource = "threads", f"{there} cores"
        else:
            needed = configuration.group_size
            there = len({*configuration.node_devices})
            resource = "replicas", f"{there} GPUs"
        if needed > there:
            named = oversubscribed.setdefault(resource, {})
            named[labels.label(configuration)] = needed
    for (what, where), needs in oversubscribed.items():
        which = units.some_of([*needs], MAX_LISTED, "configuration")
        yield f"oversubscribed, {span([*needs.values()])} {what} on {where}: {which}"


def noise_warnings(chosen: Iterable[Row], rows: Iterable[Row], purpose: str) -> Iterator[str]:
    """One sentence on the `chosen` rows of a sweep that are too noisy for a purpose, such as
    "explain": from where to where their numbers go, and what to do about it; none without any."""
    noisy = [row for row in chosen if row.noisy_estimates]
    if noisy:
        ranges = [f"{row.label} ({_known_range(row)})" for row in noisy]
        which = units.some_of(ranges, MAX_LISTED, "configuration")
        yield f"too noisy to {purpose}: {which}; {_remedy(noisy, rows)}"


def _known_range(row: Row) -> str:
    """From where to where its speed goes, or its speedup where the speed is known."""
    if row.speedup and row.throughput not in row.noisy_estimates:
        return "speedup " + "–".join(f"{end:.2g}" for end in row.speedup.ends)
    return f"{span(map(round, row.throughputs.values()))} {one_line(row.item)}/s"


def _remedy(noisy: Sequence[Row], rows: Iterable[Row]) -> str:
    """What would make the numbers of some rows of a sweep less noisy."""
    if any(row.is_under_load for row in noisy):
        return FREE_THE_MACHINE
    now = len({repetition for row in noisy for repetition in row.throughputs})
    needed = repetitions_to_state(e for row in noisy for e in row.noisy_estimates)
    if needed is None:
        return f"more than {MAX_ADVISED_REPETITIONS} repetitions (now {now})"
    trials = [record for row in rows for record in row.usable_records]
    passes = 1 + max(record.repetition for record in trials)
    return repetitions_advice(needed, now, sum(r.duration_seconds for r in trials) / passes)


def notes_on(
    rows: Sequence[Row], environments: Mapping[str, Environment], load: MachineLoad
) -> Iterator[str]:
    """What deserves a change or a second look in these rows."""
    if load.note and not load.spoils_speeds:
        yield load.note
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        yield f"{labels_of([row for row in rows if note in row.notes], rows)}: {note}"
    yield from machine_notes(rows, environments)


def relative_to(rows: Sequence[Row]) -> str:
    """The reference of their speedups, in words."""
    references = dict.fromkeys(row.speedup_reference for row in rows)
    return f"relative to {' or '.join(references)}"


def reasons(rows: Sequence[Row]) -> Iterator[str]:
    """The full reason of every row that has one; equal reasons share a line."""
    ended = [row for row in rows if row.reason or row.status is Status.WRONG_GRADIENTS]
    for status, reason in dict.fromkeys((row.status, row.reason) for row in ended):
        same = [row for row in ended if (row.status, row.reason) == (status, reason)]
        yield f"{status.words}, {labels_of(same, rows)}{f': {reason}' if reason else ''}"


def machine_notes(rows: Sequence[Row], environments: Mapping[str, Environment]) -> Iterator[str]:
    """What deserves a change or a second look, and nothing that was done already: GPUs of different
    models, with the slowest rank's share; other processes on them; sockets where there is
    InfiniBand; and replicas that take different numbers of samples."""
    measured = [(row, row.usable_records[0].configuration) for row in rows if row.usable_records]
    for row, configuration in measured:
        devices = configuration.node_devices
        models = gpu_names(map(environments.get, row.usable_records[-1].environment_ids))
        names = dict.fromkeys(models[device] for device in devices if device in models)
        if len(names) > 1:
            which = "slowest"
            if (slowest := slowest_of(row.usable_records)) is not None:
                share = percent(slowest.behind.value)
                which = f"slowest, rank {slowest.rank} on {slowest.device}, for {share} of its step"
            listed = ", ".join(names)
            yield f"{row.label}: its GPUs differ ({listed}); all wait for the {which}"
        shared = dict[str, None]()
        for rank in row.ranks:
            # A process that drives all replicas is the only one of dpbench on its devices.
            is_only = configuration.process_count == 1
            own = 1 if is_only else devices.count(devices[rank.rank])
            if any(state.processes > own for state in rank.timed.gpu):
                shared[configuration.device_name(rank.rank)] = None
        if shared:
            used = ", ".join(shared)
            yield f"{row.label}: other processes use {used}; stop them and measure again"
        if any(INFINIBAND_UNUSED in rank.transports for rank in row.ranks):
            yield (
                f"{row.label}: NCCL sends through sockets, although there is InfiniBand; look at "
                "NCCL_IB_DISABLE, NCCL_IB_HCA and whether libibverbs is installed"
            )
    for sizes in dict.fromkeys(configuration.replica_batch_sizes for _, configuration in measured):
        counts = sorted(Counter(sizes).items(), reverse=True)
        if len(counts) > 1:
            shares = " and ".join(f"{n} take{'s' if n == 1 else ''} {size}" for size, n in counts)
            yield (
                f"of {len(sizes)} replicas, {shares} samples of a global batch of {sum(sizes)}: "
                "gradients are weighted by samples, but all replicas wait for the largest shard "
                f"({max(sizes) * len(sizes) / sum(sizes):.2f} × the mean)"
            )


def labels_of(some: Sequence[Row], rows: Sequence[Row]) -> str:
    """The labels of some rows of a table; "all rows" where it has no others."""
    if len(some) == len(rows) > 1:
        return "all rows"
    return units.some_of([row.label for row in some], MAX_LISTED, "configuration")
