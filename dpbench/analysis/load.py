"""Other load on the machine during trials: which trials it disturbed, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from dpbench import units
from dpbench.records.trial import HostLoad, TrialRecord

BUSY = 0.1
"""Share of the usable cores from which others' work disturbs trials on the CPU."""
BUSY_BESIDE_GPUS = 0.5
"""Share for trials on GPUs, whose ranks need little of the cores."""
HEAVY = 0.5
"""Share from which no difference between rows can be trusted either."""
MANY = 0.1
"""Share of disturbed trials from which no figure of the sweep can be trusted."""


def is_disturbed(record: TrialRecord) -> bool:
    """Whether others used so much of the cores that they affect the trial's times; False if that
    was not measured."""
    load = record.host_load
    if load is None or not record.ranks:
        return False
    limit = BUSY if record.trial.devices[0] == "cpu" else BUSY_BESIDE_GPUS
    return _share(load) >= limit


def is_untrustworthy(records: Sequence[TrialRecord]) -> bool:
    """Whether so many trials were disturbed that no figure of the sweep can be trusted."""
    looked_at = [record for record in records if record.host_load and record.ranks]
    return bool(looked_at) and sum(map(is_disturbed, looked_at)) >= MANY * len(looked_at)


def load_notes(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Note on the load of others, the number of trials, and what follows; () on a quiet machine."""
    looked_at = [record for record in records if record.host_load and record.ranks]
    busy = [record for record in looked_at if is_disturbed(record)]
    if not busy:
        return ()
    loads = [record.host_load for record in busy if record.host_load]
    stolen, others = sum(load.stolen for load in loads), sum(load.during for load in loads)
    who = "other virtual machines" if stolen > others else "other processes"
    used = units.span(round(100 * min(1.0, _share(load))) for load in loads)
    cores = units.counted(max(load.cores for load in loads), "core")
    trials = f"{len(busy):,} of {units.counted(len(looked_at), 'trial')}"
    if not is_untrustworthy(records):
        verdict = ": their intervals may be wide; add --repetitions"
    elif mean(map(_share, loads)) > HEAVY:
        verdict = ": measure on a free machine before acting on this"
    else:
        verdict = (
            "; free the machine and measure again, or trust only differences far larger than the "
            "intervals"
        )
    return (f"{who} used {used} % of {cores} during {trials}{verdict}",)


def _share(load: HostLoad) -> float:
    return (load.during + load.stolen) / load.cores
