"""DistributedDataParallel: one replica per process, gradients averaged during backward."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel as TorchDdp
from torch.nn.parameter import is_lazy

from dpbench.parallel.agreement import make_equal
from dpbench.parallel.compiled import leave_uncompiled
from dpbench.parallel.ddp.buckets import MEBIBYTE, Bucket, caps_in_bytes
from dpbench.parallel.ddp.reducer import Hook, Reducer
from dpbench.parallel.ddp.usage import FindUnused, GradientUsage, StaticGraph
from dpbench.parallel.devices import DeviceLike, parse_device
from dpbench.parallel.groups import max_over_ranks, member_group
from dpbench.parallel.state_dicts import LoadsUnwrapped
from dpbench.parallel.torch_private import (
    NoLoggingData,
    broadcast_coalesced,
    compiled_in_buckets,
    version,
)
from dpbench.parallel.tree import move


class DistributedDataParallel(LoadsUnwrapped, NoLoggingData, TorchDdp):
    """Keeps `module` equal on all ranks of a process group, each with its own part of the data.

    A drop-in for torch.nn.parallel.DistributedDataParallel, whose documentation holds here too. It
    subclasses that class so that others recognize it, and shares `no_sync` and `join` with it, but
    neither its constructor nor its reducer.

        with dpbench.process_group() as ranks:
            model = DistributedDataParallel(module.to(ranks.device))
            criterion(model(inputs), targets).backward()  # .grad is the mean over the ranks
            optimizer.step()

    The page dpbench.parallel of the documentation has the differences, and what is not supported.
    Settings that all ranks must share are compared with the parameters. With several ranks on one
    host, the backend `shm` reduces buckets in place. A group of one has nothing to reduce, and
    checks nothing.

    Args:
        module, device_ids, broadcast_buffers, init_sync, process_group, bucket_cap_mb,
            find_unused_parameters, gradient_as_bucket_view, static_graph, device_mesh,
            forward_sync_buffers, bucket_cap_mb_list: as in torch's class.
        output_device: has no effect: outputs stay where the module makes them. The attribute is the
            device id.
        dim, check_reduction, not_offered: other arguments of torch's class, at their defaults.
        overlap: average full buckets while backward goes on. False averages all of them after it:
            the same gradients, to measure the gain of overlap.

    Attributes:
        broadcast_bytes: bytes of buffers sent before forwards since construction.

    Raises:
        TypeError: the module is no torch.nn.Module.
        RuntimeError: there is no process group, nothing in the module requires a gradient, or it
            differs between the ranks (raised on all of them).
        ValueError: more than one device id, one that is not the module's GPU, a cap that is not
            above zero, or an argument that is not offered.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[DeviceLike] | None = None,
        output_device: DeviceLike | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        *,
        device_mesh: DeviceMesh | None = None,
        forward_sync_buffers: bool | None = None,
        bucket_cap_mb_list: Sequence[float] | None = None,
        overlap: bool = True,
        **not_offered: Any,
    ) -> None:
        if not isinstance(module, nn.Module):
            got = type(module).__name__
            raise TypeError(f"module: got a value of type {got}; expected a torch.nn.Module")
        nn.Module.__init__(self)
        Joinable.__init__(self)
        _refuse({"dim": dim, "check_reduction": check_reduction, **not_offered})
        if any(map(is_lazy, chain(module.parameters(), module.buffers()))):
            raise RuntimeError(
                "Modules with uninitialized parameters can't be used with `DistributedDataParallel`"
                ". Run a dummy forward pass to correctly initialize the modules"
            )
        broadcasts = broadcast_buffers is not False
        forwards = broadcasts if forward_sync_buffers is None else forward_sync_buffers
        if device_mesh is not None:
            if process_group is not None:
                raise RuntimeError("Cannot specify both process_group and device_mesh arguments.")
            if device_mesh.ndim != 1:
                raise RuntimeError(f"Only 1D device mesh is supported, but got {device_mesh}.")
            self.device_mesh = device_mesh
            process_group = device_mesh.get_group(mesh_dim=0)
        self.process_group = member_group(process_group, "DistributedDataParallel")
        self._input_device = _input_device(module, device_ids)
        self.device_ids = [self._input_device.index] if self._input_device else None
        self.output_device = self.device_ids[0] if self.device_ids else None
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.forward_sync_buffers = forwards
        self.overlap = overlap
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self.broadcast_bytes = 0
        self._caps = caps_in_bytes(bucket_cap_mb, bucket_cap_mb_list)
        # The compiler rejects a cap below that of torch's first bucket.
        self.bucket_bytes_cap = max(self._caps[-1], MEBIBYTE)
        self._hook: Hook | None = None
        self.module = module
        # A join context may be active, in which sums over the ranks are divided by all of them.
        self._may_join, self._divides_by_all = False, True
        self._without_gradient: list[nn.Parameter] | None = None
        # The buffers of the last broadcast, and how often each had been written to after it.
        self.modules_buffers: list[Tensor] = []
        self._buffer_versions: dict[int, int] = {}
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameter "
                "that requires a gradient."
            )
        if init_sync:
            self._make_equal(with_buffers=broadcasts)
        self._build_reducer()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call `module`; with gradients enabled, prepare the reduction of the next backward.

        Raises:
            RuntimeError: the last backward left out parameters, which on a CPU without a
                communication hook all ranks raise, or a parameter that was frozen at construction
                is trained now.
        """
        trains = torch.is_grad_enabled()
        syncs = trains and self.require_backward_grad_sync
        # A group of one has nothing to average.
        reduces = syncs and (dist.get_world_size(self.process_group) > 1 or self._hook is not None)
        if reduces:
            for name, parameter in self._frozen:
                if parameter.requires_grad:
                    raise RuntimeError(
                        f"parameter {name!r} was frozen when the module was wrapped, and requires "
                        "a gradient now, which would not be averaged; wrap the module again"
                    )
            self._reducer.close_last_backward()
        divisor = self._notify_joined_ranks(syncs=reduces) if trains and self._may_join else None
        if reduces:
            self._reducer.ensure_buckets(reorder=self.training)
        # Without gradients too, so that ranks which re-estimate statistics do not drift apart.
        if trains or not self._may_join:
            self._send_buffers()
        if self._input_device is not None:
            args, kwargs = move((args, kwargs), self._input_device)
        with (
            torch.autograd.profiler.record_function("DistributedDataParallel.forward"),
            compiled_in_buckets(self),
        ):
            output = self.module(*args, **kwargs)
        if reduces:
            output = self._reducer.arm(output, divisor)
        if trains and self.training and self.require_forward_param_sync is not syncs:
            self.require_forward_param_sync = syncs  # a module takes microseconds to set it
        return output

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Have `hook(state, bucket)` communicate each bucket; before training, once, on all ranks.

        Args:
            state: passed to the hook.
            hook: gets a Bucket with this rank's gradients, not divided, and returns a future of
                the tensor that replaces them. Torch's own hooks work.

        Raises:
            RuntimeError: there is one already.
        """
        if self._hook is not None:
            raise RuntimeError(
                "register_comm_hook or register_builtin_comm_hook can only be called once."
            )
        self._hook = partial(hook, state)
        self._reducer.hook = self._hook

    def keep_buckets(self, *, overlap: bool) -> Sequence[Bucket]:
        """Make the buckets before the first forward, and keep their order after it; a collective on
        `shm`. It is for hooks that divide other tensors in the same way.

        A hook that communicates at the end of backward (`overlap=False`) has one bucket for each
        dtype and device, unless the wrapper was given a cap: ranks wait for each other less often.
        """
        merges = not overlap and self._caps == caps_in_bytes(None, None)
        return self._reducer.keep_buckets((sys.maxsize,) if merges else self._caps)

    @property
    def reduced_bytes(self) -> int:
        """Bytes of dense gradients sent from this rank since construction."""
        return self._reducer.reduced_bytes

    @property
    def device(self) -> torch.device:
        """Device of the first parameter."""
        device: torch.device = next(self.module.parameters()).device
        return device

    def join_hook(self, **kwargs: Any) -> Any:
        """The JoinHook for torch.distributed.algorithms.Join, which calls this as it begins."""
        self._may_join, self._without_gradient = True, None
        self._divides_by_all = kwargs.get("divide_by_initial_world_size", True)
        return SimpleNamespace(main_hook=self.take_part_in_step, post_hook=self.end_join)

    def _notify_joined_ranks(self, *, syncs: bool) -> int | None:
        """Tell the ranks without data that this one continues, and whether its backward reduces.

        Returns what the sums over the ranks are divided by; None means the number of ranks.
        """
        notice = Join.notify_join_context(self)
        # None unless a context is active in which the wrapper is the first joinable.
        self._may_join = notice is not None
        if notice is None:
            return None
        (active,) = notice.get_future().wait()
        max_over_ranks(int(syncs), self.process_group, device=self.device)
        return None if self._divides_by_all else int(active.item())

    def take_part_in_step(self) -> None:
        """Take part in a step of the ranks that have data, as a rank that has none left.

        These send: how many they are (torch's context); whether the step reduces; where it does,
        the order of the buckets, once; the buffers; and where it does, the buckets. This rank gets
        the average gradients too, for an optimizer that repeats the others' steps.
        """
        if self._without_gradient is None:
            self._without_gradient = [p for p in self.module.parameters() if p.grad is None]
        syncs = max_over_ranks(0, self.process_group, device=self.device) == 1
        if syncs:
            self._reducer.ensure_buckets(reorder=self.training)
        self._send_buffers(has_data=False)
        if self.training:
            self.require_forward_param_sync = syncs
        if syncs:
            self._reducer.reduce_zeros()

    def end_join(self, is_last_joiner: bool) -> None:
        """Give all ranks the model of one that was last, when all are done; a collective."""
        root = self._last_rank(is_last_joiner)
        self._make_equal(with_buffers=self.forward_sync_buffers, root=root)
        for parameter in self._without_gradient or ():
            parameter.grad = None
        self._may_join = False  # torch leaves the context on, at two collectives a step

    def _last_rank(self, candidate: bool) -> int:
        """The last rank of the group among the candidates; a collective."""
        rank = dist.get_rank(self.process_group) if candidate else -1
        return max_over_ranks(rank, self.process_group, device=self.device)

    def _make_equal(self, *, with_buffers: bool, root: int = 0) -> None:
        """Compare settings and tensors over the ranks, and copy one rank's values to all."""
        options = {
            "bucket caps": self._caps,
            "forward_sync_buffers": self.forward_sync_buffers,
            "find_unused_parameters": self.find_unused_parameters,
            "static_graph": self.static_graph,
        }
        parameters = self.module.named_parameters()
        buffers = self.module.named_buffers() if with_buffers else ()
        make_equal("DDP", self.process_group, parameters, buffers, options, root=root)

    def _build_reducer(self) -> None:
        leave_uncompiled(Reducer, "close_last_backward", "ensure_buckets", "arm", "reduce_zeros")
        leave_uncompiled(DistributedDataParallel, "_send_buffers")
        parameters = list(self.module.named_parameters())
        self._frozen = [(name, p) for name, p in parameters if not p.requires_grad]
        trained = [(name, p) for name, p in parameters if p.requires_grad]
        kind = FindUnused if self.find_unused_parameters else GradientUsage
        usage = StaticGraph if self.static_graph else kind
        self._reducer = Reducer(
            trained,
            sparse_weights(self.module),
            self.process_group,
            usage(len(trained), self.process_group, trained[0][1].device),
            caps=self._caps,
            as_view=self.gradient_as_bucket_view,
            overlap=self.overlap,
        )
        self._reducer.hook = self._hook

    def _send_buffers(self, *, has_data: bool = True) -> None:
        """Send the buffers of the last rank that has data to all, where a forward has to.

        Autograd must notice the write where a graph may have saved the values: in a buffer that is
        new, or that the module has written to, since the last broadcast. It must not notice it in
        the running statistics of a batch norm, which torch writes to without counting, as two
        forwards may share a backward.
        """
        if not (self.training and self.require_forward_param_sync and self.forward_sync_buffers):
            return
        if not (buffers := list(self.module.buffers())):
            return
        known = self._buffer_versions
        targets = [b.data if known.get(id(b)) == version(b) else b for b in buffers]
        root = self._last_rank(has_data) if self._may_join else 0
        self.broadcast_bytes += broadcast_coalesced(targets, self.process_group, root)
        self.modules_buffers = buffers  # keeps their ids from others
        self._buffer_versions = {id(buffer): version(buffer) for buffer in buffers}

    def __getstate__(self) -> dict[str, Any]:
        if self.process_group is not dist.group.WORLD:
            raise RuntimeError(
                "DDP Pickling/Unpickling are only supported when using DDP with the default "
                "process group. Use ddp.module or ddp.state_dict() instead."
            )
        left_out = ("process_group", "_reducer", "_frozen", "modules_buffers", "_buffer_versions")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]
        self.process_group = member_group(None, "DistributedDataParallel")
        self.modules_buffers, self._buffer_versions = [], {}
        self._build_reducer()


