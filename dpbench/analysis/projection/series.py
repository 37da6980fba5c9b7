"""One scaling curve: its measurements, and the model that continues them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpbench import units
from dpbench.analysis.communication.collective_cost import CollectiveCost
from dpbench.analysis.configuration import ConfigurationSummary
from dpbench.analysis.projection.inputs import SimulationInputs, simulation_inputs
from dpbench.analysis.projection.simulation import Bucket
from dpbench.analysis.projection.step_model import Spread, StepModel, anchored_model, input_spread
from dpbench.analysis.provenance import FARTHEST, Provenance, weaker
from dpbench.errors import UsageError
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import TrialRecord
from dpbench.specs import TrialSpec, series_name
from dpbench.specs.traits import BACKENDS
from dpbench.specs.trial import BUCKETED

NetworkOf = Callable[[str], CollectiveCost]
"""Returns the network of a backend; raises UsageError if its cost is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """An implementation on a backend at one batch size per replica."""

    trial: TrialSpec
    """Trial at group size 1."""
    item: str
    rows: Mapping[int, ConfigurationSummary]
    """Measured rows by group size."""
    inputs: SimulationInputs
    network: CollectiveCost
    network_is_given: bool
    """Whether a topology replaces the measured network."""
    model: StepModel
    spread: Spread
    anchor: float
    """Factor on the traced step that makes it the mean step of the timed window."""
    model_errors: Mapping[int, float] = field(default_factory=dict)
    """Group size > 1 → |ln(simulated ÷ measured step)|, where that was measured."""

    @property
    def label(self) -> str:
        name = series_name(self.trial.implementation_label, self.trial.backend)
        return f"{name}, batch {self.trial.batch_size}"

    @property
    def samples_per_replica(self) -> int:
        """Samples per replica in one optimizer step."""
        return self.trial.batch_size * self.model.accumulation_steps

    @property
    def items_per_replica(self) -> int:
        """Items per replica in one optimizer step."""
        return self.samples_per_replica * self.inputs.items_per_sample

    def measured(self, group_size: int) -> ConfigurationSummary | None:
        """The measured row of a group size, on the same network."""
        row = self.rows.get(group_size)
        if row is None or row.throughput is None:
            return None
        same_network = not self.network_is_given or self.network.kind(group_size) == "measured"
        return row if same_network else None

    @property
    def measured_sizes(self) -> tuple[int, ...]:
        """Group sizes with a speed; 1 is always among them, as the trace was taken there."""
        return tuple(sorted({1, *(n for n in self.rows if self.measured(n))}))

    def simulated_kind(self, group_size: int) -> Provenance:
        """Kind of a simulated step: the source of its collectives, and whether it could be
        checked."""
        if self.refusal(group_size) is not None:
            return "refused"
        kind = self.network.kind(group_size)
        if kind == "projected":
            return kind
        within = group_size <= self.measured_sizes[-1]
        return weaker(kind, "interpolated" if within else "extrapolated")

    def spread_at(self, group_size: int) -> Spread:
        """Uncertainty from the inputs at a group size.

        Collectives that were not measured there are as uncertain as the figures of the network.
        """
        factor = self.network.uncertainty
        if factor is None or self.network.kind(group_size) != "projected":
            return self.spread
        return self.spread.with_communication(factor)

    def refusal(self, group_size: int) -> str | None:
        """Why a step of `group_size` replicas is not simulated, with a remedy; None if it is."""
        nodes = self.model.replicas_per_node
        is_local = BACKENDS[self.trial.backend].one_host
        if is_local and nodes is not None and group_size > nodes:
            return (
                f"{self.trial.backend} stays on one machine, and a node has "
                f"{units.counted(nodes, 'replica')}; project a series of another backend"
            )
        return self.network.refusal(group_size)

    @property
    def cap_mb(self) -> float | None:
        """Bucket size in MiB; None for the implementation's default."""
        return self.trial.bucket_cap_mb

    def model_error(self, group_size: int) -> float:
        """Error at the nearest measured group size, on a scale of ratios; 0 if there is none."""
        if not self.model_errors:
            return 0.0
        nearest = min(self.model_errors, key=lambda n: abs(math.log(n / group_size)))
        return self.model_errors[nearest]


