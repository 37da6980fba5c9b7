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

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks

from dpbench.parallel import devices
from dpbench.parallel.dp.random_streams import RandomUse
from dpbench.parallel.dp.replicate import Replica
from dpbench.parallel.phase_clock import PhaseClock
from dpbench.parallel.tree import map_tensors, tensors

Call = tuple[tuple[Any, ...], dict[str, Any]]
Gradients = list[Tensor | None]
_PARALLEL_ELEMENTS = 2**17
"""Enough for torch to write them with two threads."""


class ParallelApply:
    """Calls replicas in their workers, and runs the backward of what they have recorded.

    The graph keeps it alive, so it must not hold the graph, as DataParallel does by its last loss.

    Attributes:
        reduced_bytes: bytes of dense gradients summed over replicas since construction.
    """

    def __init__(self, devices: Sequence[torch.device], clock: PhaseClock) -> None:
        self._workers, self._clock = WorkerPool(devices), clock
        on_cpu = devices[0].type == "cpu"
        # By whether some part of the module is in training mode.
        self._random = {mode: RandomUse(None if on_cpu else False) for mode in (False, True)}
        self.reduced_bytes = 0

    def forward(
        self,
        replicas: Sequence[Replica],
        calls: Sequence[Call],
        originals: list[nn.Parameter],
        *,
        reduces: bool,
    ) -> list[Any]:
        """The output of each replica, attached to the caller's graph.

        Args:
            calls: the positional and keyword arguments of each replica.
            originals: the trained parameters of the module itself, which get the gradients. A CPU
                replica reaches them through what it shares with the module, such as a forward hook
                that is a bound method; on CUDA, torch refuses tensors of another device.
            reduces: False gives the originals the gradients of replica 0 alone.

        Raises:
            RuntimeError: hooks for saved tensors are active, as in torch.utils.checkpoint.
            The exception of a replica, see WorkerPool.run.
        """
        # Raises this message if such hooks are active.
        with disable_saved_tensors_hooks(
            "torch.utils.checkpoint and other hooks for saved tensors do not reach the replicas of "
            "a DataParallel, which run in threads; use them on parts of its module instead"
        ):
            pass
        leaves: list[list[Tensor]] = [
            [p for p in replica.parameters if p.requires_grad] for replica in replicas
        ]
        sources: list[Tensor] = []
        if torch.is_grad_enabled():
            calls = [_cut(*pair, sources) for pair in zip(calls, leaves, strict=True)]

        def call(replica: Replica, modes: Any, args: Any, kwargs: Any, stream: Any) -> Any:
            with modes(), stream:
                return replica.module(*args, **kwargs)

        random = self._random[any(child.training for child in replicas[0].module.modules())]
        in_turn = random.draws is None  # until the first forward has shown it
        self._clock.enter("compute")
        with random.streams(len(replicas)) as streams:
            jobs = [
                partial(call, replica, caller_modes(replica.device), *pair, stream)
                for replica, pair, stream in zip(replicas, calls, streams, strict=True)
            ]
            outputs = self._workers.run(jobs, in_turn=in_turn)
        recorded = [[t for t in tensors(output) if t.requires_grad] for output in outputs]
        if not any(recorded):
            return outputs
        graphs = list(zip(leaves, map(len, recorded), strict=True))
        backward = partial(self._backward, originals, graphs, in_turn=in_turn, reduces=reduces)
        nodes = _AllReplicas.apply(backward, [*chain(*recorded)], *originals, *sources)  # type: ignore[no-untyped-call]
        attached = iter(nodes)
        return map_tensors(lambda t: next(attached) if t.requires_grad else t, outputs)  # type: ignore[no-any-return]

    def _backward(
        self,
        originals: list[nn.Parameter],
        graphs: Sequence[tuple[list[Tensor], int]],
        outputs: Sequence[Tensor],
        received: Sequence[Tensor | None],
        *,
        in_turn: bool,
        reduces: bool,
    ) -> Gradients:
        """The gradients of the originals, and of the inputs of all replicas. What the replicas have
        saved is freed as they go, also with retain_graph=True, so that there is no second backward.

        Args:
            graphs: by replica its leaves, the parameters that require a gradient and then its
                inputs; and the number of its outputs with a gradient.
            outputs: those outputs of all replicas.
            received: the gradients of the outputs.
        """
        every_end = list(zip(outputs, received, strict=True))
        ends_left = iter(every_end)
        device = self._workers.devices[0]
        self._clock.enter("compute")
        if device.type == "cuda":
            # A worker would wait for its device's autograd thread, which may be the thread that
            # waits here. A nested backward is served, on all devices at the same time.
            every_leaf = [leaf for leaves, _ in graphs for leaf in leaves]
            every_gradient = iter(_gradients(every_end, every_leaf, []))
            by_replica = [list(islice(every_gradient, len(leaves))) for leaves, _ in graphs]
        else:
            jobs = [
                partial(_gradients, [*islice(ends_left, count)], leaves, originals)
                for leaves, count in graphs
            ]
            by_replica = self._workers.run(jobs, in_turn=in_turn)
        trained = len(originals)
        of_inputs = chain.from_iterable(gradients[trained:] for gradients in by_replica)
        of_parameters = [gradients[:trained] for gradients in by_replica]
        total = of_parameters[0]
        if reduces:
            self._clock.enter("reduce")
            total = sum_over_replicas(of_parameters, device)
            dense = (g for g in total if g is not None and g.layout is torch.strided)
            self.reduced_bytes += sum(gradient.nbytes for gradient in dense)
        self._clock.enter(None)
        return [*total, *of_inputs]


