"""Whether other processes disturbed the trials: the first thing to know about any figure."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench import units
from dpbench.records import HostLoad, TrialRecord

BUSY = 0.1
"""Share of the usable cores from which others' work disturbs trials on the CPU."""
BUSY_BESIDE_GPUS = 0.5
"""The same share for trials on GPUs, whose ranks need little of the cores."""
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


def load_notes(records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Notes on the load of others, the number of trials, and what to do; () on a quiet machine."""
    looked_at = [record for record in records if record.host_load and record.ranks]
    busy = [record for record in looked_at if is_disturbed(record)]
    if not busy:
        return ()
    loads = [record.host_load for record in busy if record.host_load]
    cores = units.counted(max(load.cores for load in loads), "core")
    trials = f"{len(busy):,} of {units.counted(len(looked_at), 'trial')}"
    few = len(busy) < MANY * len(looked_at)
    verdict = (
        "their intervals may be wide; more --repetitions help"
        if few
        else "figures are not to be trusted; free the machine and measure again (dpbench doctor "
        "--quiet-machine names what runs)"
    )
    return (f"{_who(loads)} used {_range(loads)} of {cores} during {trials}: {verdict}",)


def _who(loads: Sequence[HostLoad]) -> str:
    stolen = sum(load.stolen for load in loads)
    others = sum(load.during for load in loads)
    return "other guests of this virtual machine's host" if stolen > others else "other processes"


def _range(loads: Sequence[HostLoad]) -> str:
    """The least and the most load, in percent of all usable cores."""
    shares = [min(1.0, _share(load)) for load in loads]
    least, most = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return f"{most} %" if least == most else f"{least} to {most} %"


def _share(load: HostLoad) -> float:
    return (load.during + load.stolen) / load.cores
