"""The share of our DistributedDataParallel's own Python in a step, by figures measured once."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from dpbench import units
from dpbench.analysis.estimate import Estimate
from dpbench.analysis.laws.band import banded
from dpbench.analysis.projection.series import Series
from dpbench.analysis.projection.step_model import Ends
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.specs.trial import BUCKETED


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """Processor seconds of a rank, over runs of the benchmark."""

    step_seconds: Ends
    """Seconds that a step takes with any number of tensors and buckets."""
    tensor_seconds: Ends
    bucket_seconds: Ends

    def seconds(self, tensors: int, buckets: int) -> Ends:
        """Seconds of a step. The ends are added, as errors of the terms may have one sign."""
        terms = zip(self.step_seconds, self.tensor_seconds, self.bucket_seconds, strict=True)
        low, high = (step + tensors * tensor + buckets * bucket for step, tensor, bucket in terms)
        return low, high


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapperCost:
    """The contents of wrapper_cost.toml."""

    dynamic: StepCost
    static: StepCost
    """Cost with static_graph=True."""
    ranks: tuple[int, int]
    """Fewest and most ranks measured, between which no difference was found."""
    rank_seconds: float
    """Most seconds for each rank that the intervals do not exclude."""
    runs: int
    date: str
    machine: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WrapperShare:
    """The wrapper's own Python in a step of more than one replica."""

    seconds: Estimate
    share: Estimate
    tensors: int
    buckets: int


@cache
def wrapper_cost() -> WrapperCost:
    """The figures that were measured."""
    text = files(__package__).joinpath("wrapper_cost.toml").read_text("utf-8")
    data = tomllib.loads(text)
    fewest, most = data["ranks"]["measured"]
    return WrapperCost(
        dynamic=_cost(data["dynamic"]),
        static=_cost(data["static"]),
        ranks=(fewest, most),
        rank_seconds=data["ranks"]["most_us"] * units.MICRO,
        runs=data["runs"],
        date=data["date"].isoformat(),
        machine=data["machine"],
    )


def _cost(table: dict[str, list[float]]) -> StepCost:
    def ends(key: str) -> Ends:
        low, high = table[key]
        return low * units.MICRO, high * units.MICRO

    return StepCost(
        step_seconds=ends("step_us"),
        tensor_seconds=ends("tensor_us"),
        bucket_seconds=ends("bucket_us"),
    )


def is_ours(series: Series) -> bool:
    """Whether the wrapper is our DistributedDataParallel."""
    name = series.trial.implementation
    return name in BUCKETED and IMPLEMENTATIONS[name].ours


def _applies(series: Series) -> bool:
    """Whether the figures apply: they were measured without a hook and without accumulation."""
    trial = series.trial
    return is_ours(series) and trial.comm_hook == "none" and trial.accumulation_steps == 1


def wrapper_share(series: Series, group_size: int, step: Estimate) -> WrapperShare | None:
    """Share of a step of `step` seconds; None where the figures do not apply, as for a single
    replica, which fills no buckets."""
    if group_size == 1 or not _applies(series):
        return None
    tensors, buckets = len(series.model.trace.gradient_bytes), len(series.model.buckets)
    cost = wrapper_cost()
    low, high = cost.dynamic.seconds(tensors, buckets)
    fastest, slowest = step.ends
    middle = (low + high) / 2
    shares = (low / slowest, high / fastest)
    # The range of five runs or more holds their median with 94 % or more, a band with 90 %.
    return WrapperShare(
        seconds=banded(middle, (low, high), "s", sample_size=cost.runs),
        share=banded(middle / step.value, shares, "of the step", sample_size=cost.runs),
        tensors=tensors,
        buckets=buckets,
    )


def wrapper_assumptions(series: Series) -> tuple[str, ...]:
    """Assumptions of `wrapper_share`, or why a series of ours has none."""
    if not is_ours(series):
        return ()
    if not _applies(series):
        return (
            "the part of a step that is the wrapper's own Python is left out: its cost was "
            "measured without communication hooks and without accumulation",
        )
    cost = wrapper_cost()
    fewest, most = cost.ranks
    return (
        "the wrapper's own Python is the processor time of a rank around the module, without "
        f"copying bytes and without collectives, as measured on {cost.date} on {cost.machine}; its "
        f"interval is the range of {cost.runs} runs, and another processor takes longer or shorter",
        f"the wrapper's own Python takes as long with any number of ranks: from {fewest} to {most} "
        f"no difference was found (at most {units.seconds(cost.rank_seconds)} for each); beside a "
        "GPU some of it may be hidden",
    )
