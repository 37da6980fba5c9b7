"""One scaling curve: what was measured of it, and the model that goes on where measuring ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dpbench.analysis.communication.collective_cost import CollectiveCost
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.estimate import LogMean
from dpbench.analysis.projection.input_spread import input_spread
from dpbench.analysis.projection.spread import Spread
from dpbench.analysis.projection.step_model import StepModel
from dpbench.analysis.provenance import Kind
from dpbench.analysis.repetitions import by_configuration
from dpbench.analysis.simulation.buckets import BUCKETED, caps_bytes, into_buckets
from dpbench.analysis.simulation.inputs import SimulationInputs, simulation_inputs
from dpbench.analysis.summary import usable_repetitions
from dpbench.analysis.throughput import throughput_mean
from dpbench.collectives import CollectiveRecord
from dpbench.errors import UsageError
from dpbench.records import TrialRecord
from dpbench.specs import TrialSpec, series_name

NetworkOf = Callable[[str], CollectiveCost]
"""The network of a backend; raises UsageError where nothing tells what it costs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """An implementation on a backend at one batch size per replica."""

    trial: TrialSpec
    """At group size 1."""
    item: str
    rows: Mapping[int, ConfigurationSummary]
    """Group size → what was measured."""
    inputs: SimulationInputs
    network: CollectiveCost
    network_is_given: bool
    """A topology takes the place of the network that was measured."""
    model: StepModel
    spread: Spread
    anchor: float
    """What the traced step was multiplied by, so that it is the mean step of the timed window."""

    @property
    def label(self) -> str:
        name = series_name(self.trial.implementation_label, self.trial.backend)
        return f"{name}, batch {self.trial.batch_size}"

    @property
    def items_per_replica(self) -> int:
        """Of one optimizer step."""
        return self.trial.batch_size * self.model.accumulation_steps

    def measured(self, group_size: int) -> ConfigurationSummary | None:
        """What was measured at a group size, on the network in question."""
        row = self.rows.get(group_size)
        if row is None or row.throughput is None:
            return None
        same_network = not self.network_is_given or self.network.kind(group_size) == "measured"
        return row if same_network else None

    @property
    def measured_sizes(self) -> tuple[int, ...]:
        """Group sizes with a speed; 1 is always among them, as the trace is of it."""
        return tuple(sorted({1, *(n for n in self.rows if self.measured(n))}))

    def simulated_kind(self, group_size: int) -> Kind:
        """Of a simulated step: where its collectives come from, and where it could be checked."""
        kind = self.network.kind(group_size)
        if kind in ("refused", "projected"):
            return kind
        return "interpolated" if group_size <= self.measured_sizes[-1] else "extrapolated"


def series_of(
    records: Sequence[TrialRecord],
    rows: Sequence[ConfigurationSummary],
    *,
    network_of: NetworkOf,
    network_is_given: bool = False,
    collectives: Sequence[CollectiveRecord] = (),
    replicas_per_node: int | None = None,
    bucket_cap_mb: float | None = None,
) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """All that can be simulated, and a note on each of `rows` that cannot.

    `bucket_cap_mb` takes the place of what the trials had. Raises UsageError if there is none.
    """
    found, notes = [], []
    for trial, own in _grouped(rows).items():
        if (reason := _unfit(trial)) is not None:
            notes.append(f"{next(iter(own.values())).series}: not projected: {reason}")
            continue
        try:
            inputs = simulation_inputs(records, trial)
            network = network_of(trial.backend)
        except UsageError as error:
            notes.append(str(error))
            continue
        if bucket_cap_mb is not None and bucket_cap_mb != trial.bucket_cap_mb:
            trial = replace(trial, bucket_cap_mb=bucket_cap_mb)
            own = {n: row for n, row in own.items() if n == 1}  # one replica sends nothing
        one = _series(records, trial, own, inputs, network, collectives, replicas_per_node)
        found.append(replace(one, network_is_given=network_is_given))
    notes = list(dict.fromkeys(notes))
    if not found:
        raise UsageError(notes[0] if notes else "no trial to project")
    return tuple(found), tuple(notes)


def _grouped(
    rows: Sequence[ConfigurationSummary],
) -> dict[TrialSpec, dict[int, ConfigurationSummary]]:
    """Rows of a scaling curve by its trial at group size 1."""
    groups: dict[TrialSpec, dict[int, ConfigurationSummary]] = {}
    for row in rows:
        if row.configuration is not None:
            spec = row.configuration
            one = replace(spec, group_size=1, devices=spec.devices[:1])
            groups.setdefault(one, {})[row.group_size] = row
    return groups


def _unfit(trial: TrialSpec) -> str | None:
    if trial.implementation not in BUCKETED:
        return f"the simulation is of {', '.join(BUCKETED)}"
    if trial.scaling == "strong":
        return "the batch of a replica changes with their number; sweep with --scaling weak"
    return None


def _series(
    records: Sequence[TrialRecord],
    trial: TrialSpec,
    rows: Mapping[int, ConfigurationSummary],
    inputs: SimulationInputs,
    network: CollectiveCost,
    collectives: Sequence[CollectiveRecord],
    replicas_per_node: int | None,
) -> Series:
    cap, first_cap = caps_bytes(trial.bucket_cap_mb)
    buckets = into_buckets(inputs.trace, cap_bytes=cap, first_cap_bytes=first_cap)
    model = StepModel(
        trace=inputs.trace,
        buckets=buckets,
        network=network,
        noise=inputs.noise,
        contention={n: estimate.value for n, estimate in inputs.contention.items()},
        replicas_per_node=replicas_per_node,
        accumulation_steps=trial.accumulation_steps,
        fills_buckets=inputs.fills_buckets,
    )
    alone = _speed_alone(records, inputs)
    anchor = 1.0
    if alone is not None:
        items = trial.batch_size * trial.accumulation_steps
        anchor = items / alone.value / model.mean_step(1).seconds
        model = model.rescaled(anchor)
    return Series(
        trial=trial,
        item=next(iter(rows.values())).item,
        rows=rows,
        inputs=inputs,
        network=network,
        network_is_given=False,
        model=model,
        spread=input_spread(alone, inputs, network, collectives, buckets),
        anchor=anchor,
    )


def _speed_alone(records: Sequence[TrialRecord], inputs: SimulationInputs) -> LogMean | None:
    """Items per second of the trials that were traced, in their timed windows."""
    for spec, group in by_configuration(records).items():
        same_work = (spec.workload, spec.threads_per_replica, spec.accumulation_steps) == (
            inputs.trial.workload,
            inputs.trial.threads_per_replica,
            inputs.trial.accumulation_steps,
        )
        if spec.label != inputs.trace_source or not same_work:
            continue
        if usable := usable_repetitions(group):
            return throughput_mean(usable)
    return None
