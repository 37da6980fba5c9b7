"""The layout of a group's shared memory.

    state per rank: whether it has left or given up, and why flags per ordered pair of ranks:
    collectives; messages: a full, a free buffer slots per rank: two for small operations, used in
    turn staging for large ones, used in turn: two times a buffer per rank and one for results rings
    per ordered pair: two buffers for messages

Pages are taken when they are first touched: two chunks per rank, and two more, once a group has
done a large collective, and 64 KiB per pair that exchanges messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from dpbench.parallel.shm import semaphores

STATE_BYTES = 512
DESCRIPTOR_BYTES = 64
SLOT_BYTES = 64 * 1024
"""Largest operand of an operation that needs only one exchange of flags."""
SMALLEST_CHUNK = 1024 * 1024
"""Smallest chunk; two of them fit into the second-level cache of a core."""
SMALLEST_SHARE = 64 * 1024
"""Smallest share of a chunk that a rank reduces; for less, calls take longer than computing."""
MESSAGE_BYTES = 32 * 1024
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes, all on page boundaries."""

    size: int
    flags: int
    slots: int
    slot_bytes: int
    staging: int
    chunk_bytes: int
    rings: int
    nbytes: int

    @classmethod
    def of(cls, size: int) -> Self:
        """The layout for a group of `size` ranks."""
        flags = _pages(size * STATE_BYTES)
        slots = flags + _pages(3 * size * size * semaphores.SIZE)
        # A slot holds the descriptor, a number per rank, and the operand.
        slot_bytes = _pages(DESCRIPTOR_BYTES + 8 * size) + SLOT_BYTES
        staging = slots + 2 * size * slot_bytes
        chunk_bytes = max(SMALLEST_CHUNK, size * SMALLEST_SHARE)
        rings = staging + 2 * (size + 1) * chunk_bytes
        nbytes = rings + 2 * size * size * (PAGE + MESSAGE_BYTES)
        return cls(size, flags, slots, slot_bytes, staging, chunk_bytes, rings, nbytes)

    def state_of(self, rank: int) -> int:
        return rank * STATE_BYTES

    def collective_flag(self, poster: int, waiter: int) -> int:
        return self._flag(0, poster, waiter)

    def full_flag(self, sender: int, receiver: int) -> int:
        return self._flag(1, sender, receiver)

    def free_flag(self, sender: int, receiver: int) -> int:
        return self._flag(2, sender, receiver)

    def slot_of(self, rank: int, turn: int) -> int:
        return self.slots + (2 * rank + turn) * self.slot_bytes

    def operand_of(self, rank: int, turn: int) -> int:
        return self.slot_of(rank, turn) + self.slot_bytes - SLOT_BYTES

    def staging_of(self, rank: int, turn: int) -> int:
        """Offset of a buffer for one chunk; `rank=size` means the buffer for results."""
        return self.staging + (2 * rank + turn) * self.chunk_bytes

    def ring_of(self, sender: int, receiver: int, turn: int) -> int:
        """Offset of a page for the header of a message, followed by its bytes."""
        pair = sender * self.size + receiver
        return self.rings + (2 * pair + turn) * (PAGE + MESSAGE_BYTES)

    def _flag(self, kind: int, first: int, second: int) -> int:
        number = (kind * self.size + first) * self.size + second
        return self.flags + number * semaphores.SIZE


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
