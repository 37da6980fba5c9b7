"""Steps of any number of replicas on a network: simulated from one replica's trace, with bands.

Computing is as traced on one replica, times two measured factors: how much longer it takes beside
the other replicas of its machine (contention), and how much the slowest of n replicas takes
(stragglers). Both come from the steps that sweeps run without gradient synchronization. The band
moves each input to both ends of its interval, and adds, beyond the measured sizes, the error of a
law (`law.WITHIN_NODE`). That simulations err like laws is an assumption: nobody has published
enough of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dpbench import units
from dpbench.analysis.communication.network import Topology
from dpbench.analysis.estimate import Estimate, Floats, geometric_mean, single_value
from dpbench.analysis.projection.law import WITHIN_NODE, error_scale
from dpbench.analysis.projection.series import ProjectedRow, Series, reach
from dpbench.analysis.projection.step import (
    StepTrace,
    buckets,
    expected_maximum,
    simulated_seconds,
    step_ratios,
    step_trace,
)
from dpbench.analysis.row import Row
from dpbench.analysis.throughput import mean_rank_step_seconds, steps_without_sync
from dpbench.errors import UsageError
from dpbench.specs import TrialSpec
from dpbench.specs.axes import WIRE_SHARES
from dpbench.specs.trial import BUCKETED


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """A series, and all that its steps are simulated from."""

    series: Series
    network: Topology
    trace: StepTrace
    """Scaled so that one replica takes its measured mean step."""
    traces: int
    """Number of traced repetitions."""
    trial: TrialSpec
    """The trial at group size 1."""
    contention: Mapping[int, Estimate]
    """Group size → mean step of its replicas without synchronization ÷ the step of one replica."""
    ratios: tuple[Floats, ...]
    """Step ratios of the largest group, one array per repetition; empty if not measured."""
    wire_share: float
    """Bytes that travel ÷ bytes of the gradients."""

    def step_seconds(self, n: int, case: Mapping[str, float] | None = None) -> float:
        """Seconds of a step; `case` has factors on single inputs, see `cases`."""
        moved = case or {}
        factor = moved.get("compute", 1.0)
        if n > 1:
            factor *= self.contention_at(n).value * moved.get("contention", 1.0)
            factor *= self.slowest(n).value * moved.get("stragglers", 1.0)

        def cost(nbytes: float) -> float:
            return moved.get("network", 1.0) * self.network.seconds(self.wire_share * nbytes, n)

        return simulated_seconds(
            self.trace.scaled(factor),
            cost,
            cap_mb=self.trial.bucket_cap_mb,
            accumulation_steps=self.trial.accumulation_steps,
        )

    def contention_at(self, n: int) -> Estimate:
        """Contention at the nearest measured number of replicas on one machine; 1 if unknown."""
        together = min(n, self.network.ranks_per_node or n)
        if together == 1 or not self.contention:
            return single_value(1.0, "×")
        return self.contention[min(self.contention, key=lambda n: abs(math.log(n / together)))]

    def slowest(self, n: int) -> Estimate:
        """Mean step of the slowest of n replicas ÷ the mean step of all; 1 if unknown."""
        if n == 1 or not self.ratios:
            return single_value(1.0, "×")
        slowest = [expected_maximum(ratios, n) for ratios in self.ratios]
        return geometric_mean(slowest, unit="×")

    def cases(self, n: int) -> list[dict[str, float]]:
        """Factors that move one input after the other to either end of its interval."""
        ends = {
            "compute": _ends(self.series.speeds[0]),
            "contention": _ends(self.contention_at(n)),
            "stragglers": _ends(self.slowest(n)),
            "network": self.network.ends,
        }
        return [{name: end} for name, pair in ends.items() for end in pair if end != 1.0]

    def refusal(self, n: int) -> str | None:
        """Why a step of n replicas is not simulated; None if it is."""
        beyond = self.series.beyond_one_machine(n, self.network.ranks_per_node)
        return beyond or self.network.refusal(n)

    def row(self, n: int) -> ProjectedRow:
        """A simulated group size."""
        if (reason := self.refusal(n)) is not None:
            return ProjectedRow(group_size=n, kind="refused", reason=reason)
        seconds = self.step_seconds(n)
        swings = [math.log(self.step_seconds(n, case) / seconds) for case in self.cases(n)]
        octaves = max(0.0, math.log2(n / self.series.group_sizes[-1]))
        rise = max(0.0, math.log(seconds / self.step_seconds(1))) / max(1.0, math.log2(n))
        scale = error_scale(rise, octaves)
        ends = (WITHIN_NODE.low * scale, WITHIN_NODE.high * scale)
        faster, slower = reach([*swings, *ends])
        items = self.series.items_per_replica
        assert items is not None, "sweeps have a batch size"
        speed = n * items / seconds
        return self.series.predicted_row(n, "projected", speed, (slower, faster), self.traces)

    def assumptions(self) -> tuple[str, ...]:
        """The assumptions behind the numbers, in sentences."""
        found = buckets(self.trace, self.trial.bucket_cap_mb)
        total = units.bytes_binary(int(sum(nbytes for _, nbytes in found)))
        contention = "replicas on one machine do not slow each other down (not measured)"
        if self.contention:
            contention = (
                "replicas on one machine slow each other down as in steps without synchronization"
            )
        stragglers = "all replicas are equally fast, because stragglers were not measured"
        if self.ratios:
            stragglers = (
                "straggler delays are those of the measured steps; rarer events are not modeled"
            )
        return (
            f"gradients ({total}) are reduced in {units.counted(len(found), 'bucket')}",
            self.network.assumption,
            contention,
            stragglers,
            "computation and communication do not slow each other down",
            "the input pipeline is fast enough, and no replica fails",
        )


def _contention(rows: Sequence[Row], alone: float) -> dict[int, Estimate]:
    """Contention at each group size whose ranks all ran without synchronization."""
    found = {}
    for row in rows:
        means = [fmean(steps) for record in row.records if (steps := steps_without_sync(record))]
        if row.group_size > 1 and means:
            found[row.group_size] = geometric_mean([mean / alone for mean in means], unit="×")
    return found


def project_by_simulation(
    simulation: Simulation, group_sizes: Sequence[int]
) -> tuple[ProjectedRow, ...]:
    """A row for each group size, ascending.

    One replica needs no network and is shown as measured.
    """
    return tuple(
        simulation.series.measured_row(simulation.series.rows[0]) if n == 1 else simulation.row(n)
        for n in sorted(set(group_sizes))
    )


def _ends(value: Estimate) -> tuple[float, float]:
    """Factors at the ends of an interval; 1 and 1 without one."""
    return value.ends[0] / value.value, value.ends[1] / value.value


def simulation_of(series: Series, network: Topology) -> Simulation:
    """Put together the simulation of one series; raises UsageError if it cannot be simulated."""
    trial = series.trial
    assert trial is not None, "simulations are of sweeps"
    if trial.implementation not in BUCKETED:
        raise UsageError(
            f"{series.rows[0].series} cannot be simulated, only {', '.join(BUCKETED)} can; without "
            "a network, project uses a law"
        )
    if (wire_share := WIRE_SHARES[trial.comm_hook]) is None:
        raise UsageError(
            f"{series.label}: a communication hook cannot be simulated, because traces have no "
            "shapes of gradients; sweep without it"
        )
    alone = series.rows[0].records if series.group_sizes[0] == 1 else ()
    traces = [rank.gradient_trace for r in alone for rank in r.ranks if rank.gradient_trace]
    if not traces:
        raise UsageError(
            f"{series.label}: a simulation needs the gradient trace of group size 1; measure it "
            "with dpbench sweep --group-sizes 1,2"
        )
    trace = step_trace(traces)
    accumulated = (trial.accumulation_steps - 1) * trace.backward_end_seconds
    mean = geometric_mean([mean_rank_step_seconds(record) for record in alone], unit="s").value
    ratios = [[step_ratios(record) for record in row.records] for row in series.rows]
    noisy = [kept for one in ratios if (kept := tuple(r for r in one if r is not None))]
    return Simulation(
        series=series,
        network=network,
        trace=trace.scaled(mean / (trace.step_seconds + accumulated)),
        traces=len(traces),
        trial=trial,
        contention=_contention(series.rows, mean),
        ratios=noisy[-1] if noisy else (),
        wire_share=wire_share,
    )
