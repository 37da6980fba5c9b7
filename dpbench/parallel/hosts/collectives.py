"""Collectives of ranks on several hosts: inside a host through memory, outside among the leaders.

Tensors are 1-D, contiguous and in the memory of the process. They are taken in chunks, so that one
chunk crosses the network while the ranks of a host work on the next. What a host sends is what one
rank of it would send if it were alone there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.hosts.all_reduce import HostsAllReduce, staggered
from dpbench.parallel.hosts.carrier import Carrier, Crossing
from dpbench.parallel.hosts.membership import Hosts
from dpbench.parallel.shm import exchanges, reductions
from dpbench.parallel.shm.arena import Arena
from dpbench.parallel.shm.descriptor import pack
from dpbench.parallel.shm.member import Member, Steps
from dpbench.parallel.shm.operators import Operator
from dpbench.parallel.shm.reductions import split_into

CHUNK_BYTES = 1024 * 1024
"""Long on the wire beside its latency, and short beside an operand; `all_reduce` has its own, for
buckets of gradients."""


class HostsCollectives:
    """
    Attributes:
        rank, size: of this process in the group, and the number of ranks.
    """

    def __init__(
        self,
        hosts: Hosts,
        member: Member,
        arena: Arena,
        leaders: Carrier | None,
        everyone: Carrier,
    ) -> None:
        """
        Args:
            hosts: where the ranks are.
            member: this rank's place on its host.
            arena: memory of the ranks of this host.
            leaders: reaches the other leaders; None unless this rank is one.
            everyone: reaches all ranks, for what has no better way.
        """
        self.rank, self.size = hosts.rank, hosts.size
        self._hosts = hosts
        self._member = member
        self._leaders = leaders
        self._all_reduce = HostsAllReduce(hosts, member, arena, leaders)
        self._everyone = everyone

    def barrier(self) -> Steps[None]:
        yield from self._member.meet(pack("barrier"))
        if self._leaders is not None:
            each = [1] * len(self._hosts.ranks)
            signs = torch.zeros(len(each), dtype=torch.uint8, device="cpu")
            crossing = self._leaders.exchange(signs, each, torch.empty_like(signs), each)
            yield from self._leaders.arrival(crossing)
        yield from self._member.barrier()

    def all_reduce(self, tensor: Tensor, operator: Operator) -> Steps[None]:
        """Every rank gets the reduction in place of its operand."""
        if tensor.numel():
            yield from self._all_reduce.run(tensor, operator)
        else:
            yield from self.barrier()

    def reduce(self, tensor: Tensor, operator: Operator, root: int) -> Steps[None]:
        """The root gets the reduction in place of its operand; the others keep theirs."""
        if not tensor.numel():
            yield from self.barrier()
            return
        partial = replace(operator, average=False)
        chunks = torch.split(tensor, max(1, CHUNK_BYTES // tensor.itemsize))
        home = self._hosts.host_of(root)
        waiting: dict[int, tuple[Tensor, Crossing]] = {}

        def collect(number: int) -> Steps[None]:
            total = chunks[number].clone()
            yield from self._reduce_here(total, partial)
            if self._leaders is not None:
                waiting[number] = self._send_home(total, home)

        def deliver(number: int) -> Steps[None]:
            total = torch.empty_like(chunks[number])
            if self._leaders is not None:
                operands, crossing = waiting.pop(number)
                yield from self._leaders.arrival(crossing)
                if home == self._hosts.host:
                    operator.reduce(self._by_host(operands), out=total, ranks=self.size)
            if home == self._hosts.host:
                yield from self._broadcast_here(total, 0)
            if root == self.rank:
                chunks[number].copy_(total)

        yield from staggered(len(chunks), collect, deliver)

    def reduce_scatter(
        self, inputs: Sequence[Tensor], output: Tensor, operator: Operator
    ) -> Steps[None]:
        """Rank r gets the reduction of all ranks' r-th input; inputs may differ in size."""
        longest = max(tensor.numel() for tensor in inputs)
        if not longest:
            yield from self.barrier()
            return
        partial, dtype = replace(operator, average=False), output.dtype
        share, count = _shares(longest, dtype.itemsize, self.size)
        pieces = [split_into(tensor, share, count) for tensor in inputs]
        targets = split_into(output, share, count)
        waiting: dict[int, tuple[Tensor, Crossing]] = {}

        def collect(number: int) -> Steps[None]:
            packed = _joined(pieces[rank][number] for ranks in self._hosts.ranks for rank in ranks)
            total = packed.view(dtype)
            yield from self._reduce_here(total, partial)
            if self._leaders is not None:
                counts = self._counts(pieces, number)
                own = [counts[self._hosts.host]] * len(counts)
                operands = torch.empty(sum(own), dtype=dtype, device="cpu")
                crossing = self._leaders.exchange(total, counts, operands, own)
                waiting[number] = operands, crossing

        def deliver(number: int) -> Steps[None]:
            sizes = [pieces[rank][number].numel() for rank in self._hosts.local]
            total = torch.empty(sum(sizes), dtype=dtype, device="cpu")
            if self._leaders is not None:
                operands, crossing = waiting.pop(number)
                yield from self._leaders.arrival(crossing)
                operator.reduce(self._by_host(operands), out=total, ranks=self.size)
            yield from self._broadcast_here(total, 0)
            own = torch.split(total, sizes)[self._hosts.local.index(self.rank)]
            targets[number].copy_(own)

        yield from staggered(count, collect, deliver)

    def broadcast(self, tensor: Tensor, root: int) -> Steps[None]:
        """Every rank gets the root's tensor."""
        if not tensor.numel():
            yield from self.barrier()
            return
        chunks = torch.split(_bytes(tensor), CHUNK_BYTES)
        home = self._hosts.host_of(root)
        options = dist.BroadcastOptions()
        options.rootRank = home
        waiting: dict[int, Crossing] = {}

        def send(number: int) -> Steps[None]:
            if home == self._hosts.host:
                yield from self._broadcast_here(chunks[number], self._hosts.local.index(root))
            if self._leaders is not None:
                work = self._leaders.gloo.broadcast([chunks[number]], options)
                waiting[number] = self._leaders.begin(work)

        def spread(number: int) -> Steps[None]:
            if self._leaders is not None:
                yield from self._leaders.arrival(waiting.pop(number))
            if home != self._hosts.host:
                yield from self._broadcast_here(chunks[number], 0)

        yield from staggered(len(chunks), send, spread)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Steps[None]:
        """Every rank gets all ranks' tensors, which may differ in size."""
        longest = max(output.numel() for output in outputs)
        if not longest:
            yield from self.barrier()
            return
        share, count = _shares(longest * tensor.itemsize, 1, self.size)
        own = split_into(_bytes(tensor), share, count)
        pieces = [split_into(_bytes(output), share, count) for output in outputs]
        waiting: dict[int, tuple[Tensor, Crossing]] = {}

        def send(number: int) -> Steps[None]:
            here = [pieces[rank][number] for rank in self._hosts.local]
            yield from exchanges.all_gather(self._member, here, own[number])
            if self._leaders is not None:
                block, counts = _joined(here), self._counts(pieces, number)
                whole = torch.empty(sum(counts), dtype=torch.uint8, device="cpu")
                hosts = len(counts)
                sent = [block.numel()] * hosts
                crossing = self._leaders.exchange(block.repeat(hosts), sent, whole, counts)
                waiting[number] = whole, crossing

        def spread(number: int) -> Steps[None]:
            order = [rank for ranks in self._hosts.ranks for rank in ranks]
            sizes = [pieces[rank][number].numel() for rank in order]
            whole = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")
            if self._leaders is not None:
                whole, crossing = waiting.pop(number)
                yield from self._leaders.arrival(crossing)
            yield from self._broadcast_here(whole, 0)
            for rank, piece in zip(order, torch.split(whole, sizes), strict=True):
                if rank not in self._hosts.local:
                    pieces[rank][number].copy_(piece)

        yield from staggered(count, send, spread)

    def gather(self, outputs: Sequence[Tensor], tensor: Tensor, root: int) -> Steps[None]:
        """The root gets all ranks' tensors; elsewhere `outputs` is empty. Over gloo."""
        if not tensor.numel():
            yield from self.barrier()
            return
        options = dist.GatherOptions()
        options.rootRank = root
        targets = [[_bytes(output) for output in outputs]] if outputs else []
        gloo = self._everyone.gloo
        yield from self._over_gloo(gloo.gather(targets, [_bytes(tensor)], options))

    def scatter(self, output: Tensor, inputs: Sequence[Tensor], root: int) -> Steps[None]:
        """Rank r gets the root's r-th tensor; elsewhere `inputs` is empty. Over gloo."""
        if not output.numel():
            yield from self.barrier()
            return
        options = dist.ScatterOptions()
        options.rootRank = root
        sources = [[_bytes(piece) for piece in inputs]] if inputs else []
        gloo = self._everyone.gloo
        yield from self._over_gloo(gloo.scatter([_bytes(output)], sources, options))

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Steps[None]:
        """Rank r gets in outputs[s] what rank s has in inputs[r]. Over gloo."""
        sent, received = [t.nbytes for t in inputs], [t.nbytes for t in outputs]
        target = torch.empty(sum(received), dtype=torch.uint8, device="cpu")
        crossing = self._everyone.exchange(_joined(inputs), sent, target, received)
        yield from self._everyone.arrival(crossing)
        for output, piece in zip(outputs, torch.split(target, received), strict=True):
            _bytes(output).copy_(piece)

    def _over_gloo(self, work: dist.Work) -> Steps[None]:
        yield from self._everyone.arrival(self._everyone.begin(work))

    def _reduce_here(self, tensor: Tensor, operator: Operator) -> Steps[None]:
        """The leader gets the reduction of its host in place of its operand."""
        if self._member.size > 1:
            yield from reductions.reduce(self._member, tensor, operator, 0)

    def _broadcast_here(self, tensor: Tensor, root: int) -> Steps[None]:
        """The ranks of this host get the tensor of one of them; `root` is its number here."""
        if self._member.size > 1:
            yield from exchanges.broadcast(self._member, tensor, root)

    def _send_home(self, total: Tensor, home: int) -> tuple[Tensor, Crossing]:
        """Begin to gather the totals of all hosts on one of them."""
        assert self._leaders is not None
        hosts = len(self._hosts.ranks)
        sent = [total.numel() if host == home else 0 for host in range(hosts)]
        received = [total.numel() if home == self._hosts.host else 0] * hosts
        operands = torch.empty(sum(received), dtype=total.dtype, device="cpu")
        return operands, self._leaders.exchange(total, sent, operands, received)

    def _counts(self, pieces: Sequence[Sequence[Tensor]], chunk: int) -> list[int]:
        """Elements of a chunk for each host: of the pieces of its ranks."""
        return [sum(pieces[rank][chunk].numel() for rank in ranks) for ranks in self._hosts.ranks]

    def _by_host(self, operands: Tensor) -> Sequence[Tensor]:
        """Operands of one size from each host."""
        return operands.tensor_split(len(self._hosts.ranks))


def _shares(longest: int, itemsize: int, size: int) -> tuple[int, int]:
    """Elements of each rank in a chunk, and the number of chunks."""
    share = max(1, CHUNK_BYTES // itemsize // size)
    return share, -(-longest // share)


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    """The bytes of all tensors, one after the other."""
    return torch.cat([_bytes(tensor) for tensor in tensors])


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)
