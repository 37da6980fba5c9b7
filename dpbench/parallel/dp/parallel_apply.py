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

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpbench.parallel.dp.phases import PhaseClock
from dpbench.parallel.dp.random_streams import ReplicaStreams, saved_tensors_hooks
from dpbench.parallel.dp.reduction import Reduction
from dpbench.parallel.dp.replicate import Replica, new_leaf
from dpbench.parallel.dp.workers import Job, WorkerPool
from dpbench.parallel.tree import map_tensors, tensors

Call = tuple[tuple[Any, ...], dict[str, Any]]
Gradients = list[Tensor | None]
T = TypeVar("T")

NO_CHECKPOINT = (
    "torch.utils.checkpoint cannot repeat the forward of a DataParallel, whose replicas run in "
    "threads; checkpoint parts of its module instead"
)


@dataclass(frozen=True, slots=True)
class Backend:
    """Settings and workers that all forwards of one wrapper share."""

    workers: WorkerPool
    """The threads, at least one per replica."""
    reduction: Reduction
    clock: PhaseClock
    reduces: bool = True
    """False skips the reduction; the parameters then get the gradients of replica 0 alone."""


def parallel_apply(
    replicas: Sequence[Replica],
    calls: Sequence[Call],
    parameters: Sequence[Tensor],
    backend: Backend,
    streams: ReplicaStreams | None = None,
) -> list[Any]:
    """Call each replica with its arguments in its worker.

    Args:
        replicas: the modules.
        calls: each replica's positional and keyword arguments.
        parameters: the originals of `replica.parameters`, which get the gradients.
        backend: runs the replicas, and adds up their gradients in the backward.
        streams: random numbers for the replicas; None means the default generators.

    Returns:
        The output of each replica, attached to the caller's graph.

    Raises:
        RuntimeError: activation checkpointing around the wrapper, which numbers what is saved in
            one thread.
        The exception of a replica, see WorkerPool.run.
    """
    hooks = saved_tensors_hooks()
    # torch does not tell whose hooks they are.
    if hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint":
        raise RuntimeError(NO_CHECKPOINT)
    graphs = [_LocalGraph.of(replica) for replica in replicas]
    if torch.is_grad_enabled():
        calls = [graph.cut(call) for graph, call in zip(graphs, calls, strict=True)]
    entered = carry_thread_state(replica.device for replica in replicas)

    def job(index: int, replica: Replica, call: Call) -> Job:
        def forward() -> Any:
            with ExitStack() as stack:
                stack.enter_context(entered(replica.device))
                if streams is not None:
                    stack.enter_context(streams.entered(index))
                return replica.module(*call[0], **call[1])

        return forward

    jobs = {i: job(i, *pair) for i, pair in enumerate(zip(replicas, calls, strict=True))}
    with backend.clock.time("forward"):
        outputs = [output for _, output in sorted(backend.workers.run(jobs).items())]
    if not torch.is_grad_enabled():
        return outputs
    return _attach(_Region(graphs, parameters, backend, streams), outputs)


