"""Point-to-point messages: two buffers for each pair of ranks, and queues that keep the order."""

from __future__ import annotations

import struct
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm.descriptor import Mismatch, dtype_code, dtype_name
from dpbench.parallel.shm.issuer import Issuer
from dpbench.parallel.shm.lane import Lane
from dpbench.parallel.shm.member import AnyOf, Member, Steps
from dpbench.parallel.shm.memory import MESSAGE_BYTES, PAGE
from dpbench.parallel.shm.operand import Operand
from dpbench.parallel.shm.semaphores import post, try_take

_HEADER = struct.Struct("<qqq")


class Header(NamedTuple):
    """Description of a message, placed before its first bytes."""

    tag: int
    dtype: int
    nbytes: int


class _Ring:
    """One end of the buffers between two ranks."""

    def __init__(self, member: Member, sender: int, receiver: int) -> None:
        peer = receiver if sender == member.rank else sender
        self.full = member.flag(member.layout.full_flag(sender, receiver), peer)
        self.free = member.flag(member.layout.free_flag(sender, receiver), peer)
        self._memory = member.memory
        self._offsets = [member.layout.ring_of(sender, receiver, turn) for turn in (0, 1)]
        self._buffers = [
            member.bytes[offset + PAGE : offset + PAGE + MESSAGE_BYTES] for offset in self._offsets
        ]
        self._turn = 0

    def next(self) -> Tensor:
        """The next buffer of the ring."""
        self._turn = 1 - self._turn
        return self._buffers[self._turn]

    def write_header(self, header: Header) -> None:
        """Write the header into the next buffer."""
        offset = self._offsets[1 - self._turn]
        self._memory[offset : offset + _HEADER.size] = _HEADER.pack(*header)

    def read_header(self) -> Header:
        """Read the header from the next buffer."""
        offset = self._offsets[1 - self._turn]
        return Header(*_HEADER.unpack(self._memory[offset : offset + _HEADER.size]))


class Outbox:
    """Sends to one rank."""

    def __init__(self, member: Member, receiver: int) -> None:
        self._member = member
        self._ring = _Ring(member, member.rank, receiver)

    def send(self, tensor: Tensor, tag: int) -> Steps[None]:
        """Send a tensor (1-D, contiguous) to the receiver."""
        header = Header(tag, dtype_code(tensor.dtype), tensor.nbytes)
        # A message without elements is still sent.
        for piece in torch.split(tensor.view(torch.uint8), MESSAGE_BYTES):
            yield from self._member.take(self._ring.free)
            self._ring.write_header(header)
            self._ring.next()[: piece.numel()].copy_(piece)
            self._member.told += 1
            post(self._ring.full.address)


class Inbox:
    """Receives from one rank."""

    def __init__(self, member: Member, sender: int) -> None:
        self.sender = sender
        self._member = member
        self._ring = _Ring(member, sender, member.rank)
        self.full = self._ring.full
        # Whether a message is being read from the ring; only its reader may continue.
        self._reading = False
        self._kept: defaultdict[int, deque[tuple[Header, Tensor]]] = defaultdict(deque)

    def accept(self, tag: int, tensor: Tensor) -> Steps[bool]:
        """Receive a message of the tag if one has come; never waits for one to begin.

        Args:
            tag: tag of the message; messages with other tags are kept.
            tensor: where it goes; 1-D, contiguous.

        Returns:
            Whether it was received.

        Raises:
            Mismatch: a message has come that does not fit the tensor.
        """
        if self._kept[tag]:
            header, data = self._kept[tag].popleft()
            self._require_match(header, tensor)
            tensor.view(torch.uint8).copy_(data)
            return True
        while not self._reading and not try_take(self.full.address):
            self._member.taken += 1
            self._member.told += 1
            header = self._ring.read_header()
            fits = header == Header(tag, dtype_code(tensor.dtype), tensor.nbytes)
            data = tensor.view(torch.uint8) if fits else _new_bytes(header.nbytes)
            yield from self._read(data)
            if header.tag == tag:
                self._require_match(header, tensor)
                return True
            self._kept[header.tag].append((header, data))
        return False

    def _read(self, data: Tensor) -> Steps[None]:
        """Read the message whose first buffer is full and whose token was taken."""
        self._reading = True
        for number, piece in enumerate(torch.split(data, MESSAGE_BYTES)):
            if number:
                yield from self._member.take(self.full)
            piece.copy_(self._ring.next()[: piece.numel()])
            post(self._ring.free.address)
        self._reading = False

    def _require_match(self, header: Header, tensor: Tensor) -> None:
        if (header.dtype, header.nbytes) != (dtype_code(tensor.dtype), tensor.nbytes):
            names = self._member.names
            raise Mismatch(
                f"ranks disagree: {names[self.sender]} sent {header.nbytes} bytes of "
                f"{dtype_name(header.dtype)}, but {names[self._member.rank]} expected "
                f"{tensor.nbytes} bytes of {tensor.dtype}"
            )


