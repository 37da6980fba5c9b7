"""Data-parallel training: one process with threads, or one process per rank.

A library of its own: it imports torch, and nothing else of dpbench. Importing it starts no
thread and does not touch CUDA.

    DataParallel              replicas in threads of this process, on any mix of devices
    DistributedDataParallel   one replica per process of a torch.distributed group
    scatter, gather           split a batch over devices and put outputs together again
    balanced_split            the sizes of the chunks
"""

from __future__ import annotations

from dpbench.parallel.data_parallel import DataParallel
from dpbench.parallel.distributed_data_parallel import DistributedDataParallel
from dpbench.parallel.gather import gather
from dpbench.parallel.scatter import balanced_split, scatter

__all__ = ["DataParallel", "DistributedDataParallel", "balanced_split", "gather", "scatter"]
