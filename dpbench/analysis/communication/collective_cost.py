"""The cost of one all-reduce for any size and group size, and how well it is known.

Beyond a measured group size n₀ a model of the network scales the measured curve:

t(s, n) = t(s, n₀) + (latency(n) - latency(n₀)) ρ + bandwidth term(s, n) - bandwidth term(s, n₀)

ρ is the measured ÷ the modelled time of a message of next to nothing at n₀. With a ring of one
bandwidth B the last two terms are s (f(n) - f(n₀)) / B, f(n) = 2 (n-1)/n. If a collective takes
longer in a step than in consecutive calls, the terms grow by the same factor: memory that is cold
at n₀ is cold on every further hop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpbench import units
from dpbench.analysis.communication.bandwidth import bus_factor
from dpbench.analysis.communication.curves import CollectiveCurve
from dpbench.analysis.communication.topology import Topology, all_reduce_seconds
from dpbench.analysis.provenance import FARTHEST, Provenance
from dpbench.errors import UsageError
from dpbench.records.collectives import Collective
from dpbench.specs.traits import DEFAULT_CAP_MB, DEFAULT_FIRST_CAP_MB
from dpbench.units import MEBI

DISAGREEMENT = 2
"""Ratio of a measured curve to its topology, either way, from which a remark is made."""
CONTRADICTION = 5
"""Ratio at either end of the sizes from which a curve is taken to belong to another network."""
LARGE_BYTES = int(DEFAULT_CAP_MB * MEBI)
BUCKETS_BYTES = (int(DEFAULT_FIRST_CAP_MB * MEBI), LARGE_BYTES)
"""Sizes of the first bucket of torch's DistributedDataParallel, and of its others."""

NOT_USED = (
    "the curves that were measured are of another network: not used (another backend, other nodes, "
    f"or more than {CONTRADICTION} times faster or slower than the figures of this one)"
)

