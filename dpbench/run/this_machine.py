"""The machine that a command measures on, and which of its devices: --gpus, --threads and more."""

from __future__ import annotations

from collections.abc import Sequence

from dpbench import units
from dpbench.errors import UsageError
from dpbench.launch.machine import Machine
from dpbench.messages import option_words, say
from dpbench.options.model import OptionError
from dpbench.options.shared import MAX_WORD

MAX_REPLICAS = 4096
SMALL_GROUPS = 4
"""Up to as many replicas every group size is measured by default; beyond that they double."""


def default_group_sizes(largest: int) -> tuple[int, ...]:
    """Every size of a small group; else 1, 2, 4, 8, … and the largest, which shows the scaling."""
    if largest <= SMALL_GROUPS:
        return tuple(range(1, largest + 1))
    sizes = (2**power for power in range(largest.bit_length()))
    return tuple(dict.fromkeys((*sizes, largest)))


def devices_for(
    machine: Machine,
    gpus: int | Sequence[int] | None,
    sizes: Sequence[int | str] | None,
    *,
    oversubscribe: bool,
    may_lack: bool = False,
) -> tuple[str, ...]:
    """A device for each replica of the largest group. Says if replicas run on the CPU though `gpus`
    were asked for, or share cores; raises UsageError if there are too few.

    `gpus` is their number, or their ids; None leaves it to the group `sizes`, or else the machine.
    It `may_lack` them for a plan: where that is to run, each replica has a device of its own.
    """
    ids = () if gpus is None or isinstance(gpus, int) else tuple(gpus)
    largest = max(map(int, sizes)) if sizes and MAX_WORD not in sizes else 0
    there_are = machine.replica_count
    count = (gpus if isinstance(gpus, int) else len(ids)) or largest or there_are
    option = "group_sizes" if gpus is None and largest else "gpus"
    have = units.counted(there_are, "GPU")
    if not machine.gpus:
        cores = units.counted(there_are, "core")
        have = f"no CUDA device and {cores}, one for each replica on the CPU"
    if max(count, largest) > MAX_REPLICAS:
        problem = f": more replicas than one machine runs; expected at most {MAX_REPLICAS:,}"
        raise OptionError(option, problem)
    if missing := [str(number) for number in ids if number >= there_are]:
        raise OptionError(
            option,
            f": no device {' or '.join(missing)}; this machine has {have}; expected ids from 0 to "
            f"{there_are - 1}",
        )
    if count > there_are and not (oversubscribe or may_lack):
        raise OptionError(
            option,
            f": {count} replicas, but this machine has {have}; expected at most {there_are}, or "
            "add --oversubscribe",
        )
    if largest > count:
        problem = f": {largest} is above {option_words(option)}; expected at most {count}"
        raise OptionError("group_sizes", problem)
    if machine.gpus:
        distinct = there_are if oversubscribe else max(count, there_are)
        return tuple(f"cuda:{number % distinct}" for number in ids or range(count))
    if gpus is not None:
        say(f"no CUDA device here: using {units.counted(count, 'CPU replica')}")
    if count > machine.cores:
        say(f"oversubscribed: {count} replicas share {machine.cores} cores")
    return ("cpu",) * count


def threads_for(
    threads: int | None, cores: int, replicas: int, *, oversubscribe: bool, by: str = "--threads"
) -> int:
    """Cores ÷ largest group, the same at every group size: else a speedup is oversubscription.

    Raises UsageError for `threads`, which an option or variable gives, that are more than `cores`.
    """
    share = max(1, cores // replicas)
    if threads is None:
        return share
    if threads * replicas > cores and not oversubscribe:
        raise UsageError(
            f"{by} {threads}: {threads} × {replicas} replicas are more than the {cores} "
            f"cores; expected at most {share}, or add --oversubscribe"
        )
    return threads
