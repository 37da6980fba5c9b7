"""DistributedDataParallel: one replica per process, gradients averaged during backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel as _TorchDdp

from dpbench.parallel.agreement import Entry, Objection, describe, require_agreement
from dpbench.parallel.ddp.broadcast import broadcast_coalesced
from dpbench.parallel.ddp.bucket_kinds import MakeBucket, ReducerOptions
from dpbench.parallel.ddp.buckets import BucketCaps
from dpbench.parallel.ddp.comm_hooks import Exchange, checked_hook
from dpbench.parallel.ddp.modules import Buffers, named_once
from dpbench.parallel.ddp.preconditions import (
    checked_devices,
    chosen_group,
    refuse,
    require_type,
    untrainable_reason,
    unwritable_reason,
)
from dpbench.parallel.ddp.reducer import Reducer
from dpbench.parallel.ddp.uneven_inputs import UnevenInputs
from dpbench.parallel.devices import DeviceLike
from dpbench.parallel.sharded.bucket import ShardedBucket
from dpbench.parallel.state_dicts import load_all_or_nothing
from dpbench.parallel.tree import move


class DistributedDataParallel(nn.Module, UnevenInputs):
    """Keeps `module` equal on all ranks of a process group, each with its own part of the data.

    A drop-in for torch.nn.parallel.DistributedDataParallel. Construction and training forwards
    are collectives: every rank must make them in the same order. After a backward, `.grad` of
    every parameter is the mean over the ranks, the gradient of the mean loss over the union of
    equally large batches, and a view into a bucket.

    - Whether a backward reduces is decided by the last forward with gradients enabled: yes,
      unless `no_sync` was active. It does so once; another backward of the same graph adds to the
      local gradients only.
    - Buffers are sent before a training forward that follows one that reduced; never in eval, and
      not if the module has its first buffer only after construction.
    - Every parameter must take part in the loss, unless it is frozen at the forward or one of the
      two flags below allows otherwise. If one does not, all ranks raise: the one that lacks it at
      its next forward, the others in the backward that waits for it.
    - Parameters may be frozen for some steps, and lent to a call by torch.func.functional_call,
      which then reduces nothing. One that was frozen at construction cannot be trained later.
    - Keep the wrapper until its backward is done: the hooks on the parameters end with it.
    - Pickling and copying work with the default group, on all ranks at once.

    Args:
        module: already on its device; neither it nor the identity of its parameters is changed.
            Parameters and buffers named in its attribute `_ddp_params_and_buffers_to_ignore` are
            left alone.
        device_ids: at most one device, that of the module, to which inputs are then moved; None
            for a module on the CPU or on several devices.
        output_device: where outputs are moved; None leaves them where they are.
        dim: 0, the only value; in torch's signature.
        broadcast_buffers: whether rank 0's buffers are sent, at construction and as said above.
        init_sync: whether ranks are compared and rank 0's values are sent at construction.
        process_group: the ranks; None means the default group.
        bucket_cap_mb: MiB of gradients in one all-reduce. None means 25, and 1 for the first, so
            that communication begins early.
        find_unused_parameters: a parameter may take no part in a backward. It counts as zero; one
            that no rank used keeps its `.grad` untouched.
        gradient_as_bucket_view: True and False are the same here: gradients are views.
        static_graph: each backward uses the same parameters equally often as the first one, which
            may then be unused, or used by several reentrant checkpoints.
        device_mesh: one-dimensional; replaces process_group.
        forward_sync_buffers: as broadcast_buffers, but not at construction.
        bucket_cap_mb_list: replaces bucket_cap_mb: caps of the first, second … bucket of a
            backward; the last holds for all further ones too.
        overlap: average the gradients of full buckets while backward goes on. False averages all of
            them after it, one after the other: the same gradients, to measure the gain of overlap.
        not_offered: other arguments of torch's class, accepted at their defaults.

    Raises:
        RuntimeError: there is no process group, nothing in the module requires a gradient, it is
            lazy and not initialised, or it differs between the ranks (raised on all of them).
        ValueError: more than one device id, one for a CPU module or not the module's, a cap that
            is not above zero, or an argument that is not offered.
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
        super().__init__()
        UnevenInputs.__init__(self)  # nn.Module's constructor does not call it
        refuse({"dim": dim, "check_reduction": check_reduction, **not_offered})
        broadcasts = True if broadcast_buffers is None else broadcast_buffers
        forwards = broadcasts if forward_sync_buffers is None else forward_sync_buffers
        require_type(nn.Module, module=module)
        require_type(
            bool,
            broadcast_buffers=broadcasts,
            init_sync=init_sync,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            static_graph=static_graph,
            forward_sync_buffers=forwards,
            overlap=overlap,
        )
        self.process_group = chosen_group(process_group, device_mesh)
        if device_mesh is not None:
            self.device_mesh = device_mesh
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self.device, self.output_device = checked_devices(module, device_ids, output_device)
        self.device_ids = list(device_ids) if device_ids else None
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.forward_sync_buffers = forwards
        self.overlap = overlap
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self.broadcast_bytes = 0
        self._caps = BucketCaps.chosen(bucket_cap_mb, bucket_cap_mb_list)
        # Read by torch.compile, which rejects a cap below that of torch's first bucket.
        first: int = dist._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]
        self.bucket_bytes_cap = max(self._caps.caps[-1], first)
        self.bucket_bytes_cap_list = list(self._caps.caps) if bucket_cap_mb_list else []
        self._hook: tuple[object, Callable[..., Any]] | None = None
        self._shards: list[ShardedBucket] = []
        self.module = module
        self._sent_buffers = Buffers(module, self.parameters_to_ignore)
        # Decided once, as looking for buffers at each step costs more than it can find.
        self._has_buffers = bool(self._sent_buffers.named())
        self.dim = dim
        with torch.inference_mode(False):  # hooks need a graph, which that mode does not build
            self._make_equal(with_values=init_sync, with_buffers=broadcasts)
            self._build_reducer()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call `module`; with gradients enabled, prepare the reduction of the next backward.

        Raises:
            RuntimeError: before any communication, when the last backward left out parameters or
                a parameter changed requires_grad, dtype or device since construction.
        """
        # The context costs microseconds, so only where there is a profiler to see it.
        if torch.autograd.profiler._is_profiler_enabled:
            with torch.profiler.record_function("DistributedDataParallel.forward"):
                return self._forward(args, kwargs)
        return self._forward(args, kwargs)

    def _forward(self, args: Any, kwargs: Any) -> Any:
        trains = torch.is_grad_enabled()
        syncs = trains and self.require_backward_grad_sync
        reduces = syncs and self._reducer.begin()
        if trains and self._join_config.enable:
            self._announce(reduces)
        if reduces:
            self._reducer.build(rebuild=self.training)
        # Without gradients too, so that ranks which re-estimate statistics do not drift apart.
        shares = trains or not self._join_config.enable
        if self.training and self.require_forward_param_sync and shares:
            self._send_buffers()
        if self.device is not None:
            args, kwargs = move((args, kwargs), self.device)
        output = self._call_module(args, kwargs)
        if reduces:
            output = self._reducer.arm(output)
        if trains and self.training and self.require_forward_param_sync is not syncs:
            self.require_forward_param_sync = syncs  # a module takes microseconds to set it
        return output if self.output_device is None else move(output, self.output_device)

    def _call_module(self, args: Any, kwargs: Any) -> Any:
        """Call the module as torch's class does, so that torch.compile splits its graph at bucket
        boundaries.

        An unsplit compiled backward hands out all gradients at its end, so that no communication
        overlaps with it.
        """
        outer = _TorchDdp._active_ddp_module
        _TorchDdp._active_ddp_module = self  # type: ignore[assignment]
        try:
            return self.module(*args, **kwargs)
        finally:
            _TorchDdp._active_ddp_module = outer

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forwards made in this context do not reduce: gradients accumulate on each rank.

        The backward of the first forward after it averages what has accumulated as a whole.
        """
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Have `hook(state, bucket)` communicate each bucket; before training, once, on all ranks.

        Args:
            state: passed to the hook.
            hook: gets a GradientBucket with this rank's gradients, not divided, and returns a
                future of the tensor that replaces them. Torch's own hooks work.

        Raises:
            TypeError, ValueError: `hook` is not such a function.
            RuntimeError: there is one already.
        """
        checked = checked_hook(state, hook)
        self._require_unsharded("a communication hook")
        if self._hook is not None:
            raise RuntimeError(
                "register_comm_hook or register_builtin_comm_hook can only be called once."
            )
        self._hook = (state, hook)
        self._reducer.use_hook(checked)

    def reduced_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that take part and are not frozen now, by name."""
        return [(name, p) for name, p in self._parameters_here() if p.requires_grad]

    def shard(self, make_bucket: MakeBucket) -> list[ShardedBucket]:
        """Reduce into sharded buckets from now on, as ShardedOptimizer does; a collective, once.

        Args:
            make_bucket: gets the indices of its parameters among `reduced_parameters`, and those.

        Returns:
            The buckets, in the order in which a backward reduces them.

        Raises:
            RuntimeError: the model is sharded already or has a communication hook, or an embedding
                has sparse gradients.
        """
        self._require_unsharded("another ShardedOptimizer")
        if self._hook is not None:
            raise RuntimeError(
                "got a model with a communication hook, expected one without: ShardedOptimizer "
                "reduces each rank's share only"
            )
        names = {name for name, _ in self.reduced_parameters()}
        if sparse := names.intersection(self._sparse_weights()):
            raise RuntimeError(
                f"got sparse gradients for {sparse.pop()!r}, expected dense ones: ShardedOptimizer "
                "reduces them in flat tensors; build the embedding with sparse=False"
            )
        made: list[ShardedBucket] = []

        def make(indices: Sequence[int], parameters: Sequence[nn.Parameter]) -> ShardedBucket:
            made.append(make_bucket(indices, parameters))
            return made[-1]

        self._reducer.remove_hooks()
        with torch.inference_mode(False):
            self._build_reducer(make)
            self._reducer.build(rebuild=False)
        self._shards = made
        return made

    def _require_unsharded(self, newcomer: str) -> None:
        if self._shards:
            raise RuntimeError(
                f"got {newcomer} for a model with a ShardedOptimizer, which reduces each rank's "
                "share only; do without one of the two"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero, those in shares too."""
        super().zero_grad(set_to_none)
        for bucket in self._shards:
            bucket.zero(set_to_none)

    @property
    def join_device(self) -> torch.device:
        """Device of the first parameter; torch.distributed.algorithms.Join reads it."""
        first = next(self.module.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(
        module: nn.Module, params_and_buffers_to_ignore: Sequence[str]
    ) -> None:
        """Make a wrapper ignore parameters and buffers of `module`; torch's name for it."""
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore  # type: ignore

    def remove_hooks(self) -> None:
        """Stop reducing, so that `module` can be used alone or wrapped again.

        This happens automatically when the wrapper is garbage collected.
        """
        self._reducer.remove_hooks()

    _remove_autograd_hooks = remove_hooks  # torch's name for it

    @property
    def reduced_bytes(self) -> int:
        """Bytes of gradients sent from this rank since construction."""
        return self._reducer.reduced_bytes

    @property
    def reductions(self) -> int:
        """Collectives that averaged gradients since construction."""
        return self._reducer.reductions

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load into `module`, all or nothing, with or without "module." before the keys.

        Raises:
            ValueError: for assign=True, which would replace the parameters that are hooked.
        """
        if assign:
            raise ValueError("got assign=True, which would replace the wrapped parameters")
        return load_all_or_nothing(self.module, state_dict, strict=strict, assign=False)

    def _set_static_graph(self) -> None:
        """Switch static_graph=True on after construction; torch's name for it.

        Raises:
            RuntimeError: a training forward has been made already.
        """
        if self.static_graph:
            warnings.warn("the graph is static already, which needs no second call", stacklevel=2)
            return
        if self._reducer.has_begun:
            raise RuntimeError(
                "set_static_graph() should be called before training loop starts and after "
                "DistributedDataParallel is constructed."
            )
        self._require_unsharded("another graph")
        self.static_graph = True
        self._reducer.remove_hooks()
        self._build_reducer()

    def _parameters_here(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that take part, frozen ones included."""
        named = self.module.named_parameters(remove_duplicate=False)
        return named_once(named, self.parameters_to_ignore)

    def _make_equal(self, *, with_values: bool, with_buffers: bool) -> None:
        """Check that all ranks' values fit together, then copy rank 0's to all; with `with_values`
        False check only this rank."""
        parameters = self._parameters_here()
        buffers = self._sent_buffers.named() if with_buffers else []
        failure = untrainable_reason(self.module, parameters) or unwritable_reason(
            [*parameters, *buffers]
        )
        if with_values:
            options = {
                "bucket caps": self._caps,
                "forward_sync_buffers": self.forward_sync_buffers,
                "find_unused_parameters": self.find_unused_parameters,
                "static_graph": self.static_graph,
            }
            mine = describe(parameters, buffers, options)
            self._require_agreement(mine, failure)
        if failure is not None:
            raise failure
        if with_values:
            tensors = [tensor for _, tensor in (*parameters, *buffers)]
            broadcast_coalesced(tensors, self.process_group)

    def _require_agreement(self, mine: Sequence[Entry], failure: Exception | None) -> None:
        """Check that all ranks wrap the same and are able to; a failing rank's own error is raised
        by the caller."""
        objection = None
        if failure is not None:
            rank = dist.get_rank(self.process_group)
            objection = f"other ranks cannot wrap their module; rank {rank}: {failure}"
        try:
            require_agreement(
                "DDP", mine, self.process_group, objection=objection, device=self.join_device
            )
        except Objection:
            if failure is None:
                raise

    def _sparse_weights(self) -> list[str]:
        return [
            f"{name}.weight".lstrip(".")  # the wrapped module itself has no name
            for name, child in self.module.named_modules()
            if isinstance(child, (nn.Embedding, nn.EmbeddingBag)) and child.sparse
        ]

    def _build_reducer(self, make_bucket: MakeBucket | None = None) -> None:
        self._reducer = Reducer(
            self.module,
            self._parameters_here(),
            self._sparse_weights(),
            Exchange(self.process_group, self.join_device),
            ReducerOptions(
                self._caps,
                self.find_unused_parameters,
                self.static_graph,
                overlap=self.overlap,
                make_bucket=make_bucket,
            ),
        )
        if self._hook is not None:
            self._reducer.use_hook(checked_hook(*self._hook))

    def _send_buffers(self, *, has_data: bool = True) -> None:
        if self.forward_sync_buffers and self._has_buffers:
            source = self._last_rank(has_data) if self._join_config.enable else 0
            self.broadcast_bytes += self._sent_buffers.send(self.process_group, source)

    def _take_model(self, source: int) -> None:
        tensors = [
            *self._parameters_here(),
            *(self._sent_buffers.named() if self.forward_sync_buffers else ()),
        ]
        broadcast_coalesced([tensor for _, tensor in tensors], self.process_group, source)

    def __getstate__(self) -> dict[str, Any]:
        if self.process_group is not dist.group.WORLD:
            raise RuntimeError(
                "DDP Pickling/Unpickling are only supported when using DDP with the default "
                "process group. Use ddp.module or ddp.state_dict() instead."
            )
        state = self.__dict__.copy()
        del state["process_group"], state["_reducer"], state["_sent_buffers"]
        state["_shards"] = []
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.process_group = chosen_group(None, None)
        self._sent_buffers = Buffers(self.module, self.parameters_to_ignore)
        self._build_reducer()
