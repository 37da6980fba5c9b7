"""The backend "shm" of torch.distributed: ranks of one Linux host exchange data through memory.

dist.init_process_group("shm")        after `import dpbench`, or with new_group(backend="shm")
ShmProcessGroup                       such a group
ShmProcessGroup.allocate              memory in which it reduces without copying
arena_of                              such a group behind any process group, or None
"""

from __future__ import annotations

from dpbench.parallel.shm.creation import create
from dpbench.parallel.shm.process_group import ShmProcessGroup, arena_of

__all__ = ["ShmProcessGroup", "arena_of", "create"]
