"""Sending and receiving, with the queues that keep messages in order."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.shm.issuer import Issuer
from dpbench.parallel.shm.lane import Lane
from dpbench.parallel.shm.member import Member
from dpbench.parallel.shm.messages import Inbox, Outbox, receive
from dpbench.parallel.shm.operand import Operand

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
