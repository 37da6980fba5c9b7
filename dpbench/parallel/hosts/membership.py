"""The hosts of a group, and the ranks on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dpbench.parallel.shm.peers import Identity


@dataclass(frozen=True, slots=True)
class Hosts:
    """The ranks of a group by host.

    Attributes:
        ranks: for each host its ranks, sorted; hosts are in the order of their lowest ranks, which
            are their leaders.
        rank: this process.
        host: the number of its host.
    """

    ranks: tuple[tuple[int, ...], ...]
    rank: int
    host: int

    @classmethod
    def of(cls, keys: Sequence[str], rank: int) -> Self:
        """
        Args:
            keys: by rank; ranks with equal keys are on one host.
            rank: of this process.
        """
        by_key: dict[str, list[int]] = {}
        for other, key in enumerate(keys):
            by_key.setdefault(key, []).append(other)
        return cls(tuple(map(tuple, by_key.values())), rank, list(by_key).index(keys[rank]))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(map(len, self.ranks))

    @property
    def local(self) -> tuple[int, ...]:
        """The ranks of this process's host."""
        return self.ranks[self.host]

    @property
    def is_leader(self) -> bool:
        """Whether this rank exchanges data with the leaders of the other hosts."""
        return self.local[0] == self.rank

    def host_of(self, rank: int) -> int:
        """The number of a rank's host."""
        return next(host for host, ranks in enumerate(self.ranks) if rank in ranks)


def host_key() -> str:
    """A text that only processes have in common that can share memory: those of one host, and of
    one container on it."""
    identity = Identity.of_this_process(memory=-1)
    return f"{identity.boot} {identity.namespace}"
