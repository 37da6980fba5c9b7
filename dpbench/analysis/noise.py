"""Noise: which trials ran under other load on the machine, and how many repetitions are enough.

Repetitions under load are as noisy, so the machine has to be freed first; repetitions alone help
where nothing else ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from dpbench import units
from dpbench.analysis.estimate import TOO_NOISY_RATIO, Estimate, t_quantile
from dpbench.analysis.formatting import percent, span
from dpbench.records.trial import HostLoad, TrialRecord
from dpbench.specs import Configuration

LOAD_SHARE = 0.1
"""A trial on the CPU is under load if others use this share of the usable cores or more."""
LOAD_SHARE_BESIDE_GPUS = 0.5
"""The same for a trial on GPUs, whose ranks need little of the cores."""
SPOILING_LOAD = 0.5
"""No difference between rows can be trusted if others used more than this share of the cores in
the mean of all trials."""
SPOILING_TRIALS = 0.1
"""No speed can be trusted if this share of the trials or more ran under load."""
MAX_ADVISED_REPETITIONS = 200
"""Most repetitions that are advised."""
AIMED_WIDTH_SHARE = 0.8
"""Advised repetitions aim at an interval this many times as wide as one that is just too noisy,
because the noise of a few repetitions is itself uncertain."""
FREE_THE_MACHINE = "the machine was busy: free it and measure again"
"""Advice on trials under load."""


def is_under_load(record: TrialRecord) -> bool:
    """Whether others used so much of the cores that they affect the trial's times; False if that
    was not measured."""
    load = record.host_load
    if load is None or not record.ranks:
        return False
    return _load_share(load) >= _load_limit(record.configuration)


def load_warning(load: HostLoad | None, configuration: Configuration) -> tuple[str, ...]:
    """The warning before the first trial, if others use the machine; () if they do not."""
    if load is None or _load_share(load) < _load_limit(configuration):
        return ()
    used, cores = percent(min(1.0, _load_share(load))), units.counted(load.cores, "core")
    return (
        f"warning: other processes are using {used} of {cores}, which makes the speeds noisy; end "
        "them, or measure later",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineLoad:
    """Use of the machine by others while trials ran; by default none."""

    note: str = ""
    """Who used how much of it, in how many trials, and what follows; "" on a quiet machine."""
    spoils_speeds: bool = False
    """Whether so many trials ran under load that no figure can be trusted."""
    spoils_differences: bool = False
    """Whether it was so high on average that no difference can be trusted either."""


def machine_load(*groups: Sequence[TrialRecord]) -> MachineLoad:
    """The load on some trials; that of several groups, such as the sides of a comparison, is the
    worst of theirs."""
    # Of each trial its load, and whether that is much.
    measured = [
        [(r.host_load, is_under_load(r)) for r in group if r.host_load and r.ranks]
        for group in groups
    ]
    loads = [load for group in measured for load, is_loaded in group if is_loaded]
    if not loads:
        return MachineLoad()
    shares_of_trials = [fmean(is_loaded for _, is_loaded in group) for group in measured if group]
    mean_loads = [fmean(_load_share(load) for load, _ in group) for group in measured if group]
    spoils_speeds = max(shares_of_trials) >= SPOILING_TRIALS
    is_stolen = sum(load.stolen for load in loads) > sum(load.during for load in loads)
    who = "other virtual machines" if is_stolen else "other processes"
    used = span(round(100 * min(1.0, _load_share(load))) for load in loads)
    cores = units.counted(max(load.cores for load in loads), "core")
    trials = f"{len(loads):,} of {units.counted(sum(map(len, measured)), 'trial')}"
    purpose = "before acting on this" if spoils_speeds else "to narrow their intervals"
    return MachineLoad(
        note=f"{who} used {used} % of {cores} during {trials}: free the machine and "
        f"measure again {purpose}",
        spoils_speeds=spoils_speeds,
        spoils_differences=max(mean_loads) > SPOILING_LOAD,
    )


def disturbed_repetitions(records: Sequence[TrialRecord]) -> set[int]:
    """The repetitions with a trial under load, if load spoils the speeds; none if they are more
    than half of all, as on a machine that is busy all the time."""
    disturbed = {record.repetition for record in records if is_under_load(record)}
    are_few = 2 * len(disturbed) <= len({record.repetition for record in records})
    return disturbed if are_few and machine_load(records).spoils_speeds else set()


def repetitions_to_state(noisy: Iterable[Estimate]) -> int | None:
    """The fewest repetitions with which none of these estimates would be too noisy, as all of them
    are now; None without any, or if more than MAX_ADVISED_REPETITIONS are needed."""
    # On logarithms, a half-width is a deviation × t ÷ √n.
    deviations = [
        math.log(high / low) / 2 * math.sqrt(n) / t_quantile(n - 1)
        for (low, high), n in ((estimate.ends, estimate.sample_size) for estimate in noisy)
    ]
    largest = max(deviations, default=math.inf)
    enough = AIMED_WIDTH_SHARE * math.log(TOO_NOISY_RATIO) / 2
    return fewest_repetitions(lambda n: largest * t_quantile(n - 1) / math.sqrt(n), enough)


def fewest_repetitions(error: Callable[[int], float], enough: float) -> int | None:
    """The fewest repetitions whose error, which falls with their number, is small enough; None if
    more than MAX_ADVISED_REPETITIONS."""
    return next((n for n in range(2, MAX_ADVISED_REPETITIONS + 1) if error(n) <= enough), None)


def repetitions_advice(needed: int, now: int, seconds_each: float) -> str:
    """How many repetitions are needed, how many there are, and what they take: "about 13
    repetitions (now 3), 26 s: --repetitions 13"."""
    took = units.seconds(needed * seconds_each)
    return f"about {needed} repetitions (now {now}), {took}: --repetitions {needed}"


def _load_limit(configuration: Configuration) -> float:
    """Share of the cores from which the work of others is load on its trials."""
    return LOAD_SHARE if configuration.devices[0] == "cpu" else LOAD_SHARE_BESIDE_GPUS


def _load_share(load: HostLoad) -> float:
    return (load.during + load.stolen) / load.cores
