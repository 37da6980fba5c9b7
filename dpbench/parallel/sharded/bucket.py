"""A bucket of which each rank averages and steps a share: gradients and parameters, both flat."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat
from operator import attrgetter, is_not

import torch
from torch import Tensor, nn

from dpbench.parallel.ddp.bucket_kinds import LocalBucket
from dpbench.parallel.ddp.comm_hooks import Hook
from dpbench.parallel.flat import ALIGNMENT_BYTES, copy_all, packed_bytes, views_in
from dpbench.parallel.sharded.shares import ShareExchange, Wait
from dpbench.parallel.shm.memory import LINE_BYTES

_GRADIENT = attrgetter("grad")


class ShardedBucket(LocalBucket):
    """The flat gradients and the flat parameters of some parameters, in one share per rank.

    It has the attributes and methods of a Bucket, but a backward leaves the average in this rank's
    share only, and no `.grad` at all. The parameters become views of the flat ones.

    Attributes:
        indices: the parameters' indices in the reducer.
        parameters: the parameters themselves.
        waiting: indices whose gradient has not arrived yet in the running backward.
        nbytes: bytes of the gradients.
        gradients, values: flat; this rank's share of `gradients` holds averages.
        begin, end: where this rank's share begins and ends, in elements.
        offsets: where each parameter begins, by its index.
        present: indices of the parameters that have a gradient, on any rank.
        is_spent: whether the optimizer has stepped with these gradients.
    """

    def __init__(
        self, indices: Sequence[int], parameters: Sequence[nn.Parameter], exchange: ShareExchange
    ) -> None:
        """Move the parameters at `indices`, which have one dtype and device, into the bucket; a
        collective where memory is shared."""
        super().__init__(indices)
        self.parameters = [parameters[index] for index in indices]
        self.nbytes = sum(parameter.nbytes for parameter in self.parameters)
        self._exchange = exchange
        first = self.parameters[0]
        item = first.element_size()
        self._alignment = max(ALIGNMENT_BYTES, item)
        line = max(1, LINE_BYTES // item)
        used = packed_bytes(self.parameters, self._alignment) // item
        share = -(-used // (exchange.size * line)) * line
        self.begin, self.end = exchange.rank * share, (exchange.rank + 1) * share
        count = share * exchange.size
        self._gradient_shares = exchange.zeros(count, first.dtype, first.device)
        self._value_shares = exchange.zeros(count, first.dtype, first.device)
        self.gradients, self.values = self._gradient_shares.flat, self._value_shares.flat
        self._gradient_views = self._views(self.gradients)
        places = self._views(self.values)
        start = self.values.storage_offset()
        self.offsets = {
            index: int(view.storage_offset() - start)
            for index, view in zip(self.indices, places, strict=True)
        }
        with torch.no_grad():
            copy_all(places, self.parameters)
            for parameter, place in zip(self.parameters, places, strict=True):
                parameter.data = place
        self.present: set[int] = set()
        self.is_spent = False
        self._reduction: Wait | None = None
        self._scale = 1.0
        self._earlier: Tensor | None = None
        self._kept: list[tuple[int, Tensor]] = []

    @property
    def own_gradients(self) -> Tensor:
        """The averages in this rank's share."""
        return self.gradients[self.begin : self.end]

    def views_of(self, flat: Tensor) -> dict[int, Tensor]:
        """Views of a flat tensor of any dtype, in the shapes of the parameters, by index."""
        start = flat.storage_offset()
        return {
            index: flat.as_strided(view.size(), view.stride(), start + self.offsets[index])
            for index, view in zip(self.indices, self._gradient_views, strict=True)
        }

    def gather(self) -> Wait:
        """Begin to give all ranks the parameters that each has stepped; a collective.

        Returns:
            Waits until this rank has the parameters of all ranks.
        """
        return self._value_shares.gather()

    @property
    def is_due(self) -> bool:
        """Whether the share has gradients that no step has used."""
        return bool(self.present) and not self.is_spent

    def zero(self, set_to_none: bool) -> None:
        """Drop the gradients, or set them to zero."""
        self.is_spent = False
        if set_to_none:
            self.present.clear()
        else:
            self.own_gradients.zero_()

    def arm(self) -> None:
        """Prepare for a forward whose backward fills the bucket."""
        self._exchange.settle()

    def collect(self, scale: float, missing: Collection[int] = ()) -> list[int]:
        """Take all gradients, for a mean over the ranks with this factor; `.grad` becomes None.

        Returns:
            The indices of the parameters without a gradient, and of those in `missing`, which have
            an older one at most. It counts if another rank has a gradient; else it is restored.

        Raises:
            RuntimeError: a gradient is sparse, or part of a graph.
        """
        gradients: list[Tensor | None] = list(map(_GRADIENT, self.parameters))
        for gradient in gradients:
            if gradient is not None and (gradient.is_sparse or gradient.requires_grad):
                kind = "sparse" if gradient.is_sparse else "part of a graph (create_graph=True)"
                raise RuntimeError(
                    f"got a gradient that is {kind}, expected a plain one, as ShardedOptimizer "
                    "reduces them in a flat tensor; use the optimizer without it"
                )
        self._begin_anew()
        with torch.no_grad():
            if all(map(is_not, gradients, repeat(None))):
                copy_all(self._gradient_views, gradients)  # type: ignore[arg-type]
            else:
                self._copy_some(gradients)
            # Before the sum only where the sum could overflow: of one share there is less to scale.
            if self.gradients.dtype == torch.float16:
                self.gradients.mul_(scale)
                scale = 1.0
        self._scale = scale
        without = []
        for index, parameter, gradient in zip(
            self.indices, self.parameters, gradients, strict=True
        ):
            if gradient is None or index in missing:
                without.append(index)
            if gradient is not None and index in missing:
                self._kept.append((index, gradient))
            parameter.grad = None
        return without

    def clear(self) -> None:
        """Set the gradients to zero, for a rank that has no data."""
        self._begin_anew()
        self.gradients.zero_()

    def send(self, *, average: bool, hook: Hook | None, number: int, last: bool) -> None:
        """Start the sum over the ranks, or the mean, of each rank's share."""
        self._reduction = self._gradient_shares.reduce(self._scale, average=average)

    def wait(self) -> None:
        """Wait until this rank's share holds averages."""
        if self._reduction is None:
            return
        wait, self._reduction = self._reduction, None
        wait()
        if self._earlier is not None:
            self.own_gradients.add_(self._earlier)
            self._earlier = None

    def finish(self, keep: Collection[int] = ()) -> None:
        """Wait for the averages.

        Args:
            keep: indices of parameters without a gradient on any rank.
        """
        self.wait()
        self.present.update(index for index in self.indices if index not in keep)
        for index, gradient in self._kept:
            if index in keep:
                self.parameters[self.indices.index(index)].grad = gradient
        self._kept = []

    def _begin_anew(self) -> None:
        """Prepare for new gradients, which are added to those that no step has used."""
        if self.is_spent:
            self.zero(set_to_none=True)
        self._earlier = self.own_gradients.clone() if self.present else None

    def _copy_some(self, gradients: Sequence[Tensor | None]) -> None:
        """Copy the gradients that there are; the others are zero."""
        places = list(zip(self._gradient_views, gradients, strict=True))
        torch._foreach_zero_([view for view, gradient in places if gradient is None])
        found = [(view, gradient) for view, gradient in places if gradient is not None]
        copy_all([view for view, _ in found], [gradient for _, gradient in found])

    def _views(self, flat: Tensor) -> list[Tensor]:
        return views_in(flat.view(torch.uint8), self.parameters, self._alignment)
