"""Plain values: copied to host memory, written in torch.save's format, read back safely.

Plain values are dicts, lists, tuples, tensors, numbers, strings and None. A copy lets training
change its tensors while they are being written. A file is read with `weights_only`, after its
checksums, which torch writes but does not verify.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import IO, Any

import torch
from torch import Tensor

from dpbench.errors import UsageError
from dpbench.messages import printable

LONGEST_REASON = 160
_FOLDER = 0x10
"""Attribute that marks a folder in an archive, from the time of MS-DOS."""


def dump(value: Any, file: IO[bytes]) -> None:
    """Write a plain value; raises OSError if the file cannot be written."""
    try:
        torch.save(value, file)
    except RuntimeError as error:  # torch's writer reports where it stopped, not why
        raise _cause(error) or error from None


def dumps(value: Any) -> bytes:
    """The bytes that `dump` writes."""
    file = io.BytesIO()
    dump(value, file)
    return file.getvalue()


def loads(data: bytes, where: str) -> Any:
    """Read a value that `dump` wrote; its tensors are on the CPU.

    Raises UsageError in one line, with `where` in front, for bytes that are cut off or changed, for
    another kind of file, and for objects beyond plain values. Nothing in `data` is executed.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            # Torch takes whatever lies in memory for the content of a part that is a folder.
            changed = any(part.external_attr & _FOLDER for part in parts.infolist())
            if changed or parts.testzip() is not None:
                raise zipfile.BadZipFile("a checksum does not hold")
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UsageError(
            f"{where}: it holds more than tensors, numbers and texts, and was not loaded"
        ) from None
    except Exception as error:  # damaged bytes can make the readers raise anything
        reason = printable(str(error).partition("\n")[0], LONGEST_REASON)
        raise UsageError(
            f"{where}: it is damaged, or no file of torch.save ({type(error).__name__}: {reason})"
        ) from None


def _cause(error: BaseException) -> OSError | None:
    """The OSError in whose handling `error` was raised."""
    while error.__context__ is not None:
        error = error.__context__
        if isinstance(error, OSError):
            return error
    return None


Path = tuple[object, ...]


class HostBuffers:
    """Copies nested plain values, into the same memory every time.

    New memory costs more than the copy itself, as the kernel clears every page of it. So a copy
    is valid until the next one is taken.
    """

    def __init__(self) -> None:
        self._buffers: dict[Path, Tensor] = {}

    def take(self, value: Any) -> Any:
        """Copy `value`, with new dicts, lists and tuples and each tensor copied to the CPU.

        It returns when the tensors may be changed. Those on a CUDA device are copied together,
        through page-locked memory. Raises TypeError for a value that is not plain (see `archive`).
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
