"""Copies of tensors in host memory, which training may then change while somebody writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Path = tuple[object, ...]


class HostCopy:
    """Copies nested plain values, into the same memory every time.

    New memory costs more than the copy itself, as the kernel clears every page of it. So a copy
    is valid until the next one is taken.
    """

    def __init__(self) -> None:
        self._buffers: dict[Path, Tensor] = {}

    def take(self, value: Any) -> Any:
        """`value` with dicts, lists and tuples made anew and each tensor copied to the CPU.

        Returns when the tensors may be changed. From a CUDA device they are copied together,
        through page-locked memory. Raises TypeError for what is not plain (see `archive`).
        """
        used: dict[Path, Tensor] = {}
        devices = set[torch.device]()
        copied = self._copy(value, (), used, devices)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        self._buffers = used
        return copied

    def _copy(
        self, value: Any, path: Path, used: dict[Path, Tensor], devices: set[torch.device]
    ) -> Any:
        if isinstance(value, Tensor):
            used[path] = self._copy_tensor(value.detach(), self._buffers.get(path))
            if value.is_cuda:
                devices.add(value.device)
            return used[path]
        if isinstance(value, dict):
            return {k: self._copy(v, (*path, k), used, devices) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            items = [self._copy(v, (*path, i), used, devices) for i, v in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if value is None or type(value) in (bool, int, float, str):
            return value
        raise TypeError(
            f"{'.'.join(map(str, path)) or 'the value'}: got a {type(value).__name__}; expected "
            "dicts, lists, tensors, numbers and strings"
        )

    @staticmethod
    def _copy_tensor(tensor: Tensor, buffer: Tensor | None) -> Tensor:
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return buffer.copy_(tensor, non_blocking=tensor.is_cuda)
