"""A data-parallel group that trains nothing: its layers and its network are waits.

Every rank walks through the layers of a step and says when each gradient is ready, as autograd
does; its buckets fill and leave in order, as those of DistributedDataParallel do. One more task is
the network: an all-reduce at a time, each begun when all ranks have sent their part of it. Nothing
here knows the formulas of the simulation: what a step takes is what the clock says afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from dpbench.parallel.ddp.buckets import BucketCaps, assign_buckets
from dpbench.records.trial import GradientTrace

ELEMENT_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """With one gradient, ready when its backward pass has ended."""

    forward_seconds: float
    backward_seconds: float
    gradient_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Layers from the first to the last."""

    layers: tuple[Layer, ...]
    optimizer_seconds: float

    @property
    def forward_seconds(self) -> float:
        return sum(layer.forward_seconds for layer in self.layers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """α + s/B for an all-reduce of s bytes, however many ranks there are."""

    latency_seconds: float
    bytes_per_second: float

    def seconds(self, nbytes: float) -> float:
        return self.latency_seconds + nbytes / self.bytes_per_second


def now() -> float:
    return asyncio.get_running_loop().time()


class Timer:
    """Waits that add up: each begins where the one before should have ended.

    So one who wakes up late, as in real time all do, does not end late by the sum of his delays.
    """

    def __init__(self) -> None:
        self.due = now()

    async def wait(self, seconds: float) -> None:
        self.due += seconds
        await asyncio.sleep(max(0.0, self.due - now()))

    def begin(self, at: float) -> None:
        """What waits next has waited for something else until then."""
        self.due = max(self.due, at)


@dataclass(slots=True)
class AllReduce:
    """Sent when every rank has its part ready."""

    nbytes: int
    missing: int
    """Ranks that have not sent theirs."""
    sent_seconds: float
    done: asyncio.Event


class Wire:
    """What the ranks share: all-reduces in a queue, carried out one by one."""

    def __init__(self, network: Network, ranks: int) -> None:
        self._network = network
        self._ranks = ranks
        self._open: dict[int, AllReduce] = {}
        self._queue: asyncio.Queue[AllReduce] = asyncio.Queue()

    def send(self, number: int, nbytes: int) -> asyncio.Event:
        """One rank's part of the all-reduce of this number; the event is set at its end."""
        fresh = AllReduce(nbytes, self._ranks, 0.0, asyncio.Event())
        reduce = self._open.setdefault(number, fresh)
        reduce.missing -= 1
        if not reduce.missing:
            reduce.sent_seconds = now()
            self._queue.put_nowait(self._open.pop(number))
        return reduce.done

    async def carry(self) -> None:
        """For ever."""
        timer = Timer()
        while True:
            reduce = await self._queue.get()
            timer.begin(reduce.sent_seconds)
            await timer.wait(self._network.seconds(reduce.nbytes))
            reduce.done.set()


class Rank:
    """Steps through the model; gradients leave in buckets unless there is no wire."""

    def __init__(self, model: Model, caps_mb: Sequence[float], wire: Wire | None) -> None:
        self._model = model
        self._wire = wire
        self._timer = Timer()
        self._sent = 0
        sizes = [layer.gradient_bytes // ELEMENT_BYTES for layer in model.layers]
        gradients = [torch.empty(size, device="meta") for size in sizes]
        caps = BucketCaps.from_mebibytes(*caps_mb)
        backwards = range(len(sizes) - 1, -1, -1)
        self._buckets = [set(bucket) for bucket in assign_buckets(backwards, gradients, caps)]
        self._nbytes = [sum(gradients[i].nbytes for i in bucket) for bucket in self._buckets]
        self._left: list[set[int]] = []
        self._done: list[asyncio.Event] = []

    def restart(self) -> None:
        """The next step begins now."""
        self._timer.begin(now())

    async def step(self, *, accumulation_steps: int = 1, slowdown: float = 1.0) -> list[float]:
        """Returns when the gradient of each layer was ready, of the last micro-step."""
        for _ in range(accumulation_steps - 1):
            await self._passes(slowdown)
        if self._wire is not None:
            self._left = [set(bucket) for bucket in self._buckets]
        self._done = []
        ready = await self._passes(slowdown)
        for event in self._done:
            if not event.is_set():
                await event.wait()
                self._timer.begin(now())
        self._left = []
        await self._timer.wait(self._model.optimizer_seconds * slowdown)
        return ready

    async def _passes(self, slowdown: float) -> list[float]:
        """Forward and backward."""
        await self._timer.wait(self._model.forward_seconds * slowdown)
        ready = [0.0] * len(self._model.layers)
        for index, layer in reversed([*enumerate(self._model.layers)]):
            await self._timer.wait(layer.backward_seconds * slowdown)
            ready[index] = now()
            self._mark_ready(index)
        return ready

    def _mark_ready(self, index: int) -> None:
        """Sends the buckets that are full, none before those in front of it."""
        for bucket in self._left:
            bucket.discard(index)
        while self._wire and len(self._done) < len(self._left) and not self._left[len(self._done)]:
            nbytes = self._nbytes[len(self._done)]
            self._done.append(self._wire.send(self._sent, nbytes))
            self._sent += 1


async def train(
    model: Model,
    network: Network | None,
    *,
    steps: int,
    caps_mb: Sequence[float] = (1.0, 25.0),
    accumulation_steps: int = 1,
    slowdowns: Sequence[Sequence[float]] = ((1.0,), (1.0,)),
) -> list[list[float]]:
    """Seconds of each step of each rank.

    `slowdowns` has a row for each rank: factors on its computing, taken in turn. Without a network
    no rank waits for another. A first step is not counted.
    """
    wire = Wire(network, len(slowdowns)) if network else None

    async def run(own: Sequence[float]) -> list[float]:
        rank = Rank(model, caps_mb, wire)
        marks = []
        for number in range(steps + 1):
            slowdown = own[number % len(own)]
            await rank.step(accumulation_steps=accumulation_steps, slowdown=slowdown)
            marks.append(now())
        return [end - start for start, end in pairwise(marks)]

    carrier = asyncio.ensure_future(wire.carry()) if wire else None
    ranks = await asyncio.gather(*map(run, slowdowns))
    if carrier:
        carrier.cancel()
        await asyncio.gather(carrier, return_exceptions=True)
    return ranks


async def trace(model: Model, steps: int) -> GradientTrace:
    """What a rank alone notes of its steps."""
    rank = Rank(model, (25.0,), None)
    starts, ready, ends = [], [], []
    for _ in range(steps):
        rank.restart()
        starts.append(now())
        ready.append(await rank.step())
        ends.append(now())
    since = [[at - start for at in step] for start, step in zip(starts, ready, strict=True)]
    took = tuple(end - start for start, end in zip(starts, ends, strict=True))
    return GradientTrace(
        parameters=tuple(f"layer{number}" for number in range(len(model.layers))),
        gradient_bytes=tuple(layer.gradient_bytes for layer in model.layers),
        gradient_dtypes=("float32",) * len(model.layers),
        ready_seconds=tuple(map(tuple, since)),
        backward_start_seconds=(model.forward_seconds,) * steps,
        backward_end_seconds=tuple(max(step) for step in since),
        step_seconds=took,
        untraced_step_seconds=took,
    )
