"""DistributedDataParallel: one replica per process, gradients averaged during backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parameter import UninitializedParameter

from dpbench.parallel.agreement import require_agreement
from dpbench.parallel.broadcast import broadcast_coalesced
from dpbench.parallel.buckets import BucketCaps
from dpbench.parallel.devices import DeviceLike, parse_device
from dpbench.parallel.reducer import Reducer
from dpbench.parallel.state_dicts import load_all_or_nothing
from dpbench.parallel.tree import move


class DistributedDataParallel(nn.Module):
    """Keeps `module` equal on all ranks of a process group, each with its own part of the data.

    Construction and training forwards are collectives: every rank must make them in the same
    order. After a backward, `.grad` of every parameter is the mean over the ranks, the gradient
    of the mean loss over the union of equally large batches, and a view into a bucket.

    - Whether a backward reduces is decided by the last forward with gradients enabled: yes,
      unless `no_sync` was active. It does so once; another backward of the same graph adds to the
      local gradients only.
    - Buffers are sent from rank 0 before each training forward that reduces; never in eval, and
      not if the module has its first buffer only after construction.
    - Every parameter must take part in the loss; otherwise the next forward raises.
    - Keep the wrapper until its backward is done: with it go the hooks on the parameters.
    - It cannot be pickled or copied; save `ddp.module` or a state dict.

    Args:
        module: on its device already; neither it nor the identity of its parameters is changed.
        device_ids: at most one device, that of the module, to which inputs are then moved; None
            for a module on the CPU or on several devices.
        output_device: where outputs are moved; None leaves them where they are.
        process_group: the ranks; None means the default group.
        broadcast_buffers: see above. At construction buffers are always sent.
        bucket_cap_mb: MiB of gradients in one all-reduce.
        first_bucket_cap_mb: the same for the first of a backward.

    Raises:
        RuntimeError: there is no process group, nothing in the module requires a gradient, it is
            lazy and not initialised, or it differs between the ranks (raised on all of them).
        ValueError: more than one device id, one for a CPU module or not the module's, or a cap
            that is not above zero.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[DeviceLike] | None = None,
        output_device: DeviceLike | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
        broadcast_buffers: bool = True,
        bucket_cap_mb: float = 25.0,
        first_bucket_cap_mb: float = 1.0,
    ) -> None:
        super().__init__()
        caps = BucketCaps.from_mebibytes(first_bucket_cap_mb, bucket_cap_mb)
        self.process_group = _member_group(process_group)
        _require_trainable(module)
        self.device, self.output_device = _checked_devices(module, device_ids, output_device)
        options = {
            "bucket_cap_mb": bucket_cap_mb,
            "first_bucket_cap_mb": first_bucket_cap_mb,
            "broadcast_buffers": broadcast_buffers,
        }
        parameters = list(module.parameters())
        require_agreement(module, options, self.process_group, parameters[0].device)
        broadcast_coalesced([*parameters, *module.buffers()], self.process_group)
        self.module = module
        # Decided once, as looking for buffers at each step costs more than it can find.
        self._sends_buffers = broadcast_buffers and any(True for _ in module.buffers())
        self.broadcast_bytes = 0
        self._syncs = True
        self._reducer = Reducer(module.named_parameters(), self.process_group, caps)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call `module`; with gradients enabled, prepare the reduction of the next backward.

        Raises:
            RuntimeError: before any communication, when the last backward left out parameters or
                a parameter changed requires_grad, dtype or device since construction.
        """
        trains = torch.is_grad_enabled()
        if trains and self._syncs:
            self._reducer.prepare(may_communicate=self.training)
            if self._sends_buffers and self.training:
                self.broadcast_bytes += broadcast_coalesced(
                    self.module.buffers(), self.process_group
                )
        if self.device is not None:
            args, kwargs = move((args, kwargs), self.device)
        output = self.module(*args, **kwargs)
        if trains:
            if self._syncs:
                self._reducer.arm()
            else:
                self._reducer.disarm()
        return output if self.output_device is None else move(output, self.output_device)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forwards made in this context do not reduce: gradients accumulate on each rank.

        The backward of the first forward after it averages what has accumulated as a whole.
        """
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def remove_hooks(self) -> None:
        """Stop reducing, so that `module` can be used alone or wrapped again.

        Happens by itself when the wrapper is garbage collected.
        """
        self._reducer.remove_hooks()

    @property
    def reduced_bytes(self) -> int:
        """Bytes of gradients given to all-reduce on this rank since construction."""
        return self._reducer.reduced_bytes

    @property
    def reductions(self) -> int:
        """All-reduces of gradients on this rank since construction."""
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

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "DistributedDataParallel cannot be pickled or copied, as it belongs to the processes "
            "of its group; use ddp.module or ddp.state_dict()"
        )


def _member_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The group to use, of which this process must be a member."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "DistributedDataParallel needs a process group; call "
            "torch.distributed.init_process_group first"
        )
    chosen: dist.ProcessGroup | None = dist.group.WORLD if group is None else group
    if chosen is None or dist.get_rank(chosen) < 0:
        raise RuntimeError("this process is not a member of the given process group")
    return chosen


def _require_trainable(module: nn.Module) -> None:
    if any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters()):
        raise RuntimeError(
            "the module has uninitialized parameters; run a forward to initialize them first"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that "
            "requires a gradient"
        )


def _checked_devices(
    module: nn.Module, device_ids: Sequence[DeviceLike] | None, output_device: DeviceLike | None
) -> tuple[torch.device | None, torch.device | None]:
    """Where to move inputs and outputs; None leaves them."""
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError(
            f"got device_ids={list(device_ids)!r}, expected None or a single device; start one "
            "process per device"
        )
    output = None if output_device is None else parse_device(output_device)
    if not device_ids and output is None:
        return None, None
    devices = {parameter.device for parameter in module.parameters()}
    if len(devices) > 1 or any(device.type == "cpu" for device in devices):
        raise ValueError(
            "device_ids and output_device are for a module on one CUDA device, but got "
            f"device_ids={device_ids!r}, output_device={output_device!r} and parameters on "
            f"{sorted(map(str, devices))}"
        )
    if not device_ids:
        return None, output
    wanted = parse_device(device_ids[0])
    if devices != {wanted}:
        raise ValueError(f"got device_ids={device_ids!r}, but the module is on {devices.pop()}")
    return wanted, output
