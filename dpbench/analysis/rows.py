"""Rows of results: the repetitions of a configuration, or a line of a published table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dpbench import units
from dpbench.analysis.change import Change, PerRepetition, change_between
from dpbench.analysis.estimate import Estimate, geometric_mean, single_value
from dpbench.analysis.noise import is_under_load
from dpbench.analysis.published import PublishedLine, read_lines
from dpbench.analysis.resources import peak_items_per_second
from dpbench.analysis.scaling import OWN_ONE_REPLICA, UNITY
from dpbench.analysis.throughput import (
    WarmUp,
    is_measured,
    items_per_second,
    slowest_of_each_step,
    warm_up,
)
from dpbench.records.environment import Environment
from dpbench.records.trial import RankMeasurement, Status, TrialRecord
from dpbench.specs import IDENTITY, Configuration, Labels, plain_label, row_name, series_name
from dpbench.specs.traits import IMPLEMENTATIONS, SINGLE

NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
WORST_FIRST = (
    Status.WRONG_GRADIENTS,
    Status.FAILED,
    Status.OUT_OF_MEMORY,
    Status.TIMED_OUT,
    Status.DIVERGED,
    Status.COMPLETED,
    Status.SKIPPED,
)


@dataclass(frozen=True, kw_only=True, eq=False)  # without slots, for cached values
class Row:
    """One configuration: its settings, how its trials ended, and its speed, also over others."""

    implementation: str
    """The name as it is registered or published."""
    backend: str | None
    group_size: int
    batch_size: int | None
    """Samples per replica (weak scaling) or per group (strong scaling) and micro-step."""
    implementation_label: str
    """The implementation as people read it, with settings: "ddp(bf16)"."""
    item: str
    """The items that its speed counts: images, tokens."""
    work: str = ""
    """Speeds of rows are compared only where it is the same: see `Labels.work_label`; in published
    tables that count several items, the item."""
    configuration: Configuration | None = None
    """All settings that its repetitions share; None if it is published."""
    published: PublishedLine | None = None
    """The line of a published table that states it; None if dpbench measured it."""
    records: tuple[TrialRecord, ...] = ()
    """All repetitions; none if it is published."""
    throughputs: PerRepetition
    """Items per second in each usable repetition; of a published time of a fixed amount of work,
    such amounts per second."""
    mfu: Estimate | None = None
    """Throughput ÷ that at the peak of its GPUs, if that is known."""
    speedup: Estimate | None = None
    """How many times as fast it is as its reference."""
    speedup_relative: Estimate | None = None
    """The speedup over its own group size 1."""
    reference: Row | None = None
    """The other row that its speedup is over, if there is one."""
    notes: tuple[str, ...] = ()
    """Notes on its values."""

    @property
    def replicas_by_node(self) -> tuple[int, ...]:
        """Number of replicas on each node; () if all are on one."""
        return self.configuration.replicas_by_node if self.configuration else ()

    @property
    def status(self) -> Status:
        return worst_status(self.records)[0]

    @property
    def reason(self) -> str | None:
        """Why the trials did not all complete."""
        return worst_status(self.records)[1]

    @property
    def repetitions(self) -> int:
        """Number of completed repetitions."""
        if self.published:
            return 1
        return sum(record.status is Status.COMPLETED for record in self.records)

    @property
    def verified(self) -> bool | None:
        """Whether gradients were compared with one process and agreed; None if never compared."""
        if any(record.status is Status.WRONG_GRADIENTS for record in self.records):
            return False
        return any(record.facts.verification for record in self.records) or None

    @cached_property
    def usable_records(self) -> tuple[TrialRecord, ...]:
        """The records of usable repetitions."""
        return usable_records(self.records)

    @cached_property
    def throughput(self) -> Estimate | None:
        """Items per second of all replicas."""
        if not self.throughputs or (self.published and not self.published.items_per_second):
            return None
        return geometric_mean([*self.throughputs.values()], f"{self.item}/s")

    @property
    def efficiency(self) -> Estimate | None:
        """Speedup ÷ group size."""
        return self.speedup and self.speedup.scaled(1 / self.group_size, unit="of linear")

    @property
    def is_above_linear(self) -> bool:
        """Whether its efficiency is above 100 % as it is written."""
        return self.efficiency is not None and self.efficiency.value >= 1.005

    def speedup_over(self, other: Row | None) -> Estimate | None:
        """How many times as fast it is as another row, within each repetition if they ran in turn;
        1 over itself. None if one of them has no speed."""
        if other is None:
            return None
        if other is self:
            return UNITY if self.throughputs else None
        change = self.change_from(other)
        return change.estimate if change else None

    def change_from(self, other: Row) -> Change | None:
        """The throughput over that of another row. Both ran in turn if they have the same
        repetitions, passes of the palindrome."""
        ran_in_turn = self.throughputs.keys() == other.throughputs.keys()
        return change_between(other.throughputs, self.throughputs, ran_in_turn=ran_in_turn)

    @property
    def speedup_reference(self) -> str:
        """The reference of its speedup, in words: "single", or OWN_ONE_REPLICA."""
        reference = self.reference or self
        return SINGLE if reference.implementation == SINGLE else OWN_ONE_REPLICA

    @property
    def ranks(self) -> tuple[RankMeasurement, ...]:
        """The measurements of all ranks in its usable repetitions."""
        return tuple(rank for record in self.usable_records for rank in record.ranks)

    @property
    def noisy_estimates(self) -> tuple[Estimate, ...]:
        """Speed and speedup, where they are too noisy to state."""
        estimates = (self.throughput, self.speedup)
        return tuple(e for e in estimates if e is not None and e.is_too_noisy)

    @property
    def is_under_load(self) -> bool:
        """Whether other processes ran on the cores during any of its repetitions."""
        return any(map(is_under_load, self.usable_records))

    @cached_property
    def warm_up(self) -> WarmUp | None:
        """Slow steps at the start of its windows."""
        return warm_up([slowest_of_each_step(record) for record in self.usable_records])

    @property
    def sufficient_warmup(self) -> int | None:
        """Warm-up steps with which its windows would not begin with slow steps; None if they do not
        now."""
        if self.warm_up is None:
            return None
        return self.usable_records[0].configuration.warmup + self.warm_up.steps

    @property
    def series(self) -> str:
        """Name of the scaling curve: "ddp/gloo"."""
        return series_name(self.implementation_label, self.backend)

    @property
    def label(self) -> str:
        """Name of the configuration: "ddp/gloo ×2, batch 32", with "(1+1 nodes)" after the group
        size across nodes."""
        return row_name(self.series, self.group_size, self.replicas_by_node, self.batch_size)


def by_configuration(records: Iterable[TrialRecord]) -> dict[Configuration, list[TrialRecord]]:
    """The repetitions of each configuration, in the order they were first run."""
    groups: dict[Configuration, list[TrialRecord]] = {}
    for record in records:
        groups.setdefault(record.configuration, []).append(record)
    return groups


def usable_records(repetitions: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
    """The records of repetitions with trustworthy speeds: none if any had wrong gradients."""
    if any(record.status is Status.WRONG_GRADIENTS for record in repetitions):
        return ()
    return tuple(filter(is_measured, repetitions))


def worst_status(repetitions: Sequence[TrialRecord]) -> tuple[Status, str | None]:
    """The worst status, and why it is not simply completed; a single skipped repetition does not
    hide that others completed.

    The reason is the first one, with the number of repetitions that ended that way.
    """
    statuses = [record.status for record in repetitions]
    blamed = worst = min(statuses, key=WORST_FIRST.index, default=Status.COMPLETED)
    if worst is Status.COMPLETED:
        if Status.SKIPPED not in statuses:
            return worst, None
        blamed = Status.SKIPPED
    ended_so = [record for record in repetitions if record.status is blamed]
    reason = next((record.reason for record in ended_so if record.reason), None)
    all_skipped = blamed is Status.SKIPPED and len(ended_so) == len(repetitions)
    if len(repetitions) == 1 or all_skipped:
        return worst, reason
    count = units.counted(len(repetitions), "repetition")
    verb = "with " if blamed is Status.WRONG_GRADIENTS else ""
    share = f"{len(ended_so)} of {count} {verb}{blamed.words}"
    return worst, f"{share}: {reason}" if reason else share


def in_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Sort rows as tables have them."""
    return tuple(sorted(rows, key=lambda row: order_of(row, row.implementation_label)))