def _cut(call: Call, leaves: list[Tensor], sources: list[Tensor]) -> Call:
    """Replace the tensors that require a gradient in a call by new leaves of the replica's graph.

    The replica gets copies of the leaves, since torch refuses writes to a leaf. Adds the leaves to
    `leaves`, and the tensors of the caller's graph that they stand for to `sources`.
    """
    copies: dict[int, Tensor] = {}

    def inside(tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        if id(tensor) not in copies:
            leaf = tensor.detach().requires_grad_()
            sources.append(tensor)
            leaves.append(leaf)
            copies[id(tensor)] = leaf.clone()
        return copies[id(tensor)]

    return map_tensors(inside, call)  # type: ignore[no-any-return]


class _AllReplicas(torch.autograd.Function):
    """The node that stands for all replicas; see the head of this file."""

    @staticmethod
    def forward(
        ctx: Any, run_backward: Callable[..., Gradients], outputs: list[Tensor], *_: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.run_backward = run_backward
        ctx.set_materialize_grads(False)
        # The outputs hold the replicas' graphs. Saved, torch says that they have been freed where a
        # second backward needs them.
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
        return (None, None, *ctx.run_backward(ctx.saved_tensors, received))


def _gradients(
    ends: Sequence[tuple[Tensor, Tensor | None]],
    leaves: Sequence[Tensor],
    originals: Sequence[Tensor],
) -> Gradients:
    """d(ends)/d(leaves) applied to the gradients of the ends. The gradients of `originals` count as
    those of the first leaves."""
    reached = [(output, gradient) for output, gradient in ends if gradient is not None]
    if not reached or not leaves:
        return [None] * len(leaves)
    outputs, starts = zip(*reached, strict=True)
    # One that was frozen since the forward has none, as in torch.
    places = [place for place, original in enumerate(originals) if original.requires_grad]
    inputs = [*leaves, *(originals[place] for place in places)]
    gradients: Gradients = list(torch.autograd.grad(outputs, inputs, starts, allow_unused=True))
    for index, direct in zip(places, gradients[len(leaves) :], strict=True):
        if direct is not None:
            of_leaf = gradients[index]
            gradients[index] = direct if of_leaf is None else of_leaf + direct
    return gradients[: len(leaves)]


def sum_over_replicas(
    replicas: Sequence[Sequence[Tensor | None]], device: torch.device
) -> Gradients:
    """Σ over the replicas of each gradient, in their order, on `device`; None where none has one.

    Not in place: a gradient may share its memory with that of another parameter.
    """
    total = list(replicas[0])
    dense: dict[int, Sequence[Tensor | None]] = {}
    if device.type == "cuda":
        for place, alike in enumerate(zip(*replicas, strict=True)):
            # NCCL, which torch asks if it is there, has no complex numbers.
            if all(g is not None and not (g.is_sparse or g.is_complex()) for g in alike):
                dense[place] = alike
        by_replica: Any = list(zip(*dense.values(), strict=True))
        # They travel in pieces of 10 MB, and not one by one.
        sums = devices.cuda.comm.reduce_add_coalesced(by_replica, device.index)
        for place, sum_ in zip(dense, sums, strict=True):
            total[place] = sum_
    for gradients in replicas[1:]:
        for place, gradient in enumerate(gradients):
            if gradient is not None and place not in dense:
                moved, before = gradient.to(device), total[place]
                total[place] = moved if before is None else before + moved
    return total


class WorkerPool:
    """A thread for each replica: started at first use, ended when the pool is garbage collected.

    Threads of CPU replicas divide the intra-op threads of the first caller evenly.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = tuple(devices)
        self._threads: list[ThreadPoolExecutor] = []

    def run(self, jobs: Sequence[Callable[[], Any]], *, in_turn: bool = False) -> list[Any]:
        """Run each job in the worker of its place and wait for all of them.

        Args:
            jobs: at most one for each device.
            in_turn: start each when the one before has ended.

        Raises:
            The failure with the lowest index, with a note of the replica and its device.
        """
        if not self._threads:
            # set_num_threads affects one thread only after the caller's count was initialized.
            total = torch.get_num_threads()
            limit = partial(_limit_threads, max(1, total // len(self.devices)))
            self._threads = [
                ThreadPoolExecutor(
                    max_workers=1,
                    thread_name_prefix=f"dpbench-replica-{index}",
                    initializer=limit if device.type == "cpu" else None,
                )
                for index, device in enumerate(self.devices)
            ]
        futures = []
        for thread, job in zip(self._threads, jobs, strict=False):
            futures.append(thread.submit(job))
            if in_turn:
                wait(futures)
        wait(futures)
        try:
            for index, future in enumerate(futures):
                if (error := future.exception()) is not None:
                    error.add_note(f"raised in replica {index} on device {self.devices[index]}")
                    raise error
            return [future.result() for future in futures]
        finally:
            # The traceback would keep these alive, and they the error with the replica's tensors.
            del futures, future, error


def _limit_threads(count: int) -> None:
    """Set the intra-op threads of this thread, and let idle OpenMP threads soon leave the cores.

    After each operation that the caller ran on several threads, such as the optimizer's, these spin
    for milliseconds on the cores that the replicas need: a step of mlp took twice the processor
    time. GNU's OpenMP shortens that a thousandfold while it has more threads than there are cores,
    which one parallel operation in each worker makes sure of.
    """
    torch.set_num_threads(2)
    torch.zeros(_PARALLEL_ELEMENTS)
    torch.set_num_threads(count)


def caller_modes(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Capture grad mode, inference mode, autocast and CUDA stream of the calling thread.

    Returns:
        A function that enters them in the worker of a replica on `device`.
    """
    modes: list[Callable[[], AbstractContextManager[Any]]] = [
        partial(torch.inference_mode, torch.is_inference_mode_enabled()),
        partial(torch.set_grad_enabled, torch.is_grad_enabled()),
    ]
    cache = torch.is_autocast_cache_enabled()
    for kind in {"cpu", device.type}:
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            modes.append(partial(torch.autocast, kind, dtype=dtype, cache_enabled=cache))
    if device.type == "cuda":
        modes.append(partial(devices.cuda.stream, devices.cuda.current_stream(device)))

    def enter() -> AbstractContextManager[Any]:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode())
            return stack.pop_all()

    return enter
