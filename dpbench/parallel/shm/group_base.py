"""Base classes with all that torch expects of process groups, except methods that move data.

A collective is called in one of two forms. The long form has lists of tensors and an options
object; torch.distributed calls it, and often, so it must cost nothing here. The short form has a
tensor and a root, an operator or a timeout.
"""

# Some of torch's names exist in some versions only, and its stub types them loosely.
# mypy: disable-error-code="override, attr-defined, call-arg"

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpbench.parallel.compilation import not_compiled
from dpbench.parallel.shm.issuer import Issuer

Backend: Any = torch._C._distributed_c10d.Backend
FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


def options(kind: Any, names: Sequence[str], given: Any, *more: Any, **named: Any) -> Any:
    """An options object of this kind, from the arguments of either form.

    Args:
        kind: one of torch's options classes.
        names: attributes that the short form gives instead, in order.
        given, more, named: the arguments of the call: options of the kind, or the short form's.

    Raises:
        TypeError: neither form has such an argument.
    """
    if type(given) is kind and not more and not named:
        return given
    values = {} if given is None and not more else dict(zip(names, (given, *more), strict=False))
    if len(more) >= len(names) or named.keys() - set(names) or values.keys() & named.keys():
        raise TypeError(
            f"got {1 + len(more)} arguments and {sorted(named)} after the tensors, expected "
            f"{kind.__name__} or {', '.join(names)}"
        )
    result = kind()
    for name, value in (values | named).items():
        if name == "timeout" and value is not None and not isinstance(value, timedelta):
            value = timedelta(seconds=value)
        if value is not None:
            setattr(result, FIELDS[name], value)
    return result


def listed(tensors: Any) -> list[Tensor]:
    """The tensors as a list, also for a single tensor."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def listed_lists(tensors: Any) -> list[list[Tensor]]:
    """The lists as a list of lists, also for a single list."""
    if tensors and isinstance(tensors[0], Tensor):
        return [list(tensors)]
    return list(tensors)


@not_compiled
class GroupBase(dist.ProcessGroup):
    """A group that is its own backend.

    torch's C++ class keeps one backend object per device type. A backend in Python has to be a
    whole ProcessGroup, so the group itself also answers for `_get_backend(device)`.
    """

    supports_coalescing = False
    supports_splitting = False
    supports_time_estimate = False
    DEVICE_TYPES = ("cpu", "cuda")
    """Types of the devices whose tensors a group accepts."""

    def __init__(self, rank: int, size: int, issuer: Issuer, store: Any) -> None:
        """
        Args:
            rank, size: of this process in the group, and the number of ranks.
            issuer: starts the operations of this rank.
            store: used by this group alone.
        """
        super().__init__(rank, size)
        self._issuer = issuer
        self._store = store
        self._name = ""
        self._description = ""

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in self.DEVICE_TYPES]

    def _get_backend(self, device: torch.device) -> Any:
        if device.type in self.DEVICE_TYPES:
            return self
        return super()._get_backend(device)  # torch's own error

    def get_group_store(self) -> Any:
        return self._store

    def getBackendName(self) -> str:  # noqa: N802 - torch's names, here and below
        return "shm"

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    @property
    def options(self) -> Any:
        """Options like those of torch's backends; only the timeout has a meaning here."""
        return Backend.Options(
            self.getBackendName(), timedelta(seconds=self._issuer.timeout_seconds)
        )

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the ranks count from 0."""

    def _get_sequence_number_for_group(self) -> int:
        """Number of collectives that this rank has issued; torch uses it to tell which rank is
        behind."""
        return self._issuer.issued

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False
