"""The backend "shm" of torch.distributed: ranks of one Linux host exchange data through memory.

dist.init_process_group("shm")        after `import dpbench.parallel`
ShmProcessGroup                       such a group
allocate_group_zeros                  a tensor that a group reduces without copying it

Read `algorithms` first: it explains how ranks wait for each other. `memory` has the layout of what
they share, `member` one rank's view of it, `work_queue` the thread that runs collectives, and
`backend` the interface to torch.

A group has the collectives of data-parallel training only: no messages between two ranks, no
all_to_all, no sparse tensors. It takes CPU and CUDA tensors, the latter through the host, and is
the group of all devices: for "shm" on the CPU and nccl on GPUs make two groups.
"""

from __future__ import annotations

from dpbench.parallel.shm.backend import ShmProcessGroup, allocate_group_zeros

__all__ = ["ShmProcessGroup", "allocate_group_zeros"]
