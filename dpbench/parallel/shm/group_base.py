"""A base class with all that torch expects of process groups, except methods that move data."""

# Some of torch's names exist in some versions only, and its stub types them loosely.
# mypy: disable-error-code="override, attr-defined, call-arg"

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from dpbench.parallel.compilation import not_compiled
from dpbench.parallel.shm.issuer import Issuer

Backend: Any = torch._C._distributed_c10d.Backend


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

    def send(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            f"{self.getBackendName()} has no messages between two ranks; make a group of gloo"
        )

    recv = recv_anysource = send  # type: ignore[assignment]

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False