def order_of(row: Row | Configuration, implementation_label: str) -> tuple[Any, ...]:
    """Sort key: the values of IDENTITY. Implementations are in their order, and numbers in labels
    count by their value, so that "local-sgd(20)" comes before "local-sgd(100)"."""
    known = [*IMPLEMENTATIONS]
    place = known.index(row.implementation) if row.implementation in known else len(known)
    texts = NUMBER.split(implementation_label)  # every second one is a number
    label = [(float(text), "") if i % 2 else (-1.0, text) for i, text in enumerate(texts)]
    return place, label, row.backend or "", row.group_size, row.batch_size or 0


def summarize(
    records: Sequence[TrialRecord], *, environments: Mapping[str, Environment] | None = None
) -> tuple[Row, ...]:
    """One row per configuration, sorted by implementation, backend, group size, batch size.

    `environments` describe the GPUs, for the utilization of their peaks.
    """
    groups = by_configuration(records)
    labels = Labels.among(groups)
    rows = {
        configuration: Row(
            **_identity(configuration),
            implementation_label=labels.implementation(configuration),
            item=next((trial for trial in group if trial.ranks), group[0]).facts.item,
            work=labels.work_label(configuration),
            configuration=configuration,
            records=tuple(group),
            throughputs={
                record.repetition: items_per_second(record) for record in usable_records(group)
            },
        )
        for configuration, group in groups.items()
    }
    # A sweep counts the operations of a workload only in its first repetitions.
    counted = [record for record in records if record.facts.flops_per_item]
    operations = {record.configuration.workload: record.facts.flops_per_item for record in counted}
    for configuration, row in rows.items():
        used = row.usable_records[-1].environment_ids if row.usable_records else ()
        hosts = map((environments or {}).get, used)
        of_workload = operations.get(configuration.workload)
        peak, peak_note = peak_items_per_second(configuration, of_workload, hosts)
        mfu = row.throughput.scaled(1 / peak, unit="of peak") if row.throughput and peak else None
        notes = (peak_note, *_notes(row, configuration))
        rows[configuration] = replace(row, mfu=mfu, notes=tuple(filter(None, notes)))
    return in_order(_with_speedups(rows))


