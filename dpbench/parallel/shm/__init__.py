"""The backend "shm" of torch.distributed: ranks of one Linux host exchange data through memory.

dist.init_process_group("shm")        after `import dpbench.parallel`
ShmProcessGroup                       such a group
arena_of                              memory in which a group reduces without copying, or None
"""

from __future__ import annotations

from dpbench.parallel.shm.creation import create
from dpbench.parallel.shm.process_group import ShmProcessGroup, arena_of

__all__ = ["ShmProcessGroup", "arena_of", "create"]
