"""Data-parallel training: one process with threads, or one process per rank.

A library of its own: it imports torch and psutil, and nothing else of dpbench. Importing it
registers the backend "shm" with torch.distributed; it starts no thread and does not touch CUDA.

    DataParallel              replicas in threads of this process: all on GPUs, or all on the CPU
    accumulate                its gradient of several micro-batches, weighted by their sizes
    scatter, gather           split a batch over devices and put outputs together again
    NoScatter                 marks an input that every replica gets whole
    balanced_split            the sizes of the chunks

    DistributedDataParallel   one replica per process of a torch.distributed group
    HierarchicalState, hierarchical   a communication hook: first inside each host, then between
    ShardedOptimizer          steps its parameters, on each rank a share, with a part of the state
    LocalSGD                  train each replica alone, and average the parameters now and then
    sync_gradients            average the gradients of a plain module, once
    check_sync                do all ranks hold the same values? RanksDiffer if not
    broadcast_checkpoint      give all ranks the values of one
    any_rank                  decide together

`dpbench.rendezvous` has what a process needs to join such a group, and to leave it.
"""

from __future__ import annotations

import torch.distributed as dist

from dpbench.parallel.agreement import RanksDiffer, check_sync
from dpbench.parallel.ddp.distributed_data_parallel import DistributedDataParallel
from dpbench.parallel.dp.data_parallel import DataParallel, accumulate
from dpbench.parallel.dp.scatter_gather import NoScatter, balanced_split, gather, scatter
from dpbench.parallel.groups import any_rank
from dpbench.parallel.hierarchical import HierarchicalState, hierarchical
from dpbench.parallel.sharded.optimizer import ShardedOptimizer
from dpbench.parallel.shm import create
from dpbench.parallel.synchronization import LocalSGD, broadcast_checkpoint, sync_gradients

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "HierarchicalState",
    "LocalSGD",
    "NoScatter",
    "RanksDiffer",
    "ShardedOptimizer",
    "accumulate",
    "any_rank",
    "balanced_split",
    "broadcast_checkpoint",
    "check_sync",
    "gather",
    "hierarchical",
    "scatter",
    "sync_gradients",
]

dist.Backend.register_backend("shm", create, extended_api=True, devices=["cpu", "cuda"])