def sparse_weights(module: nn.Module) -> set[str]:
    """Names of the embedding weights in `module` that get sparse gradients."""
    return {
        f"{name}.weight".lstrip(".")  # the module itself has no name
        for name, child in module.named_modules()
        if isinstance(child, (nn.Embedding, nn.EmbeddingBag)) and child.sparse
    }


def _refuse(arguments: Mapping[str, Any]) -> None:
    """Check the arguments of torch's class that this one does not offer.

    Raises:
        ValueError: one of them is set.
        TypeError: neither class has such an argument.
    """
    for name, value in arguments.items():
        if name not in inspect.signature(TorchDdp).parameters:
            raise TypeError(f"DistributedDataParallel got an unexpected keyword argument {name!r}")
        if value:
            raise ValueError(
                f"got {name}={value!r}, which dpbench's DistributedDataParallel does not offer"
            )


def _input_device(
    module: nn.Module, device_ids: Sequence[DeviceLike] | None
) -> torch.device | None:
    """The device to move inputs to; None leaves them where they are.

    Raises:
        ValueError: there are several device ids, or one that is not the module's GPU.
    """
    if not device_ids:
        return None
    devices = {parameter.device for parameter in module.parameters()}
    if len(device_ids) == 1:
        device = parse_device(device_ids[0])
        if device.type == "cuda" and devices == {device}:
            return device
    raise ValueError(
        f"got device_ids={list(device_ids)!r} and parameters on {sorted(map(str, devices))}, "
        "expected None, or a list of the one GPU that has all of them; start one process per GPU"
    )


def _not_offered(name: str) -> Callable[..., Any]:
    def method(self: object, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError(
            f"dpbench's DistributedDataParallel does not offer {name}(), which works on torch's "
            "reducer"
        )

    return method


# The other functions of torch's class need what only its constructor makes.
_WORKS_HERE = ("no_sync", "join", "train", "scatter", "gather")
for _name, _member in vars(TorchDdp).items():
    _is_inherited = getattr(DistributedDataParallel, _name) is _member
    if _is_inherited and isinstance(_member, FunctionType) and _name not in _WORKS_HERE:
        setattr(DistributedDataParallel, _name, _not_offered(_name))
