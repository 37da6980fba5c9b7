"""Remarks of an expert on the rows of a sweep: on devices and shards, and on what the user's code
does that decides its speed, as its ranks recorded it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dpbench import units
from dpbench.analysis.diagnosis.explanation import slowest_of
from dpbench.analysis.resources import gpu_names
from dpbench.analysis.rows import Row
from dpbench.records.environment import Environment
from dpbench.records.trial import INFINIBAND_UNUSED


def hints(rows: Sequence[Row], environments: Mapping[str, Environment]) -> tuple[str, ...]:
    """Remarks on what deserves a change or a second look, and nothing that was done already: GPUs
    of different models, with the slowest rank's share; other processes on them; sockets where there
    is InfiniBand; and replicas that take different numbers of samples."""
    remarks = []
    measured = [(row, row.configuration) for row in rows if row.records and row.configuration]
    for row, configuration in measured:
        names = []
        for record in row.records:
            models = gpu_names(map(environments.get, record.environment_ids))
            names += [models[device] for device in record.trial.node_devices if device in models]
        if len({*names}) > 1:
            slowest, which = slowest_of(row.records), "slowest"
            if slowest is not None:
                share = units.percent(slowest.behind.value)
                which = f"slowest, rank {slowest.rank} on {slowest.device}, for {share} of its step"
            listed = ", ".join(dict.fromkeys(names))
            remarks.append(f"{row.label}: its GPUs differ ({listed}); all wait for the {which}")
        devices, one_process = configuration.node_devices, configuration.process_count == 1
        ranks = [rank for record in row.records for rank in record.ranks]
        shared = {
            configuration.device_name(rank.rank): None
            for rank in ranks
            for state in rank.timed.gpu
            if state.processes > (1 if one_process else devices.count(devices[rank.rank]))
        }
        if shared:
            used = ", ".join(shared)
            remarks.append(f"{row.label}: other processes use {used}; stop them and measure again")
        if any(INFINIBAND_UNUSED in rank.transports for rank in ranks):
            remarks.append(
                f"{row.label}: NCCL sends through sockets, although there is InfiniBand; look at "
                "NCCL_IB_DISABLE, NCCL_IB_HCA and whether libibverbs is installed"
            )
    for sizes in dict.fromkeys(configuration.replica_batch_sizes for _, configuration in measured):
        counts = sorted(Counter(sizes).items(), reverse=True)
        if len(counts) > 1:
            shares = " and ".join(f"{n} take{'s' if n == 1 else ''} {size}" for size, n in counts)
            remarks.append(
                f"of {len(sizes)} replicas, {shares} samples of a global batch of {sum(sizes)}: "
                "gradients are weighted by samples, but all replicas wait for the largest shard "
                f"({max(sizes) * len(sizes) / sum(sizes):.2f} × the mean)"
            )
    return tuple(remarks)
