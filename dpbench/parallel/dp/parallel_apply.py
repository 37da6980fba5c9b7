"""Run the replicas in their threads, forward and backward, as one node of the autograd graph.

torch's engine runs all nodes on the CPU in the thread that called backward, so replicas on the
CPU that were part of the caller's graph would compute their gradients one after the other. Here
each replica has a graph of its own, from leaves to outputs, built in its worker. In the caller's
graph they are one node, from the original parameters and the scattered inputs to the replicas'
outputs, and its backward runs every replica's graph in that replica's worker:

    original parameters ─┐                                 ┌─ outputs of replica 0 ─┐
                         ├─ one node (workers, reduction) ─┤                        ├─ gather
    scattered inputs ────┘                                 └─ outputs of replica 1 ─┘
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks

from dpbench.parallel.dp.phases import PhaseClock
from dpbench.parallel.dp.random_streams import ReplicaStreams
from dpbench.parallel.dp.replicate import Replica
from dpbench.parallel.dp.workers import WorkerPool
from dpbench.parallel.tree import map_tensors, tensors

Call = tuple[tuple[Any, ...], dict[str, Any]]
Gradients = list[Tensor | None]


@dataclass(slots=True)
class Backend:
    """The workers, the clock and the counters that all forwards of one wrapper share."""

    workers: WorkerPool
    clock: PhaseClock
    reduced_bytes: int = 0
    """Bytes of dense gradients summed over replicas."""
    reductions: int = 0
    """Backward passes in which gradients were summed."""


@dataclass(frozen=True, slots=True)
class _LocalGraph:
    """The leaves of one replica's graph: its parameters, and the inputs that need a gradient."""

    replica: Replica
    sources: list[Tensor] = field(default_factory=list)
    """The tensors of the caller's graph that the inputs stand for."""
    inputs: list[Tensor] = field(default_factory=list)

    @property
    def leaves(self) -> list[Tensor]:
        return [*(p for p in self.replica.parameters if p.requires_grad), *self.inputs]

    def cut(self, call: Call) -> Call:
        """Replace the tensors that require a gradient in a call by new inputs.

        The replica gets copies of the inputs, since torch refuses writes to a leaf.
        """
        found: dict[int, Tensor] = {}

        def inside(tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                return tensor
            if id(tensor) not in found:
                leaf = tensor.detach().requires_grad_()
                self.sources.append(tensor)
                self.inputs.append(leaf)
                found[id(tensor)] = leaf.clone()
            return found[id(tensor)]

        return map_tensors(inside, call)  # type: ignore[no-any-return]


def parallel_apply(
    replicas: Sequence[Replica],
    calls: Sequence[Call],
    parameters: Sequence[Tensor],
    backend: Backend,
    *,
    streams: ReplicaStreams | None = None,
    reduces: bool = True,
) -> list[Any]:
    """Call each replica with its arguments in its worker.

    Args:
        replicas: the modules.
        calls: each replica's positional and keyword arguments.
        parameters: the originals of `replica.parameters`, which get the gradients.
        backend: runs the replicas, and counts.
        streams: random numbers for the replicas; None means the default generators.
        reduces: False gives the parameters the gradients of replica 0 alone.

    Returns:
        The output of each replica, attached to the caller's graph.

    Raises:
        RuntimeError: hooks for saved tensors are active, as in torch.utils.checkpoint.
        The exception of a replica, see WorkerPool.run.
    """
    # Raises this if there are any.
    with disable_saved_tensors_hooks(
        "torch.utils.checkpoint and other hooks for saved tensors do not reach the replicas of a "
        "DataParallel, which run in threads; use them on parts of its module instead"
    ):
        pass
    graphs = [_LocalGraph(replica) for replica in replicas]
    if torch.is_grad_enabled():
        calls = [graph.cut(call) for graph, call in zip(graphs, calls, strict=True)]
    entered = _carried_modes(replica.device for replica in replicas)

    def forward(index: int) -> Any:
        replica, (args, kwargs) = replicas[index], calls[index]
        stream = streams.entered(index) if streams else nullcontext()
        with entered(replica.device), stream:
            return replica.module(*args, **kwargs)

    with backend.clock.time("forward"):
        outputs = backend.workers.run([partial(forward, i) for i in range(len(replicas))])
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    recorded = [[t for t in tensors(output) if t.requires_grad] for output in outputs]
    if not any(recorded):
        return outputs
    step = _Step(graphs, [len(mine) for mine in recorded], len(trained), backend, reduces)
    sources = itertools.chain.from_iterable(graph.sources for graph in graphs)
    attached: Iterator[Tensor] = iter(
        _AllReplicas.apply(step, list(itertools.chain(*recorded)), *trained, *sources)  # type: ignore[no-untyped-call]
    )
    return map_tensors(lambda t: next(attached) if t.requires_grad else t, outputs)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Step:
    """The replicas' graphs of one forward, and how to run their backward.

    Attributes:
        output_counts: outputs with a gradient of each replica.
        trained: parameters that require a gradient; they are the first leaves of each graph.
    """

    graphs: list[_LocalGraph]
    output_counts: list[int]
    trained: int
    backend: Backend
    reduces: bool

    def backward(
        self, outputs: Sequence[Tensor], received: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> Gradients:
        """Gradients of the parameters, summed over the replicas, then of all inputs in order."""
        of_outputs, of_inputs = zip(outputs, received, strict=True), iter(wanted[self.trained :])
        jobs = [
            (
                list(itertools.islice(of_outputs, count)),
                graph.leaves,
                [*wanted[: self.trained], *itertools.islice(of_inputs, len(graph.inputs))],
            )
            for graph, count in zip(self.graphs, self.output_counts, strict=True)
        ]
        device = self.graphs[0].replica.device
        with self.backend.clock.time("backward"):
            if device.type == "cuda":
                # A worker would wait for its device's autograd thread, which may be the thread that
                # waits here. A nested backward is served, on all devices at the same time.
                ends, leaves, wants = (
                    list(itertools.chain(*each)) for each in zip(*jobs, strict=True)
                )
                together = iter(_gradients(ends, leaves, wants))
                found = [list(itertools.islice(together, len(mine))) for _, mine, _ in jobs]
            else:
                found = self.backend.workers.run([partial(_gradients, *job) for job in jobs])
        inputs = itertools.chain.from_iterable(one[self.trained :] for one in found)
        gradients = [one[: self.trained] for one in found]
        if not self.reduces:
            return [*gradients[0], *inputs]
        with self.backend.clock.time("reduce"):
            total = sum_over_replicas(gradients, device)
            self.backend.reductions += any(gradient is not None for gradient in total)
            self.backend.reduced_bytes += sum(
                g.nbytes for g in total if g is not None and g.layout is torch.strided
            )
        return [*total, *inputs]


def _gradients(
    ends: Sequence[tuple[Tensor, Tensor | None]], leaves: Sequence[Tensor], wanted: Sequence[bool]
) -> Gradients:
    """d(ends)/d(leaves) applied to the gradients of the ends; None for what is not wanted.

    The graph is retained: it is freed with the node of the caller's graph that holds its outputs.
    """
    reached = [(output, gradient) for output, gradient in ends if gradient is not None]
    inputs = list(itertools.compress(leaves, wanted))
    if not reached or not inputs:
        return [None] * len(leaves)
    outputs, starts = zip(*reached, strict=True)
    found = iter(torch.autograd.grad(outputs, inputs, starts, allow_unused=True, retain_graph=True))
    return [next(found) if want else None for want in wanted]


class _AllReplicas(torch.autograd.Function):
    """The node that stands for all replicas; see the head of this file."""

    @staticmethod
    def forward(ctx: Any, step: _Step, outputs: list[Tensor], *_: Tensor) -> tuple[Tensor, ...]:
        ctx.step = step
        ctx.set_materialize_grads(False)
        # The outputs hold the replicas' graphs. Saved, they are freed after a backward unless the
        # caller retains the graph, and torch says so where a second backward needs them.
        ctx.save_for_backward(*outputs)
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *received: Tensor | None) -> tuple[Tensor | None, ...]:
        # Not once_differentiable, with which a gradient penalty would count as a constant.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "got create_graph=True, but the gradients of a DataParallel have no derivatives; "
                "call its module instead"
            )
        wanted = ctx.needs_input_grad[2:]
        return (None, None, *ctx.step.backward(ctx.saved_tensors, received, wanted))