@dataclass(slots=True)
class _LocalGraph:
    """One replica's graph: its leaves (parameters, then inputs) and its outputs.

    Attributes:
        replica: the owner of the graph.
        sources: the tensors in the caller's graph that the inputs stand for.
        inputs: leaves that are no parameters: tensors from the call and from plain attributes.
        outputs: the outputs that require a gradient.
    """

    replica: Replica
    sources: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, replica: Replica) -> _LocalGraph:
        """The graph of a replica before its forward."""
        sources, leaves = zip(*replica.captured, strict=True) if replica.captured else ((), ())
        return cls(replica, list(sources), list(leaves))

    @property
    def leaves(self) -> list[Tensor]:
        return [*(p for p in self.replica.parameters if p.requires_grad), *self.inputs]

    def cut(self, tree: T) -> T:
        """Replace the tensors that require a gradient in a call by new inputs.

        The inputs are copies, since a module may write to its arguments: torch refuses that for a
        leaf, and the history of the written values would not reach the caller's tensor.
        """
        found: dict[int, Tensor] = {}

        def inside(tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                return tensor
            if id(tensor) not in found:
                leaf = new_leaf(tensor, self.replica.collecting)
                self.sources.append(tensor)
                self.inputs.append(leaf)
                found[id(tensor)] = leaf.clone()
            return found[id(tensor)]

        cut: T = map_tensors(inside, tree)
        return cut


def _gradients(
    graphs: Sequence[_LocalGraph],
    received: Sequence[Sequence[Tensor | None]],
    wanted: Sequence[Sequence[bool]],
    *,
    keep: bool,
) -> list[Gradients]:
    """d(outputs)/d(leaves) applied to the received gradients, in one pass over `graphs`.

    Args:
        graphs: the graphs of one or several replicas.
        received: the gradient of each output of each graph; None where it is zero.
        wanted: whether the gradient of each leaf of each graph is needed.
        keep: retain the graphs for another backward.

    Returns:
        The gradient of each leaf of each graph; None where there is none.
    """
    outputs = [output for graph in graphs for output in graph.outputs]
    reached = [
        (output, gradient)
        for output, gradient in zip(outputs, itertools.chain(*received), strict=True)
        if gradient is not None
    ]
    leaves = [leaf for graph in graphs for leaf in graph.leaves]
    inputs = list(itertools.compress(leaves, itertools.chain(*wanted)))
    if not reached or not inputs:
        return [[None] * len(wants) for wants in wanted]
    ends, starts = zip(*reached, strict=True)
    if len(inputs) < len(leaves):
        found: Iterator[Tensor | None] = iter(
            torch.autograd.grad(ends, inputs, starts, allow_unused=True, retain_graph=keep)
        )
    else:
        # The usual case, and the only one that reentrant checkpointing supports.
        found = _collected(graphs, ends, starts, keep=keep)
    return [[next(found) if want else None for want in wants] for wants in wanted]


def _collected(
    graphs: Sequence[_LocalGraph],
    ends: Sequence[Tensor],
    starts: Sequence[Tensor],
    *,
    keep: bool,
) -> Iterator[Tensor | None]:
    """The gradients of all leaves, collected in their `.grad`, which is left empty in any case."""
    leaves = [leaf for graph in graphs for leaf in graph.leaves]
    try:
        with ExitStack() as stack:
            for graph in graphs:
                stack.enter_context(graph.replica.collecting)
            torch.autograd.backward(ends, starts, retain_graph=keep)
        return iter([leaf.grad for leaf in leaves])
    finally:
        for leaf in leaves:
            leaf.grad = None


class _Region:
    """The replicas' graphs of one forward, until their backward."""

    def __init__(
        self,
        graphs: list[_LocalGraph],
        parameters: Sequence[Tensor],
        backend: Backend,
        streams: ReplicaStreams | None,
    ) -> None:
        self.graphs: list[_LocalGraph] | None = graphs
        self.trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.backend = backend
        self.streams = streams

    def backward(self, received: Sequence[Tensor | None], wanted: Sequence[bool]) -> Gradients:
        """Gradients of the parameters, summed over the replicas, then of all inputs in order."""
        if self.graphs is None:
            raise RuntimeError(
                "Trying to backward through the replicas' graph a second time, after it was "
                "freed. Give retain_graph=True to the first backward."
            )
        keep = _keeps_graph()
        graphs, count = self.graphs, len(self.trained)
        if not keep:
            self.graphs = None
        from_outputs, from_inputs = iter(received), iter(wanted[count:])
        mine = [list(itertools.islice(from_outputs, len(graph.outputs))) for graph in graphs]
        wants = [
            [*wanted[:count], *itertools.islice(from_inputs, len(graph.inputs))] for graph in graphs
        ]
        with self.backend.clock.time("backward"):
            results = self._run(graphs, mine, wants, keep=keep)
        inputs = itertools.chain.from_iterable(result[count:] for result in results)
        gradients = [result[:count] for result in results]
        if not self.backend.reduces:
            # Replica 0 stands for any: the result is for measuring only.
            return [*gradients[0], *inputs]
        # Collected in `.grad`, autograd hands out a copy of what anybody else refers to.
        are_own = all(itertools.chain(*wants))
        reduction, workers = self.backend.reduction, self.backend.workers
        with self.backend.clock.time("reduce"):
            return [*reduction.add(gradients, workers, are_own=are_own), *inputs]

    def _run(
        self,
        graphs: list[_LocalGraph],
        received: list[Gradients],
        wanted: list[list[bool]],
        *,
        keep: bool,
    ) -> list[Gradients]:
        """The gradients of each graph, computed in its worker (CPU) or in this thread (CUDA)."""
        if graphs[0].replica.device.type == "cuda":
            # A worker would wait for its device's autograd thread, which may be the thread that
            # waits here. A nested backward is served, on all devices at the same time.
            return _gradients(graphs, received, wanted, keep=keep)
        streams = self.streams

        def job(index: int) -> Job:
            one = slice(index, index + 1)

            def backward() -> Gradients:
                with streams.entered_backward() if streams else nullcontext():
                    [mine] = _gradients(graphs[one], received[one], wanted[one], keep=keep)
                return mine

            return backward

        found = self.backend.workers.run({i: job(i) for i in range(len(graphs))})
        return [found[i] for i in range(len(graphs))]


class _ParallelRegion(torch.autograd.Function):
    """The node that stands for all replicas; see the head of this file."""

    @staticmethod
    def forward(ctx: Any, region: _Region, *sources: Tensor) -> tuple[Tensor, ...]:
        ctx.region = region
        ctx.set_materialize_grads(False)
        assert region.graphs is not None
        return tuple(output.detach() for graph in region.graphs for output in graph.outputs)

    @staticmethod
    def backward(ctx: Any, *received: Tensor | None) -> tuple[Tensor | None, ...]:
        # Not once_differentiable, with which a gradient penalty would count as a constant.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "got create_graph=True, but the gradients of a DataParallel have no derivatives; "
                "call its module instead"
            )
        return (None, *ctx.region.backward(received, ctx.needs_input_grad[1:]))