def series_of(
    records: Sequence[TrialRecord],
    rows: Sequence[ConfigurationSummary],
    *,
    network_of: NetworkOf,
    network_is_given: bool = False,
    collectives: Sequence[CollectiveRecord] = (),
    replicas_per_node: int | None = None,
    cap_mb: float | None = None,
) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """All that can be simulated, and a note on each of `rows` that cannot.

    Buckets of `cap_mb` replace those of the trials. Raises UsageError if nothing can be simulated.
    """
    found, notes = [], []
    for trial, own in _grouped(rows).items():
        if (reason := _unfit(trial)) is not None:
            notes.append(f"{next(iter(own.values())).series}: not projected: {reason}")
            continue
        if cap_mb is not None and cap_mb != trial.bucket_cap_mb:
            trial = replace(trial, bucket_cap_mb=cap_mb)
            own = {n: row for n, row in own.items() if n == 1}  # one replica sends nothing
        try:
            one = _series(
                trial,
                own,
                simulation_inputs(records, trial),
                network_of(trial.backend).compressed(trial.wire_share or 1.0),
                collectives,
                replicas_per_node,
                network_is_given=network_is_given,
            )
        except UsageError as error:
            notes.append(str(error))
        else:
            found.append(one)
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
            groups.setdefault(row.configuration.of_one_replica, {})[row.group_size] = row
    return groups


def _unfit(trial: TrialSpec) -> str | None:
    if trial.implementation not in BUCKETED:
        return f"the simulation is of {', '.join(BUCKETED)}"
    if trial.scaling == "strong":
        return "the batch of a replica changes with their number; sweep with --scaling weak"
    if trial.wire_share is None:
        return (
            "what its communication hook sends depends on the shapes of the gradients, which no "
            "trace has; sweep without it"
        )
    return None


def _series(
    trial: TrialSpec,
    rows: Mapping[int, ConfigurationSummary],
    inputs: SimulationInputs,
    network: CollectiveCost,
    collectives: Sequence[CollectiveRecord],
    replicas_per_node: int | None,
    *,
    network_is_given: bool,
) -> Series:
    model, anchor = anchored_model(
        inputs, network, cap_mb=trial.bucket_cap_mb, replicas_per_node=replicas_per_node
    )
    _require_sizes(trial, model.buckets, network)
    one = Series(
        trial=trial,
        item=next(iter(rows.values())).item,
        rows=rows,
        inputs=inputs,
        network=network,
        network_is_given=network_is_given,
        model=model,
        spread=input_spread(inputs, network, collectives, model.buckets),
        anchor=anchor,
    )
    return replace(one, model_errors=_model_errors(one))


def _require_sizes(trial: TrialSpec, buckets: Sequence[Bucket], network: CollectiveCost) -> None:
    """Raise UsageError for buckets far larger than any measured message."""
    largest, needed = network.largest_bytes, max(bucket.nbytes for bucket in buckets)
    if largest is not None and network.wire_share * needed > FARTHEST * largest:
        raise UsageError(
            f"{trial.label}: a bucket of {units.bytes_binary(needed)}, but all_reduce on "
            f"{trial.backend} was measured up to {units.bytes_binary(largest)}; measure larger "
            f"messages with dpbench comm --backends {trial.backend} --sizes 4B-256MB"
        )


def _model_errors(one: Series) -> dict[int, float]:
    found = {}
    for n in one.measured_sizes:
        row = one.measured(n)
        if n == 1 or row is None or row.throughput is None or one.refusal(n) is not None:
            continue
        seconds = one.items_per_replica * n / row.throughput.value
        found[n] = abs(math.log(one.model.mean_step(n).seconds / seconds))
    return found
