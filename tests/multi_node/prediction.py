"""Steps across a link, predicted from what one rank does alone, beside what was measured.

What is known of the network is either the curve of all-reduces across the link, or no more than
the rate that the link was given and the time of the smallest all-reduce. What a collective and
computing cost each other is a matter of the hosts' cores, not of the link: measured in both cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from dpbench.analysis.communication.collective_cost import CollectiveCost, network_cost
from dpbench.analysis.communication.cost_models import Link
from dpbench.analysis.communication.curves import curves
from dpbench.analysis.communication.topology import Topology
from dpbench.analysis.projection.inputs import simulation_inputs
from dpbench.analysis.projection.simulation import caps_bytes, into_buckets, simulate
from dpbench.analysis.projection.stragglers import slowdowns
from dpbench.records.collectives import CollectiveRecord, CollectiveSpec
from dpbench.records.trial import RankMeasurement, Status, TrialRecord
from dpbench.specs import TrialSpec, WorkloadSpec
from tests.multi_node.agents import run_plan
from tests.multi_node.hosts import PAYLOAD_SHARE, two_hosts
from tests.multi_node.rank_program import Plan, Results

RANKS = 2
SIMULATED_STEPS = 1000
TIME_LIMIT_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Of one implementation, model and batch size; medians over steps."""

    trial: TrialSpec
    measured_seconds: float
    from_curve_seconds: float
    from_rate_seconds: float

    @property
    def error_from_curve(self) -> float:
        """As a share of the measured step."""
        return self.from_curve_seconds / self.measured_seconds - 1

    @property
    def error_from_rate(self) -> float:
        return self.from_rate_seconds / self.measured_seconds - 1


def predictions(bits_per_second: float, plan: Plan) -> list[Prediction]:
    """One for each configuration of the plan that has a rank on both hosts."""
    with two_hosts(bits_per_second=bits_per_second) as hosts:
        results = run_plan(hosts, plan, time_limit_seconds=TIME_LIMIT_SECONDS)
    networks = _networks(bits_per_second, plan, results)
    records = _trial_records(plan, results)
    across: dict[TrialSpec, list[float]] = {}
    for record in records:
        if record.trial.group_size == RANKS:
            steps = [step for rank in record.ranks for step in rank.timed.step_seconds]
            across.setdefault(record.trial.configuration, []).extend(steps)
    return [_prediction(trial, steps, records, networks) for trial, steps in across.items()]


def trial(
    architecture: str, implementation: str, group_size: int, batch_size: int, repetition: int = 0
) -> TrialSpec:
    """With one thread a rank."""
    return TrialSpec(
        workload=WorkloadSpec(architecture=architecture, dataset="synthetic"),
        implementation=implementation,
        backend="gloo",
        group_size=group_size,
        batch_size=batch_size,
        warmup_steps=3,
        timed_steps=10,
        threads_per_replica=1,
        devices=("cpu",) * group_size,
        phase_steps=0,
        gradient_steps=20,
        repetition=repetition,
    )


def collective(sizes: Sequence[int], overlap_sizes: Sequence[int], samples: int) -> CollectiveSpec:
    """All-reduces across the link."""
    return CollectiveSpec(
        collective="all_reduce",
        backend="gloo",
        group_size=RANKS,
        devices=("cpu",) * RANKS,
        sizes_bytes=tuple(sizes),
        threads_per_replica=1,
        samples=samples,
        overlap_sizes_bytes=tuple(overlap_sizes),
    )


def _prediction(
    trial: TrialSpec,
    steps: Sequence[float],
    records: Sequence[TrialRecord],
    networks: tuple[CollectiveCost, CollectiveCost],
) -> Prediction:
    """From the traces of ranks alone, and from how much ranks differ without synchronization."""
    inputs = simulation_inputs(records, trial)
    trace, noise = inputs.trace, inputs.noise
    assert noise is not None
    slowest = slowdowns(noise, RANKS, SIMULATED_STEPS, np.random.default_rng(0))
    measured, _ = networks
    cap, first_cap = caps_bytes(trial.bucket_cap_mb)
    buckets = into_buckets(trace, cap_bytes=cap, first_cap_bytes=first_cap)
    from_curve, from_rate = (
        simulate(
            trace,
            buckets,
            lambda nbytes, network=network: network.seconds(nbytes, RANKS),
            lost_share=measured.lost_share,
            stretch=measured.stretch,
            slowdown=slowest,
        ).step_seconds
        for network in networks
    )
    return Prediction(
        trial=trial,
        measured_seconds=median(steps),
        from_curve_seconds=float(np.median(from_curve)),
        from_rate_seconds=float(np.median(from_rate)),
    )


def _networks(
    bits_per_second: float, plan: Plan, results: Sequence[Results]
) -> tuple[CollectiveCost, CollectiveCost]:
    """As measured, and as the link's rate says; the latency is half of the smallest all-reduce's,
    in which two messages follow each other."""
    measured = curves(_collective_records(plan, results))
    link = Link(
        latency_seconds=measured[0].latency_seconds / 2,
        bytes_per_second=bits_per_second / 8 * PAYLOAD_SHARE,
    )
    topology = Topology(
        name="a limited link",
        ranks_per_node=1,
        intra=link,
        inter=link,
        algorithm="ring",
        source="its token bucket",
        date="",
    )
    return network_cost(topology, measured), network_cost(topology)


def _trial_records(plan: Plan, results: Sequence[Results]) -> list[TrialRecord]:
    """What every rank did alone counts as a repetition of its own."""
    records = []
    for trial, ranks in zip(
        plan.trials, zip(*(r.trials for r in results), strict=True), strict=True
    ):
        if trial.group_size == RANKS:
            records.append(_trial_record(trial, ranks))
            continue
        for number, rank in enumerate(ranks):
            one = replace(trial, repetition=RANKS * trial.repetition + number)
            records.append(_trial_record(one, (rank,)))
    return records


def _trial_record(trial: TrialSpec, ranks: tuple[RankMeasurement, ...]) -> TrialRecord:
    return TrialRecord(
        trial=trial,
        environment_id="two hosts",
        started_utc="",
        duration_seconds=0.0,
        status=Status.COMPLETED,
        ranks=ranks,
    )


def _collective_records(plan: Plan, results: Sequence[Results]) -> list[CollectiveRecord]:
    return [
        CollectiveRecord(
            collective=collective,
            environment_id="two hosts",
            started_utc="",
            duration_seconds=0.0,
            status=Status.COMPLETED,
            ranks=ranks,
        )
        for collective, ranks in zip(
            plan.collectives, zip(*(r.collectives for r in results), strict=True), strict=True
        )
    ]
