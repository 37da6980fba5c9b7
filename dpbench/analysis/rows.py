"""Rows of results: repetitions of a configuration and every metric of them, with notes on what is
missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from dpbench import units
from dpbench.analysis.change import change_between
from dpbench.analysis.estimate import MIN_PAIRS, Estimate, single_value
from dpbench.analysis.metrics import ROW_METRICS
from dpbench.analysis.noise import (
    FREE_THE_MACHINE,
    MAX_ADVISED_REPETITIONS,
    is_under_load,
    repetitions_advice,
    repetitions_to_state,
)
from dpbench.analysis.repetitions import by_configuration, usable_repetitions, worst_status
from dpbench.analysis.resources import peak_items_per_second
from dpbench.analysis.scaling import OWN_ONE_REPLICA, UNITY
from dpbench.analysis.throughput import WarmUp, items_per_second, slowest_of_each_step, warm_up
from dpbench.messages import one_line
from dpbench.records.environment import Environment
from dpbench.records.trial import RankMeasurement, Status, TrialRecord
from dpbench.specs import Configuration, Labels, plain_label, series_name
from dpbench.specs.labels import implementation_order, row_name
from dpbench.specs.traits import SINGLE

MAX_LISTED = 8
"""Configurations that a note names; the rest are counted and stand in the table."""


@dataclass(frozen=True, kw_only=True, eq=False)  # without slots, for cached values
class Row:
    """One configuration: its name and sizes, how it ended, and the values of its metrics.

    Rows of published numbers have no configuration and no records.
    """

    implementation: str
    """The name as it is registered or published."""
    implementation_label: str
    """The implementation as people read it, with settings: "ddp(bf16)", see `Labels`."""
    backend: str | None
    group_size: int
    batch_size: int | None
    """Samples per replica (weak scaling) or per group (strong scaling) and micro-step."""
    work: str = ""
    """See `Labels.work_label`: speeds of rows are compared only where it is the same."""
    item: str
    """The items that its speed counts: images, tokens."""
    status: Status = Status.COMPLETED
    reason: str | None = None
    verified: bool | None = None
    """Whether gradients were compared with one process and agreed; None if never compared."""
    repetitions: int = 0
    """Number of completed repetitions."""
    configuration: Configuration | None = None
    """The settings that its repetitions share."""
    records: tuple[TrialRecord, ...] = ()
    """Usable repetitions, see `repetitions.usable_repetitions`."""
    reference: Row | None = None
    """The row that its speedup is over; None if there is none, or it is a reference itself."""
    one_replica: Row | None = None
    """The row of the same implementation and backend at group size 1; None there."""
    notes: tuple[str, ...] = ()
    """Remarks on its values."""
    peak_items_per_second: float | None = None
    """The throughput that would use its GPUs' peak, if that is known."""
    stated: Mapping[str, Any] = field(default_factory=dict)
    """Values of metrics that do not follow from its records, by key: the speedup of a reference, 1,
    and what a published table states, its source and claims included."""

    def __getitem__(self, key: str) -> Any:
        """The value of a metric, or of what is stated; None if this row does not have it. Raises
        KeyError if no row has a metric of this key."""
        if key not in self._known:
            self._known[key] = ROW_METRICS[key].in_row(self)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[str, Any]:
        """The values that are stated, and those that were read so far."""
        return {**self.stated}

    @property
    def throughput(self) -> Estimate | None:
        """Items per second of all replicas."""
        return self._estimate("images_per_second")

    @property
    def speedup(self) -> Estimate | None:
        return self._estimate("speedup")

    @property
    def efficiency(self) -> Estimate | None:
        """Speedup ÷ group size."""
        return self._estimate("efficiency")

    def _estimate(self, key: str) -> Estimate | None:
        value: Estimate | None = self[key]
        return value

    def speedup_over(self, other: Row | None) -> Estimate | None:
        """How many times as fast it is as another row, within each repetition if they ran in turn;
        1 over itself. None if one of them has no speed."""
        if other is None or other is self:
            return None if other is None else UNITY
        paired = self.ran_in_turn_with(other)
        if change := change_between(other.speeds, self.speeds, paired=paired):
            return change.estimate
        # Published rows have their values alone: speeds, or times of the same work.
        mine, theirs = self.throughput, other.throughput
        if not (mine and theirs):
            mine, theirs = other["duration_seconds"], self["duration_seconds"]
        return single_value(mine.value / theirs.value, "×") if mine and theirs else None

    def ran_in_turn_with(self, other: Row) -> bool:
        """Whether both have the same repetitions, passes of the palindrome, and enough to be
        paired."""
        return len(self.speeds) >= MIN_PAIRS and self.speeds.keys() == other.speeds.keys()

    @cached_property
    def speeds(self) -> dict[int, float]:
        """Items per second in each usable repetition."""
        return {record.trial.repetition: items_per_second(record) for record in self.records}

    @property
    def speedup_reference(self) -> str:
        """The reference of its speedup, in words: "single", or OWN_ONE_REPLICA."""
        reference = self.reference or self
        return SINGLE if reference.implementation == SINGLE else OWN_ONE_REPLICA

    @property
    def replicas_by_node(self) -> tuple[int, ...]:
        """Number of replicas on each node; () if all are on one."""
        return () if self.configuration is None else self.configuration.replicas_by_node

    @property
    def ranks(self) -> tuple[RankMeasurement, ...]:
        """The measurements of all ranks in its usable repetitions."""
        return tuple(rank for record in self.records for rank in record.ranks)

    @property
    def noisy_estimates(self) -> tuple[Estimate, ...]:
        """Speed and speedup, where they are too noisy to state."""
        estimates = (self.throughput, self.speedup)
        return tuple(e for e in estimates if e is not None and e.is_too_noisy)

    @property
    def is_under_load(self) -> bool:
        """Whether other processes ran on the cores during any of its repetitions."""
        return any(map(is_under_load, self.records))

    @cached_property
    def warm_up(self) -> WarmUp | None:
        """Slow steps at the start of its windows."""
        return warm_up([slowest_of_each_step(record) for record in self.records])

    @property
    def series(self) -> str:
        """Name of the scaling curve: "ddp/gloo"."""
        return series_name(self.implementation_label, self.backend)

    @property
    def label(self) -> str:
        """Name of the configuration: "ddp/gloo ×2, batch 32", with "(1+1 nodes)" after the group
        size across nodes."""
        return row_name(self.series, self.group_size, self.replicas_by_node, self.batch_size)