Model = Callable[[float, int], float]
"""Seconds of an all-reduce, from its bytes and the number of ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCost:
    """Cost of an all-reduce; made by `measured_cost` or `network_cost`."""

    curves: tuple[CollectiveCurve, ...]
    """Measured curves by rising group size, one for each."""
    model: Model | None
    """Model of the network; None means the ring that the curve at the largest group size
    suggests."""
    name: str
    """The network in words."""
    assumptions: tuple[str, ...] = ()
    """Assumptions in plain sentences."""
    largest: int | None = None
    """Largest group size for which the network is known; None means any."""
    latency_factor: float = 1.0
    bandwidth_factor: float = 1.0
    in_step: bool = True
    """Whether to use the curves measured as in a step, where available, rather than in consecutive
    calls."""
    broadcasts: tuple[CollectiveCurve, ...] = ()
    """Measured broadcasts, each at a group size of `curves`."""
    uncertainty: float | None = None
    """Factor by which the given network's figures may be off; see `Topology.uncertainty`."""
    wire_share: float = 1.0
    """Bytes that travel ÷ bytes of the gradients, which are what the methods are asked for."""

    def seconds(self, nbytes: float, group_size: int) -> float:
        """Seconds of one all-reduce; 0 for one rank or no bytes.

        Raises UsageError if `kind` is refused; `refusal` says why.
        """
        return self._all_reduce_seconds(self.wire_share * nbytes, group_size)

    def _all_reduce_seconds(self, nbytes: float, group_size: int) -> float:
        if (reason := self.refusal(group_size)) is not None:
            raise UsageError(reason)
        if group_size == 1 or nbytes <= 0:
            return 0.0
        took = self._seconds(nbytes, group_size)
        if self.latency_factor == self.bandwidth_factor == 1:
            return took
        latency = min(took, self._seconds(1.0, group_size))
        return latency * self.latency_factor + (took - latency) / self.bandwidth_factor

    def broadcast_seconds(self, nbytes: float, group_size: int) -> float:
        """Seconds of one broadcast; `broadcast_assumption` gives the source.

        At other group sizes than the measured ones, it scales like an all-reduce. Raises UsageError
        as `seconds`.
        """
        took = self._all_reduce_seconds(nbytes, group_size)
        if took == 0 or not self.broadcasts:
            return took
        nearest = min(self.broadcasts, key=lambda c: abs(math.log(c.group_size / group_size)))
        return nearest.seconds_at(nbytes) * took / self._seconds(nbytes, nearest.group_size)

    @property
    def broadcast_assumption(self) -> str:
        """Assumption for models with buffers, which a step broadcasts to all ranks."""
        if not self.broadcasts:
            return (
                "buffers are sent in the time of an all-reduce of their size: broadcasts were not "
                "measured on this network"
            )
        sizes = ", ".join(str(curve.group_size) for curve in self.broadcasts)
        return (
            f"buffers are sent in the time of a broadcast as measured at {sizes} ranks, one call "
            "after the other; at other group sizes broadcasts grow as all-reduces do"
        )

    def kind(self, group_size: int) -> Provenance:
        """Source of the result of `seconds` at a group size."""
        sizes = [curve.group_size for curve in self.curves]
        if group_size == 1 or group_size in sizes:
            return "measured"
        if self.refusal(group_size) is not None:
            return "refused"
        if sizes and sizes[0] < group_size < sizes[-1]:
            return "interpolated"
        return "extrapolated" if self.model is None else "projected"

    def refusal(self, group_size: int) -> str | None:
        """Why there is no number, with a remedy; None if there is one."""
        if group_size < 1:
            return f"group size {group_size}: expected 1 or more"
        if self.largest is not None and group_size > self.largest:
            return (
                f"{self.name} is one node of {self.largest} ranks; give a network with a link "
                "between nodes as --topology"
            )
        if group_size == 1 or self.model is not None:
            return None
        first, last = self.curves[0].group_size, self.curves[-1].group_size
        if group_size < first:
            return f"the smallest group measured is {first}; measure {group_size} too"
        if group_size > FARTHEST * last:
            return (
                f"the largest group measured is {last}, and {group_size} is more than {FARTHEST} "
                "times that; give the network as --topology"
            )
        return None

    @property
    def largest_bytes(self) -> int | None:
        """The largest measured message; None if nothing was measured."""
        sizes = [self.seen(curve).sizes_bytes[-1] for curve in self.curves]
        return min(sizes) if sizes else None

    def lost_share(self, nbytes: float) -> float:
        """Share of a rank's computing that is lost while a collective is running."""
        curve = self._overlapping
        return 0.0 if curve is None else curve.lost_share_at(self.wire_share * nbytes)

    def fill_seconds(self, nbytes: float) -> float:
        """Seconds that a rank needs to fill a bucket before it is sent; 0 if not measured."""
        filled = [curve.in_step for curve in self.curves if curve.in_step is not None]
        return filled[-1].fill_seconds_at(nbytes) if filled else 0.0

    def stretch(self, nbytes: float) -> float:
        """Factor by which a collective takes longer while the ranks compute."""
        curve = self._overlapping
        return 1.0 if curve is None else curve.stretch_at(self.wire_share * nbytes)

    def seen(self, curve: CollectiveCurve) -> CollectiveCurve:
        """The curve whose times count: see `in_step`."""
        return (curve.in_step or curve) if self.in_step else curve

    def compressed(self, wire_share: float) -> CollectiveCost:
        """The same network for gradients of which this share of their bytes travels."""
        if wire_share == 1:
            return self
        compression = (
            f"a communication hook sends {wire_share:g} of the bytes of the gradients: a bucket "
            "takes what an all-reduce of so many bytes takes, inside hosts too, and rounding takes "
            "no time"
        )
        return replace(self, wire_share=wire_share, assumptions=(*self.assumptions, compression))

    def scaled(self, *, latency: float = 1.0, bandwidth: float = 1.0) -> CollectiveCost:
        """The same cost with latency and bandwidth multiplied by these factors.

        The latency is the time of a message of one byte, the rest is due to bandwidth.
        """
        if not (latency >= 0 and bandwidth > 0):
            raise ValueError(f"expected positive factors, got {latency} and {bandwidth}")
        return replace(
            self,
            latency_factor=self.latency_factor * latency,
            bandwidth_factor=self.bandwidth_factor * bandwidth,
        )

    def _seconds(self, nbytes: float, n: int) -> float:
        below = [curve for curve in self.curves if curve.group_size <= n]
        above = [curve for curve in self.curves if curve.group_size >= n]
        if below and above:
            return self._interpolated(below[-1], above[0], nbytes, n)
        if below:
            return self._scaled(below[-1], nbytes, n)
        assert self.model is not None, "refusal() lets no smaller group through"
        return self.model(nbytes, n)

    def _interpolated(
        self, low: CollectiveCurve, high: CollectiveCurve, nbytes: float, n: int
    ) -> float:
        ends = [self.seen(curve).seconds_at(nbytes) for curve in (low, high)]
        if low is high:
            return ends[0]
        first, last = math.log(low.group_size), math.log(high.group_size)
        weight = (math.log(n) - first) / (last - first)
        return math.exp((1 - weight) * math.log(ends[0]) + weight * math.log(ends[1]))

    def _scaled(self, curve: CollectiveCurve, nbytes: float, n: int) -> float:
        """Scale a curve to `n` ranks. ρ is that of consecutive calls: sleeping threads are awake
        after the first hop."""
        model, n0 = self.model or _ring_of(curve), curve.group_size
        latency, was = model(0.0, n), model(0.0, n0)
        rho = curve.latency_seconds / was if was > 0 else 1.0
        bandwidth = (model(nbytes, n) - latency) - (model(nbytes, n0) - was)
        took = self.seen(curve).seconds_at(nbytes)
        cold = took / curve.seconds_at(nbytes)
        return took + (latency - was) * rho + bandwidth * cold

    @property
    def _overlapping(self) -> CollectiveCurve | None:
        curve = _with_overlaps(self.curves)
        return None if curve is None else self.seen(curve)


