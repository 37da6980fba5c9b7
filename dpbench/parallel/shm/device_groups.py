"""A group whose devices have different backends, as in "cpu:shm,cuda:nccl"."""
# mypy: disable-error-code="override, attr-defined, no-any-return"

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.compilation import not_compiled
from dpbench.parallel.shm.member import Member
from dpbench.parallel.shm.process_group import ShmProcessGroup

COLLECTIVES = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "broadcast",
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "gather",
    "scatter",
    "alltoall",
    "all_to_all_single",
    "_allgather_base",
    "allgather_into_tensor_coalesced",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "alltoall_base",
)
"""Names of the methods that get tensors."""


@not_compiled
class DeviceGroup(ShmProcessGroup):
    """A group that sends tensors on some device types through shared memory, and all others to
    torch's group."""

    def __init__(
        self,
        member: Member,
        beside: Any,
        own: Sequence[str],
        others: Mapping[str, str],
        timeout: timedelta,
    ) -> None:
        """
        Args:
            member: this rank.
            beside: torch's group, with the backends of the other devices.
            own: types of the devices whose tensors go through shared memory.
            others: the other backends by device type.
            timeout: for operations that name none.
        """
        super().__init__(member, beside.get_group_store(), timeout)
        self._beside = beside
        self._served = list(own)
        self._served_beside = list(others)
        # torch's C++ code looks the backends up in this group.
        if beside.bound_device_id is not None:
            self.bound_device_id = beside.bound_device_id
        for name, backend in others.items():
            device = torch.device(name)
            self._register_backend(device, backend_type(backend), beside._get_backend(device))

    @property
    def device_types(self) -> Sequence[str]:
        return self._served

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in (*self._served, *self._served_beside)]

    def _get_backend(self, device: torch.device) -> Any:
        return self if device.type in self._served else self._beside._get_backend(device)

    def group_of(self, arguments: Sequence[Any]) -> Any:
        """Torch's group if the first tensor among the arguments belongs to it, else None."""
        tensor = _first_tensor(arguments)
        return None if tensor is None or tensor.device.type in self._served else self._beside

    def send(self, tensors: list[Tensor], receiver: int, tag: int) -> dist.Work:
        return self._messenger(tensors).send(tensors, receiver, tag)

    def recv(self, tensors: list[Tensor], sender: int, tag: int) -> dist.Work:
        return self._messenger(tensors).recv(tensors, sender, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> dist.Work:
        return self._messenger(tensors).recv_anysource(tensors, tag)

    def barrier(self, opts: Any = None) -> dist.Work:
        device = getattr(opts, "device", None)
        if device is None or device.type in self._served:
            return super().barrier(opts)
        return self._beside.barrier(opts)

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self._beside.set_timeout(timeout)

    def setGroupName(self, name: str) -> None:  # noqa: N802
        super().setGroupName(name)
        self._beside._set_group_name(name)

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        super().setGroupDesc(description)
        self._beside._set_group_desc(description)

    def shutdown(self) -> None:
        self._beside.shutdown()
        super().shutdown()

    def abort(self) -> None:
        self._beside.abort()
        super().shutdown()

    def _start_coalescing(self, device: torch.device) -> None:
        self._beside._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return self._beside._end_coalescing(device)

    def _has_hooks(self) -> bool:
        return bool(self._beside._has_hooks())

    def _wait_for_pending_works(self) -> None:
        self._beside._wait_for_pending_works()

    def _register_on_completion_hook(self, hook: Callable[..., None]) -> None:
        self._beside._register_on_completion_hook(hook)

    def _enable_collectives_timing(self) -> None:
        self._beside._enable_collectives_timing()

    def _messenger(self, tensors: list[Tensor]) -> Any:
        """The group that sends these tensors from one rank to another: shm's or torch's.

        torch coalesces a batch of messages only in groups of its own class; without that, nccl's
        messages would wait for each other forever.
        """
        beside = self.group_of(tensors)
        if beside is not None and beside._get_backend(tensors[0].device).supports_coalescing:
            frame: FrameType | None = sys._getframe()
            while frame is not None and frame.f_code.co_name != "batch_isend_irecv":
                frame = frame.f_back
            if frame is not None:
                raise RuntimeError(
                    f"torch's batch_isend_irecv of {tensors[0].device.type} tensors would hang in "
                    "a group that has 'shm' too; pass a group of the other backend alone"
                )
        return super() if beside is None else beside


def backend_type(backend: str) -> Any:
    """torch's C++ enumeration value for a backend."""
    return dist.Backend.backend_type_map.get(backend, dist.ProcessGroup.BackendType.CUSTOM)


def _first_tensor(argument: Any) -> Tensor | None:
    if isinstance(argument, Tensor):
        return argument
    if isinstance(argument, list | tuple):
        for part in argument:
            if (tensor := _first_tensor(part)) is not None:
                return tensor
    return None


def _by_device(name: str) -> Callable[..., Any]:
    own = getattr(ShmProcessGroup, name)

    def method(self: DeviceGroup, *arguments: Any, **named: Any) -> Any:
        beside = self.group_of((*arguments, *named.values()))
        if beside is None:
            return own(self, *arguments, **named)
        return getattr(beside, name)(*arguments, **named)

    return method


for _name in COLLECTIVES:
    setattr(DeviceGroup, _name, _by_device(_name))
