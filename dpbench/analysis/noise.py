"""Noise: which trials other load on the machine disturbed, and how many repetitions are enough.

Repetitions of a disturbed trial would be disturbed as well, so the machine has to be freed first;
repetitions alone help where nothing else ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from dpbench import units
from dpbench.analysis.estimate import TOO_NOISY, Estimate, t_quantile
from dpbench.records.trial import HostLoad, TrialRecord
from dpbench.specs import Configuration

BUSY = 0.1
"""Share of the usable cores from which others' work disturbs trials on the CPU."""
BUSY_BESIDE_GPUS = 0.5
"""Share for trials on GPUs, whose ranks need little of the cores."""
HEAVY = 0.5
"""Mean share over all trials from which no difference between rows can be trusted either."""
MANY = 0.1
"""Share of disturbed trials from which no figure of the sweep can be trusted."""
MAX_ADVISED = 200
"""Most repetitions that are advised."""
AIM = 0.8
"""Part of the widest interval that is enough which repetitions aim at, since the noise of a few is
itself uncertain."""
WAS_BUSY = "the machine was busy: free it and measure again"
"""What to do about trials that others disturbed."""


def is_disturbed(record: TrialRecord) -> bool:
    """Whether others used so much of the cores that they affect the trial's times; False if that
    was not measured."""
    load = record.host_load
    if load is None or not record.ranks:
        return False
    return _share(load) >= _limit(record.configuration)


def load_warning(load: HostLoad | None, configuration: Configuration) -> tuple[str, ...]:
    """What to say before the first trial, if others use the machine; () if they do not."""
    if load is None or _share(load) < _limit(configuration):
        return ()
    used, cores = units.percent(min(1.0, _share(load))), units.counted(load.cores, "core")
    return (
        f"warning: other processes are using {used} of {cores}, which makes the speeds noisy; end "
        "them, or measure later",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbance:
    """How much others used the machine while trials ran; by default not at all."""

    note: str = ""
    """Who used how much of it, in how many trials, and what follows; "" on a quiet machine."""
    is_busy: bool = False
    """Whether so many trials were disturbed that no figure can be trusted."""
    is_heavy: bool = False
    """Whether they were disturbed so much on average that no difference can be trusted either."""


def disturbance_of(*groups: Sequence[TrialRecord]) -> Disturbance:
    """How much others disturbed some trials; those of several groups, such as the sides of a
    comparison, are as busy as the busiest of them."""
    measured = [
        [(r.host_load, is_disturbed(r)) for r in group if r.host_load and r.ranks]
        for group in groups
    ]
    loads = [load for group in measured for load, disturbed in group if disturbed]
    if not loads:
        return Disturbance()
    known = [group for group in measured if group]
    is_busy = any(fmean(disturbed for _, disturbed in group) >= MANY for group in known)
    is_heavy = any(fmean(_share(load) for load, _ in group) > HEAVY for group in known)
    stolen, others = sum(load.stolen for load in loads), sum(load.during for load in loads)
    who = "other virtual machines" if stolen > others else "other processes"
    used = units.span(round(100 * min(1.0, _share(load))) for load in loads)
    cores = units.counted(max(load.cores for load in loads), "core")
    trials = f"{len(loads):,} of {units.counted(sum(map(len, measured)), 'trial')}"
    purpose = "before acting on this" if is_busy else "to narrow their intervals"
    return Disturbance(
        note=f"{who} used {used} % of {cores} during {trials}: free the machine and "
        f"measure again {purpose}",
        is_busy=is_busy,
        is_heavy=is_heavy,
    )


def repetitions_to_state(noisy: Iterable[Estimate]) -> int | None:
    """The fewest repetitions, as noisy as these, after which none of some estimates is too noisy,
    as all of them are now; None without any, or if more than MAX_ADVISED."""
    # On logarithms, a half-width is a deviation × t ÷ √n.
    deviations = [
        math.log(high / low) / 2 * math.sqrt(n) / t_quantile(n - 1)
        for (low, high), n in ((estimate.ends, estimate.sample_size) for estimate in noisy)
    ]
    largest, enough = max(deviations, default=math.inf), AIM * math.log(TOO_NOISY) / 2
    return fewest_repetitions(lambda n: largest * t_quantile(n - 1) / math.sqrt(n), enough)


def fewest_repetitions(error: Callable[[int], float], enough: float) -> int | None:
    """The fewest repetitions whose error, which falls with their number, is small enough; None if
    more than MAX_ADVISED."""
    return next((n for n in range(2, MAX_ADVISED + 1) if error(n) <= enough), None)


def repetitions_advice(needed: int, now: int, seconds_each: float) -> str:
    """How many repetitions are needed, how many there are, and what they take: "about 13
    repetitions (now 3), 26 s: --repetitions 13"."""
    took = units.seconds(needed * seconds_each)
    return f"about {needed} repetitions (now {now}), {took}: --repetitions {needed}"


def _limit(configuration: Configuration) -> float:
    """Share of the cores from which the work of others disturbs its trials."""
    return BUSY if configuration.devices[0] == "cpu" else BUSY_BESIDE_GPUS


def _share(load: HostLoad) -> float:
    return (load.during + load.stolen) / load.cores