def measured_cost(
    curves: Sequence[CollectiveCurve], backend: str, *, in_step: bool = True
) -> CollectiveCost:
    """The cost from measured curves only: float32 all-reduces on one backend.

    With `in_step` the times are those in a step if measured, otherwise those of consecutive calls.

    Between measured group sizes the logarithm of the time is interpolated along the logarithm of
    the group size. Raises UsageError if there is no curve.
    """
    own = _own(curves, backend)
    if not own:
        have = sorted({f"{c.collective} on {c.backend}" for c in curves}) or ["nothing"]
        raise UsageError(
            f"no all_reduce of float32 on {backend} was measured at two sizes or more (there is "
            f"{', '.join(have)}); measure it with dpbench comm --backends {backend}"
        )
    last = own[-1]
    return CollectiveCost(
        curves=own,
        model=None,
        name=f"{backend} as measured",
        assumptions=(
            f"beyond {last.group_size} ranks collectives are a ring over links like those that "
            f"were measured: {units.seconds(_hop_seconds(last))} a message, "
            f"{_link_bandwidth(last) / units.GIGA:.3g} GB/s; no slower link between nodes",
            *_step_assumption(own, in_step=in_step),
            *_overlap_assumption(own),
        ),
        in_step=in_step,
        broadcasts=_broadcasts(curves, own),
    )


def network_cost(
    topology: Topology, curves: Sequence[CollectiveCurve] = (), *, in_step: bool = True
) -> CollectiveCost:
    """The cost on a given network; measured curves of that network are used and scaled.

    A curve counts as measured on the network if its backend is the topology's, its ranks were
    spread over as many nodes as the topology would use, and it is not `CONTRADICTION` times off.
    """
    own = tuple(
        curve
        for curve in _own(curves, topology.backend)
        if curve.nodes == topology.nodes(curve.group_size) and not _contradicts(curve, topology)
    )
    return CollectiveCost(
        curves=own,
        model=lambda nbytes, n: all_reduce_seconds(topology, nbytes, n),
        name=topology.name,
        largest=topology.ranks_per_node if topology.inter is None else None,
        assumptions=(
            _described(topology),
            "links carry nothing else, and no part of the network is congested",
            *_of_curves(topology, own, curves),
            *_step_assumption(own, in_step=in_step),
            *_overlap_assumption(own),
        ),
        in_step=in_step,
        broadcasts=_broadcasts(curves, own),
        uncertainty=topology.uncertainty,
    )


def _own(
    curves: Sequence[CollectiveCurve],
    backend: str | None,
    collective: Collective = "all_reduce",
) -> tuple[CollectiveCurve, ...]:
    """The float32 curves by rising group size; of equal ones the last measured."""
    found = {
        curve.group_size: curve
        for curve in curves
        if curve.collective == collective
        and curve.dtype == "float32"
        and backend in (None, curve.backend)
        and curve.group_size > 1
    }
    return tuple(found[n] for n in sorted(found))


def _broadcasts(
    curves: Sequence[CollectiveCurve], own: Sequence[CollectiveCurve]
) -> tuple[CollectiveCurve, ...]:
    """Broadcasts on the same network: those with an all-reduce measured too, on as many nodes."""
    return tuple(
        broadcast
        for reduce in own
        for broadcast in _own(curves, reduce.backend, "broadcast")
        if (broadcast.group_size, broadcast.nodes) == (reduce.group_size, reduce.nodes)
    )