def _identity(source: Configuration | PublishedLine) -> dict[str, Any]:
    """The fields of a row that identify it, of what it is made from."""
    return {name: getattr(source, name) for name in IDENTITY}


def _with_speedups(measured: Mapping[Configuration, Row]) -> Iterable[Row]:
    """The rows with speedups over `single`, or in a sweep without it over their own group size
    1."""
    rows = dict(measured)
    has_single = any(row.implementation == SINGLE and row.usable_records for row in rows.values())
    # References come before the rows that have them.
    for configuration in sorted(rows, key=lambda c: (c.group_size, c.implementation != SINGLE)):
        row = rows[configuration]
        one_replica = configuration.of_one_replica
        reference = configuration.single if has_single else one_replica
        over = rows.get(reference)
        notes = row.notes
        if row.usable_records and not (over and over.usable_records):
            notes += (f"no speedup, because {plain_label(reference)} has no completed run",)
        rows[configuration] = replace(
            row,
            speedup=row.speedup_over(over),
            speedup_relative=row.speedup_over(rows.get(one_replica)),
            reference=None if over is row else over,
            notes=notes,
        )
    return rows.values()


def _notes(row: Row, configuration: Configuration) -> Iterator[str]:
    """Second tries, and what local-sgd is."""
    again = Counter(filter(None, (record.tried_again_after for record in row.records)))
    for reason, count in again.items():
        trials = units.counted(count, "trial")
        yield f"{trials} tried again, as the first try was ended: {reason}"
    if configuration.sync_every > 1 and row.usable_records:
        yield (
            f"averages parameters every {configuration.sync_every} steps, gradients never: a "
            "different algorithm from ddp, so a higher speed may bring less progress per step"
        )


def published_rows(path: Path) -> tuple[Row, ...]:
    """The rows of a file of published numbers; raises FileError if it has another form.

    Speedups are over `single`, or if the table has none, over group size 1 of the same series, and
    never over a row that counts other items.
    """
    lines = read_lines(path)
    unread = dict.fromkeys(name for line in lines for name in line.unread)
    counts_several = len({line.item for line in lines}) > 1
    singles = {(line.item, line.batch_size): line.key for line in lines if line.is_single}
    alone = {line.series: line.key for line in lines if line.group_size == 1}
    rows = {
        line.key: Row(
            **_identity(line),
            implementation_label=line.implementation,
            item=line.item,
            work=line.item if counts_several else "",
            published=line,
            throughputs={0: line.throughput} if line.throughput else {},
        )
        for line in lines
    }
    # References come before the rows that have them.
    for line in sorted(lines, key=lambda line: (line.group_size, not line.is_single)):
        row = rows[line.key]
        one_replica = rows.get(alone.get(line.series))
        over = rows.get(singles.get((line.item, line.batch_size))) if singles else one_replica
        stated = single_value(line.speedup, "×") if line.speedup else None
        notes = [f"columns not read: {', '.join(unread)}"] if unread else []
        if not (stated or over):
            missing = f"{SINGLE} at this batch size" if singles else "row at group size 1"
            counting = f" that counts {line.item}" if counts_several else ""
            notes.append(f"no speedup, no {missing}{counting}")
        rows[line.key] = replace(
            row,
            speedup=stated or row.speedup_over(over),
            speedup_relative=stated or row.speedup_over(one_replica),
            reference=None if over is row else over,
            notes=tuple(notes),
        )
    return in_order(rows.values())
