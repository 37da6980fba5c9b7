"""Plain values: copied to host memory, written in torch.save's format, read back safely.

Plain values are dicts, lists, tuples, tensors, numbers, strings and None. A copy lets training
change its tensors while they are being written. A file may come from anybody: it is checked first,
with the checksums that torch writes but does not verify, and is never executed.
"""

from __future__ import annotations

import io
import re
import zipfile
from typing import IO, Any

import torch
from torch import Tensor

from dpbench.errors import UsageError
from dpbench.parallel.plain_values import DTYPES

LONGEST_REASON = 160
MOST_SHARED = 16
"""Largest ratio of a file's tensors to its size; above 1 as some tensors share memory (tied
weights)."""
_FOLDER = 0x10
"""Attribute that marks a folder in an archive, from the time of MS-DOS."""
_FORBIDDEN = re.compile(r"GLOBAL (\S+)")
"""Torch's wording for a name that a file wants to be called or built."""


class Damaged(UsageError):
    """The file is not as its writer wrote it, for example after a power loss."""


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

    Raises UsageError in one line, with `where` in front, for anything else: objects beyond plain
    values, and as Damaged bytes that are cut off or changed, or another kind of file. Nothing in
    `data` is executed.
    """
    try:
        _require_whole(data)
    except Exception as error:  # hostile bytes can make the readers raise anything
        raise Damaged(f"{where}: {_reason(error)}") from None
    try:
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        _require_plain(value, len(data))
        return value
    except Exception as error:
        raise UsageError(f"{where}: {_reason(error)}") from None


def one_line(words: str) -> str:
    """The first line of a text that may come from a file, shortened, with control characters
    escaped."""
    first = words.partition("\n")[0][:LONGEST_REASON]
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in first)


class _Refused(Exception):
    """The bytes are damaged, or hold an object that is no plain value; the message says which."""


def _require_whole(data: bytes) -> None:
    """Require that every checksum of the archive is right, and that torch.save wrote it."""
    if not data:
        raise _Refused("the file is empty")
    if not data.startswith(b"PK\x03\x04"):
        raise _Refused("this is no file of torch.save")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if any(m.compress_type != zipfile.ZIP_STORED or m.file_size > len(data) for m in members):
            raise _Refused("it is compressed, which torch.save never does")
        if any(m.external_attr & _FOLDER for m in members):  # torch would read it as empty
            raise _Refused("its table of parts is damaged")
        if any(m.filename.endswith("/constants.pkl") for m in members):
            raise _Refused("it holds a TorchScript program")
        if broken := archive.testzip():
            raise _Refused(f"its part {broken!r} is damaged: the checksum does not hold")


def _require_plain(value: Any, stored_bytes: int) -> None:
    """Require that tensors are dense and of plain numbers, and that the value is no larger than the
    file allows.

    An archive can refer to a part several times. Lists that contain each other would never end, and
    many or expanded tensors of one piece of memory could take more memory than there is.
    """
    waiting = [value]
    parts = tensor_bytes = 0
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            if part.layout is not torch.strided or part.is_meta:
                raise _Refused("it holds a tensor that is not dense")
            if part.dtype not in DTYPES:
                raise _Refused(f"it holds a tensor of {part.dtype}")
            tensor_bytes += part.numel() * part.itemsize
        inside = _members(part)
        parts += len(inside)
        if parts > stored_bytes or tensor_bytes > MOST_SHARED * stored_bytes:
            raise _Refused("it holds the same parts too often")
        waiting.extend(inside)


def _members(part: Any) -> list[Any]:
    if isinstance(part, dict):
        return [*part.keys(), *part.values()]
    return list(part) if isinstance(part, (list, tuple, set)) else []


def _reason(error: Exception) -> str:
    if isinstance(error, _Refused):
        words = str(error)
    elif isinstance(error, zipfile.BadZipFile):
        words = "the file is cut off or damaged"
    elif name := _FORBIDDEN.search(str(error)):
        words = f"it holds {name[1]}, which is more than plain values, and was not executed"
    else:
        words = f"the file cannot be read ({type(error).__name__}: {error})"
    return one_line(words)


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