def noise_lines(chosen: Iterable[Row], rows: Iterable[Row], purpose: str) -> Iterator[str]:
    """One line on the `chosen` rows of a sweep that are too noisy for a purpose, such as "explain":
    from where to where their numbers go, and what to do about it; nothing without any."""
    noisy = {row: row.noisy_estimates for row in chosen if row.noisy_estimates}
    if not noisy:
        return
    ranges = []
    for row, estimates in noisy.items():
        speeds = units.span(map(round, row.speeds.values()))
        known = f"{speeds} {one_line(row.item)}/s"
        if row.speedup and row.throughput not in estimates:
            known = "speedup " + "–".join(f"{end:.2g}" for end in row.speedup.ends)
        ranges.append(f"{row.label} ({known})")
    noisy_trials, trials = ([r for row in some for r in row.records] for some in (noisy, rows))
    now = len({record.trial.repetition for record in noisy_trials})
    needed = repetitions_to_state(chain.from_iterable(noisy.values()))
    remedy = f"more than {MAX_ADVISED_REPETITIONS} repetitions (now {now})"
    if any(row.is_under_load for row in noisy):
        remedy = FREE_THE_MACHINE
    elif needed is not None:
        passes = 1 + max(record.trial.repetition for record in trials)
        remedy = repetitions_advice(needed, now, sum(r.duration_seconds for r in trials) / passes)
    yield f"too noisy to {purpose}: {units.some_of(ranges, MAX_LISTED, 'configuration')}; {remedy}"


def in_order(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Sort rows as tables have them."""
    return tuple(sorted(rows, key=lambda row: order_of(row, row.implementation_label)))


def order_of(row: Row | Configuration, implementation_label: str) -> tuple[Any, ...]:
    """Sort key: implementation as registered, backend, group size, batch size."""
    implementation = implementation_order(row.implementation, implementation_label)
    return implementation, row.backend or "", row.group_size, row.batch_size or 0


def summarize(
    records: Sequence[TrialRecord], *, environments: Mapping[str, Environment] | None = None
) -> tuple[Row, ...]:
    """One row per configuration, sorted by implementation, backend, group size, batch size.

    `environments` describe the GPUs, for the utilization of their peaks.
    """
    final = by_configuration(records)
    usable = {key: usable_repetitions(group) for key, group in final.items()}
    has_single = any(key.implementation == SINGLE for key, group in usable.items() if group)
    # A sweep counts the operations of a workload only in its first repetitions.
    counted = [record for record in records if record.facts.flops_per_item]
    flops = {record.configuration.workload: record.facts.flops_per_item for record in counted}
    labels = Labels.among(final)
    rows: dict[Configuration, Row] = {}
    # References come before the rows that have them.
    for configuration in sorted(final, key=lambda c: (c.group_size, c.implementation != SINGLE)):
        group, measured = final[configuration], usable[configuration]
        one_replica = configuration.of_one_replica
        reference = configuration.single if has_single else one_replica
        stated, notes, peak = dict[str, Any](), list[str](), None
        if measured:
            hosts = map((environments or {}).get, measured[-1].environment_ids)
            operations = flops.get(configuration.workload)
            peak, note = peak_items_per_second(configuration, operations, hosts)
            notes += filter(None, [note])
            stated |= {"speedup": UNITY} if configuration == reference else {}
            stated |= {"speedup_relative": UNITY} if configuration == one_replica else {}
        again = Counter(filter(None, (r.tried_again_after for r in group)))
        for reason, count in again.items():
            trials = units.counted(count, "trial")
            notes.append(f"{trials} tried again, as the first try was ended: {reason}")
        if measured and configuration.sync_every > 1:
            notes.append(
                f"averages parameters every {configuration.sync_every} steps, gradients never: a "
                "different algorithm from ddp, so a higher speed may bring less progress per step"
            )
        if measured and not usable.get(reference):
            notes.append(f"no speedup, because {plain_label(reference)} has no completed run")
        status, why = worst_status(group)
        is_compared = any(record.facts.verification for record in group) or None
        is_wrong = any(record.status is Status.WRONG_GRADIENTS for record in group)
        rows[configuration] = Row(
            implementation=configuration.implementation,
            implementation_label=labels.implementation(configuration),
            backend=configuration.backend,
            group_size=configuration.group_size,
            batch_size=configuration.batch_size,
            work=labels.work_label(configuration),
            item=next((record for record in group if record.ranks), group[0]).facts.item,
            status=status,
            reason=why,
            verified=False if is_wrong else is_compared,
            repetitions=sum(record.status is Status.COMPLETED for record in group),
            configuration=configuration,
            records=measured,
            reference=rows.get(reference),
            one_replica=rows.get(one_replica),
            notes=tuple(notes),
            peak_items_per_second=peak,
            stated=stated,
        )
    return in_order(rows.values())