def sum_over_replicas(
    replicas: Sequence[Sequence[Tensor | None]], device: torch.device
) -> Gradients:
    """Σ over the replicas of each gradient, in their order, on `device`; None where none has one.

    Not in place: a gradient may share its memory with that of another parameter.
    """
    total = list(replicas[0])
    for gradients in replicas[1:]:
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                there, sum_ = gradient.to(device), total[i]
                total[i] = there if sum_ is None else sum_ + there
    return total


def _carried_modes(
    devices: Iterable[torch.device],
) -> Callable[[torch.device], AbstractContextManager[None]]:
    """Capture grad mode, inference mode, autocast and CUDA streams of the calling thread.

    Returns:
        A function from a device to the context to enter in its worker.
    """
    used = set(devices)
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    cache = torch.is_autocast_cache_enabled()
    autocast = {
        kind: torch.get_autocast_dtype(kind)
        for kind in {"cpu"} | {device.type for device in used}
        if torch.is_autocast_enabled(kind)
    }
    streams = {d: torch.cuda.current_stream(d) for d in used if d.type == "cuda"}

    @contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(gradients))
            for kind, dtype in autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cache))
            if stream := streams.get(device):
                # Entering a stream also makes its device the current one.
                stack.enter_context(torch.cuda.stream(stream))
            yield

    return entered
