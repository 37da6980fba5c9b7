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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dpbench.parallel.reduction import Reduction
from dpbench.parallel.replicate import Replica
from dpbench.parallel.thread_state import carry_thread_state
from dpbench.parallel.tree import map_tensors, tensors
from dpbench.parallel.workers import WorkerPool

Call = tuple[tuple[Any, ...], dict[str, Any]]
Gradients = list[Tensor | None]


def parallel_apply(
    replicas: Sequence[Replica],
    calls: Sequence[Call],
    parameters: Sequence[Tensor],
    workers: WorkerPool,
    reduction: Reduction,
    *,
    reduces: bool = True,
) -> list[Any]:
    """Call each replica with its arguments in its worker.

    Args:
        replicas: the modules.
        calls: positional and keyword arguments of each.
        parameters: the originals of `replica.parameters`, which get the gradients.
        workers: at least one per replica.
        reduction: adds up the gradients of the replicas in the backward.
        reduces: False leaves that out; the parameters get the gradients of replica 0 alone.

    Returns:
        The output of each replica, attached to the caller's graph.

    Raises:
        What a replica raises, see WorkerPool.run.
    """
    graphs = [_LocalGraph(replica) for replica in replicas]
    if torch.is_grad_enabled():
        calls = [graph.cut(call) for graph, call in zip(graphs, calls, strict=True)]
    entered = carry_thread_state(replica.device for replica in replicas)

    def job(replica: Replica, call: Call) -> Callable[[], Any]:
        def forward() -> Any:
            with entered(replica.device):
                return replica.module(*call[0], **call[1])

        return forward

    jobs = {i: job(*pair) for i, pair in enumerate(zip(replicas, calls, strict=True))}
    outputs = [output for _, output in sorted(workers.run(jobs).items())]
    if not torch.is_grad_enabled():
        return outputs
    return _attach(_Region(graphs, parameters, workers, reduction, reduces), outputs)


@dataclass(slots=True)
class _LocalGraph:
    """One replica's graph: its leaves (parameters, then inputs) and its outputs."""

    replica: Replica
    sources: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    @property
    def leaves(self) -> list[Tensor]:
        return [*(p for p in self.replica.parameters if p.requires_grad), *self.inputs]

    def cut(self, call: Call) -> Call:
        """The call with new leaves in place of the tensors that require a gradient."""
        leaves: dict[int, Tensor] = {}

        def leaf(tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                return tensor
            if id(tensor) not in leaves:
                leaves[id(tensor)] = tensor.detach().requires_grad_()
                self.sources.append(tensor)
            return leaves[id(tensor)]

        cut: Call = map_tensors(leaf, call)
        self.inputs = list(leaves.values())
        return cut


def _gradients(
    graphs: Sequence[_LocalGraph],
    received: Sequence[Sequence[Tensor | None]],
    wanted: Sequence[Sequence[bool]],
    keep: bool,
) -> list[Gradients]:
    """d(outputs)/d(leaves) applied to the received gradients, in one pass over `graphs`.

    Args:
        graphs: of one replica or several.
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
    found = iter(torch.autograd.grad(ends, inputs, starts, keep, allow_unused=True))
    return [[next(found) if want else None for want in wants] for wants in wanted]


class _Region:
    """The replicas' graphs of one forward, until their backward."""

    def __init__(
        self,
        graphs: list[_LocalGraph],
        parameters: Sequence[Tensor],
        workers: WorkerPool,
        reduction: Reduction,
        reduces: bool,
    ) -> None:
        self.graphs: list[_LocalGraph] | None = graphs
        self.trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.workers = workers
        self.reduction = reduction
        self.reduces = reduces

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
        results = self._run(graphs, mine, wants, keep)
        inputs = itertools.chain.from_iterable(result[count:] for result in results)
        gradients = [result[:count] for result in results]
        # Without a reduction replica 0 is as good as any: the result is for measuring only.
        summed = self.reduction.add(gradients) if self.reduces else gradients[0]
        return [*summed, *inputs]

    def _run(
        self,
        graphs: list[_LocalGraph],
        received: list[Gradients],
        wanted: list[list[bool]],
        keep: bool,
    ) -> list[Gradients]:
        """The gradients of each graph: on the CPU in its worker, on CUDA in this thread."""

        def job(*indices: int) -> Callable[[], list[Gradients]]:
            def pick(values: list[Any]) -> list[Any]:
                return [values[i] for i in indices]

            chosen = pick(graphs), pick(received), pick(wanted)
            return lambda: _gradients(*chosen, keep)

        cuda = [i for i, graph in enumerate(graphs) if graph.replica.device.type == "cuda"]
        cpu = [i for i in range(len(graphs)) if i not in cuda]
        results: dict[int, Gradients] = {}
        if cuda:
            # A worker would wait for the engine's thread of its device, which may be the one that
            # waits here. A backward nested in this one is served, all devices at the same time.
            results.update(zip(cuda, job(*cuda)(), strict=True))
        found = self.workers.run({i: job(i) for i in cpu})
        results.update((i, gradients) for i, [gradients] in found.items())
        return [results[i] for i in range(len(graphs))]


class _ParallelRegion(torch.autograd.Function):
    """The node that stands for all replicas; see the head of this file."""

    @staticmethod
    def forward(ctx: Any, region: _Region, *sources: Tensor) -> tuple[Tensor, ...]:
        ctx.region = region
        ctx.set_materialize_grads(False)
        assert region.graphs is not None
        return tuple(output.detach() for graph in region.graphs for output in graph.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *received: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, *ctx.region.backward(received, ctx.needs_input_grad[1:]))


def _attach(region: _Region, outputs: list[Any]) -> list[Any]:
    """The outputs with the node as origin of every tensor that requires a gradient."""
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
    result: list[Any] = map_tensors(
        lambda tensor: next(attached) if tensor.requires_grad else tensor, outputs
    )
    return result


def _keeps_graph() -> bool:
    """Whether the running backward was asked to retain the graph."""
    try:
        # The only place where torch tells it; without it, a second backward would be refused.
        return bool(torch._C._autograd._get_current_graph_task_keep_graph())
    except AttributeError:
        return False
