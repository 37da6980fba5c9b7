"""A function on several ranks, from an ordinary program: for tests and small experiments.

python docs/recipes/own_world.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

import dpbench
from dpbench.launch.fork_world import fork_world


def sum_of_ranks(rank: int) -> float:
    """Runs in a process of its own; it must be importable, so it stands in a module."""
    with dpbench.process_group("shm"):
        value = torch.tensor([float(rank + 1)])
        dist.all_reduce(value)
        return value.item()


def main() -> list[float]:
    sums: list[float] = fork_world(sum_of_ranks, 2)
    print(sums)  # [3.0, 3.0]
    return sums


if __name__ == "__main__":  # each rank imports this file again
    main()
