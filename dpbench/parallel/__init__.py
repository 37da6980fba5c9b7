"""Data-parallel training: one process with threads, or one process per rank.

A library of its own: it imports torch and psutil, and nothing else of dpbench. Importing it
registers the backend "shm" with torch.distributed; it starts no thread and does not touch CUDA.

docs/parallel.md lists its names. `dpbench.rendezvous` has what a process needs to join a group of
torch.distributed, and to leave it.
"""

from __future__ import annotations

import torch.distributed as dist

from dpbench.parallel.agreement import (
    RanksDiffer,
    broadcast_checkpoint,
    check_sync,
    sync_gradients,
)
from dpbench.parallel.ddp.distributed_data_parallel import DistributedDataParallel
from dpbench.parallel.dp.data_parallel import DataParallel
from dpbench.parallel.dp.scatter_gather import balanced_split, gather, scatter
from dpbench.parallel.groups import all_reduce, any_rank
from dpbench.parallel.sharded.optimizer import ShardedOptimizer
from dpbench.parallel.shm.backend import create_shm_group

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "RanksDiffer",
    "ShardedOptimizer",
    "all_reduce",
    "any_rank",
    "balanced_split",
    "broadcast_checkpoint",
    "check_sync",
    "gather",
    "scatter",
    "sync_gradients",
]

dist.Backend.register_backend("shm", create_shm_group, extended_api=True, devices=["cpu", "cuda"])