def _new_bytes(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, device="cpu")


def receive(inboxes: Sequence[Inbox], tag: int, tensor: Tensor) -> Steps[int]:
    """Receive a message from whichever of these ranks sends one first; returns the rank."""
    waiting = AnyOf(inbox.full for inbox in inboxes)
    while True:
        for inbox in inboxes:
            if (yield from inbox.accept(tag, tensor)):
                return inbox.sender
        yield waiting


# When there are more queues than this, idle ones are dropped.
_LANES = 64


class Mailbox:
    """The messages of one rank.

    Messages sent to one rank keep their order, and so do messages received with one tag.
    """

    def __init__(self, member: Member, issuer: Issuer) -> None:
        self._member = member
        self._issuer = issuer
        self._outboxes: dict[int, Outbox] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._sending: dict[int, Lane] = {}
        # One lane per sender and tag, so that none waits for another's message; but only one
        # at a time may read from the ring.
        self._receiving: dict[tuple[int, int], Lane] = {}
        self._reading = threading.Lock()
        self._guard = threading.Lock()

    def send(self, tensor: Tensor, receiver: int, tag: int) -> dist.Work:
        """Send a tensor to a rank."""
        self._require_rank(receiver)
        with self._guard:
            if receiver not in self._outboxes:
                self._outboxes[receiver] = Outbox(self._member, receiver)
                self._sending[receiver] = Lane(self._member)
        source = Operand(tensor)
        steps = self._outboxes[receiver].send(source.flat, tag)
        lane = self._sending[receiver]
        return self._issuer.issue("send", steps, lane, sources=[source], results=[tensor])

    def receive(self, tensor: Tensor, sender: int | None, tag: int) -> dist.Work:
        """Receive a tensor from a rank, or from any rank if `sender` is None."""
        if sender is not None:
            self._require_rank(sender)
        senders = self._others() if sender is None else [sender]
        with self._guard:
            for rank in senders:
                if rank not in self._inboxes:
                    self._inboxes[rank] = Inbox(self._member, rank)
        target = Operand(tensor, read=False, write=True)
        steps = receive([self._inboxes[rank] for rank in senders], tag, target.flat)
        lane = self._lane_of(-1 if sender is None else sender, tag)
        name = "recv" if sender is not None else "recvAnySource"
        return self._issuer.issue(name, steps, lane, targets=[target], results=[tensor])

    def lanes(self) -> list[Lane]:
        """All queues of messages."""
        return [*self._sending.values(), *self._receiving.values()]

    def _lane_of(self, sender: int, tag: int) -> Lane:
        with self._guard:
            if len(self._receiving) > _LANES:
                self._receiving = {key: lane for key, lane in self._receiving.items() if lane.queue}
            return self._receiving.setdefault((sender, tag), Lane(self._member, self._reading))

    def _require_rank(self, rank: int) -> None:
        if not 0 <= rank < self._member.size:
            raise ValueError(
                f"got rank {rank}, expected a rank of the group, below {self._member.size}"
            )

    def _others(self) -> Sequence[int]:
        return [rank for rank in range(self._member.size) if rank != self._member.rank]