def _attach(region: _Region, outputs: list[T]) -> list[T]:
    """The outputs, with the node as the origin of every tensor that requires a gradient."""
    graphs = region.graphs
    assert graphs is not None
    for graph, output in zip(graphs, outputs, strict=True):
        graph.outputs = [tensor for tensor in tensors(output) if tensor.requires_grad]
    if not any(graph.outputs for graph in graphs):
        return outputs
    sources = [source for graph in graphs for source in graph.sources]
    attached: Iterator[Tensor] = iter(
        _ParallelRegion.apply(region, *region.trained, *sources)  # type: ignore[no-untyped-call]
    )
    result: list[T] = map_tensors(
        lambda tensor: next(attached) if tensor.requires_grad else tensor, outputs
    )
    return result


def _keeps_graph() -> bool:
    """Whether the running backward was asked to retain the graph."""
    try:
        # Private, but torch tells it nowhere else; without it a second backward would fail.
        return bool(torch._C._autograd._get_current_graph_task_keep_graph())
    except AttributeError:
        return False


def carry_thread_state(
    devices: Iterable[torch.device],
) -> Callable[[torch.device], AbstractContextManager[None]]:
    """Capture grad mode, inference mode, autocast, saved-tensors hooks and CUDA streams of the
    calling thread.

    Args:
        devices: the devices the workers will use.

    Returns:
        A function from a device to the context to enter in its worker.
    """
    used = set(devices)
    gradients = torch.is_grad_enabled()
    inference = torch.is_inference_mode_enabled()
    cache = torch.is_autocast_cache_enabled()
    autocast = {
        kind: torch.get_autocast_dtype(kind)
        for kind in {"cpu"} | {device.type for device in used}
        if torch.is_autocast_enabled(kind)
    }
    hooks = saved_tensors_hooks()
    streams = {d: torch.cuda.current_stream(d) for d in used if d.type == "cuda"}

    @contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(gradients))
            for kind, dtype in autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cache))
            if hooks is not None:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*hooks))
            # Entering a stream also makes its device the current one.
            stream = streams.get(device)
            stack.enter_context(torch.cuda.stream(stream) if stream else contextlib.nullcontext())
            yield

    return entered