def _contradicts(curve: CollectiveCurve, topology: Topology) -> bool:
    ends = ((curve.sizes_bytes[0], curve.seconds[0]), (curve.sizes_bytes[-1], curve.seconds[-1]))
    modelled = ((all_reduce_seconds(topology, s, curve.group_size), took) for s, took in ends)
    return any(not 1 / CONTRADICTION <= took / model <= CONTRADICTION for model, took in modelled)


def _hop_seconds(curve: CollectiveCurve) -> float:
    """Latency α of a ring: 2 (n-1) messages in a row."""
    return curve.latency_seconds / (2 * (curve.group_size - 1))


def _link_bandwidth(curve: CollectiveCurve) -> float:
    """Link bandwidth B of a ring."""
    return curve.bytes_per_second * bus_factor("all_reduce", curve.group_size)


def _ring_of(curve: CollectiveCurve) -> Model:
    hop, bandwidth = _hop_seconds(curve), _link_bandwidth(curve)
    return lambda nbytes, n: 2 * (n - 1) * hop + nbytes * bus_factor("all_reduce", n) / bandwidth


def _with_overlaps(curves: Sequence[CollectiveCurve]) -> CollectiveCurve | None:
    """The curve of the largest group that has overlap measurements."""
    return next((curve for curve in reversed(curves) if curve.overlaps), None)


def _step_assumption(curves: Sequence[CollectiveCurve], *, in_step: bool) -> tuple[str, ...]:
    """How the times that count differ from those of consecutive calls."""
    measured = [curve for curve in curves if in_step and curve.in_step is not None]
    if not measured:
        return ()
    curve, seen = measured[-1], measured[-1].in_step
    assert seen is not None
    sizes = [s for s in BUCKETS_BYTES if seen.covers(s)] or [seen.sizes_bytes[-1]]
    times = (
        f"{seen.seconds_at(s) / curve.seconds_at(s):.2g} times (of {units.bytes_binary(s)})"
        for s in sizes
    )
    return (
        "collectives take what they take in a step, where caches are cold and threads asleep: at "
        f"{curve.group_size} ranks {', '.join(times)} what they take one after the other; in "
        "larger groups every further byte takes as many times as long",
    )


def _overlap_assumption(curves: Sequence[CollectiveCurve]) -> tuple[str, ...]:
    curve = _with_overlaps(curves)
    if curve is None:
        return ("computing and collectives do not slow each other down: that was not measured",)
    return (
        "what computing and collectives cost each other is that measured at "
        f"{curve.group_size} ranks, at every group size, and of matrix products that stay in the "
        "caches: computing that waits for memory loses more",
    )


def _described(topology: Topology) -> str:
    inside = f"{topology.intra.bytes_per_second / units.GIGA:g} GB/s between ranks"
    if topology.ranks_per_node == 1 and topology.inter is not None:
        inside = f"{topology.inter.bytes_per_second / units.GIGA:g} GB/s for each"
    elif topology.inter is not None:
        across = topology.inter.bytes_per_second / units.GIGA
        inside += f" of a node, {across:g} GB/s for a whole node"
    ranks = units.counted(topology.ranks_per_node, "rank")
    known = "how far they may be off is not stated, so bands leave it out"
    if topology.uncertainty is not None:
        known = f"times of collectives may be {topology.uncertainty:g} × longer or shorter"
    return (
        f"{topology.name}: nodes of {ranks}, {inside} ({topology.source}; {topology.date}); {known}"
    )


def _of_curves(
    topology: Topology, own: Sequence[CollectiveCurve], every: Sequence[CollectiveCurve]
) -> tuple[str, ...]:
    if not own:
        return (NOT_USED,) if every else ()
    last = own[-1]
    took = last.seconds_at(LARGE_BYTES)
    modelled = all_reduce_seconds(topology, LARGE_BYTES, last.group_size)
    words = f"the curve measured with {last.backend} at {last.group_size} ranks is of this network"
    if not 1 / DISAGREEMENT < took / modelled < DISAGREEMENT:
        words += (
            f", though {units.bytes_binary(LARGE_BYTES)} took {units.seconds(took)} where its "
            f"figures say {units.seconds(modelled)}"
        )
    return (words,)
