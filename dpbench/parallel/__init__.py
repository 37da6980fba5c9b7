"""Data-parallel training: one process with threads, or one process per rank.

A library of its own: it imports torch, and nothing else of dpbench. Importing it starts no
thread and does not touch CUDA; it makes the backend "shm" known to torch.distributed.

    DataParallel              replicas in threads of this process, on any mix of devices
    accumulate                its gradient of several micro-batches, weighted by their sizes
    scatter, gather           split a batch over devices and put outputs together again
    NoScatter                 marks an input that every replica gets whole
    balanced_split            the sizes of the chunks

    DistributedDataParallel   one replica per process of a torch.distributed group
    LocalSGD                  train each replica alone, and average the parameters now and then
    sync_gradients            average the gradients of a plain module, once
    check_sync                do all ranks hold the same values? RanksDiffer if not
    broadcast_checkpoint      give all ranks the values of one
    barrier                   wait for all ranks, and hear which ones do not come
    any_rank, all_ranks       decide together

    process_group             the default group of a launch, which is left whatever happens
    local_device              which GPU of its host a process takes
    available_backends        which backends can be used here, and why not
"""

from __future__ import annotations

from dpbench.parallel.available_backends import available_backends
from dpbench.parallel.barrier import barrier
from dpbench.parallel.broadcast_checkpoint import broadcast_checkpoint
from dpbench.parallel.check_sync import RanksDiffer, check_sync
from dpbench.parallel.ddp.distributed_data_parallel import DistributedDataParallel
from dpbench.parallel.decisions import all_ranks, any_rank
from dpbench.parallel.dp.accumulation import accumulate
from dpbench.parallel.dp.data_parallel import DataParallel
from dpbench.parallel.dp.gather import gather
from dpbench.parallel.dp.scatter import NoScatter, balanced_split, scatter
from dpbench.parallel.local_device import local_device
from dpbench.parallel.local_sgd import LocalSGD
from dpbench.parallel.process_group import process_group
from dpbench.parallel.sync_gradients import sync_gradients

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "LocalSGD",
    "NoScatter",
    "RanksDiffer",
    "accumulate",
    "all_ranks",
    "any_rank",
    "available_backends",
    "balanced_split",
    "barrier",
    "broadcast_checkpoint",
    "check_sync",
    "gather",
    "local_device",
    "process_group",
    "scatter",
    "sync_gradients",
]
