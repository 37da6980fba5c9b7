"""The repetitions of a configuration: which belong together, which count, how they ended, which
were disturbed by other load on the machine, and how many would be enough."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from dpbench import units
from dpbench.analysis.estimate import Estimate, t_quantile
from dpbench.analysis.throughput import is_measured
from dpbench.records.trial import HostLoad, Status, TrialRecord
from dpbench.specs import Configuration

WORST_FIRST = (
    Status.WRONG_GRADIENTS,
    Status.FAILED,
    Status.OUT_OF_MEMORY,
    Status.TIMED_OUT,
    Status.DIVERGED,
    Status.COMPLETED,
    Status.SKIPPED,
)
BUSY = 0.1
"""Share of the usable cores from which others' work disturbs trials on the CPU."""
BUSY_BESIDE_GPUS = 0.5
"""Share for trials on GPUs, whose ranks need little of the cores."""
HEAVY = 0.5
"""Share from which no difference between rows can be trusted either."""
MANY = 0.1
"""Share of disturbed trials from which no figure of the sweep can be trusted."""
MOST_ADVISED = 200
"""Most repetitions that are advised."""
AIM = 0.8
"""Part of the widest interval that is enough which repetitions aim at, since the noise of a few is
itself uncertain."""


def by_configuration(records: Iterable[TrialRecord]) -> dict[Configuration, list[TrialRecord]]:
    """The repetitions of each configuration, in the order they were first run.

    A trial that was run again, for example after a manual change, counts once, with its last
    record.
    """
    groups: dict[Configuration, dict[int, TrialRecord]] = {}
    for record in records:
        groups.setdefault(record.trial.configuration, {})[record.trial.repetition] = record
    return {one: list(group.values()) for one, group in groups.items()}


def usable_repetitions(repetitions: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
    """The repetitions with trustworthy speeds: none if any had wrong gradients."""
    if any(record.status is Status.WRONG_GRADIENTS for record in repetitions):
        return ()
    return tuple(r for r in repetitions if r.status is Status.COMPLETED and is_measured(r))


def outcome(repetitions: Sequence[TrialRecord]) -> tuple[Status, str | None]:
    """The worst status, and why it is not simply completed; a single skipped repetition does not
    hide that others completed.

    The reason is the first one, with the number of repetitions that ended that way.
    """
    statuses = [record.status for record in repetitions]
    blamed = worst = min(statuses, key=WORST_FIRST.index)
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


def is_disturbed(record: TrialRecord) -> bool:
    """Whether others used so much of the cores that they affect the trial's times; False if that
    was not measured."""
    load = record.host_load
    if load is None or not record.ranks:
        return False
    return _share(load) >= _limit(record.trial)


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
class Load:
    """How much others used the machine while trials ran."""

    note: str = ""
    """Who used how much of it, in how many trials, and what follows; "" on a quiet machine."""
    is_busy: bool = False
    """Whether so many trials were disturbed that no figure can be trusted."""
    is_heavy: bool = False
    """Whether they were disturbed so much that no difference can be trusted either."""


QUIET = Load()


def load_of(records: Sequence[TrialRecord]) -> Load:
    """The load of others during these trials."""
    looked_at = [record for record in records if record.host_load and record.ranks]
    loads = [record.host_load for record in looked_at if is_disturbed(record) and record.host_load]
    if not loads:
        return QUIET
    is_busy = len(loads) >= MANY * len(looked_at)
    stolen, others = sum(load.stolen for load in loads), sum(load.during for load in loads)
    who = "other virtual machines" if stolen > others else "other processes"
    used = units.span(round(100 * min(1.0, _share(load))) for load in loads)
    cores = units.counted(max(load.cores for load in loads), "core")
    trials = f"{len(loads):,} of {units.counted(len(looked_at), 'trial')}"
    advice = "their intervals may be wide; add --repetitions"
    if is_busy:
        advice = "measure on a free machine before acting on this"
    return Load(
        note=f"{who} used {used} % of {cores} during {trials}: {advice}",
        is_busy=is_busy,
        is_heavy=is_busy and fmean(map(_share, loads)) > HEAVY,
    )


def repetitions_needed(estimates: Iterable[Estimate], reach: float) -> int | None:
    """The fewest repetitions, as noisy as these, after which the half-widths of the estimates, on
    logarithms, add up to at most `reach`; None if more than MOST_ADVISED, or if one of the
    estimates has no interval."""
    spread = 0.0
    for one in estimates:
        low, high = one.ends
        if one.interval is None or low <= 0:
            return None
        half_width = math.log(high / low) / 2
        spread += half_width * math.sqrt(one.sample_size) / t_quantile(one.sample_size - 1)
    counts = range(2, MOST_ADVISED + 1)
    enough = AIM * reach
    return next((n for n in counts if t_quantile(n - 1) * spread / math.sqrt(n) <= enough), None)


def _limit(configuration: Configuration) -> float:
    """Share of the cores from which the work of others disturbs its trials."""
    return BUSY if configuration.devices[0] == "cpu" else BUSY_BESIDE_GPUS


def _share(load: HostLoad) -> float:
    return (load.during + load.stolen) / load.cores
